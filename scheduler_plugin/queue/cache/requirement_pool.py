"""Pool of pods' requirements: equal ones are one object, so each is computed once. Pure."""

from allocator.names import POD_NODE_POLICY
from allocator.request import unknown_policy
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.queue.cache.pods import PodQueueInfo, QueuePod, read_pod_node_rules
from scheduler_plugin.queue.capacity.requirements import PodRequirements
from scheduler_plugin.scheduling.policies import NODE_POLICIES


class RequirementPool:
    """The needs of all pods that asked for something."""

    def __init__(self) -> None:
        self._known: dict[PodRequirements, PodRequirements] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get_requirements(
        self, record: PodRecord, queue_info: PodQueueInfo, pod: QueuePod
    ) -> tuple[PodRequirements | None, str]:
        """Get a pod's requirements, None where they cannot be read, and what is wrong with them."""
        if record.charged is None:
            return None, record.error
        if record.request is None:
            return PodRequirements(record.charged, record.cpu_milli, record.memory_bytes), record.error
        requirements = PodRequirements(
            record.request,
            record.cpu_milli,
            record.memory_bytes,
            read_pod_node_rules(pod),
            record.other_resources,
        )
        policy = record.request.node_policy
        if policy is not None and policy not in NODE_POLICIES:
            return requirements, str(unknown_policy(POD_NODE_POLICY, policy, NODE_POLICIES))
        return self._known.setdefault(requirements, requirements), queue_info.fault

    def forget_unused(self, used: set[PodRequirements]) -> None:
        """Drop what no pod needs any more."""
        self._known = {requirements: requirements for requirements in used}
