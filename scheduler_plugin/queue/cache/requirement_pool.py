"""Pool of pods' requirements: equal requirements are the same object, so each is parsed once. Pure."""

from allocator.names import POD_NODE_POLICY
from allocator.request import unknown_policy
from kubeapi.objects import Pod
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.queue.cache.pods import PodQueueInfo
from scheduler_plugin.queue.capacity.requirements import PodRequirements
from scheduler_plugin.scheduling.policies import NODE_POLICIES


class RequirementPool:
    """The requirements of all pods, each distinct one once."""

    def __init__(self) -> None:
        self._known: dict[PodRequirements, PodRequirements] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get_requirements(
        self, record: PodRecord, queue_info: PodQueueInfo, pod: Pod
    ) -> tuple[PodRequirements | None, str]:
        """Return a pod's requirements, None if they cannot be read, and what is wrong with them."""
        if record.charged is None:
            return None, record.error
        if record.request is None:
            return PodRequirements(record.charged, record.amounts), record.error
        requirements = PodRequirements(record.request, record.amounts, pod.spec.node_rules)
        policy = record.request.node_policy
        if policy is not None and policy not in NODE_POLICIES:
            return requirements, str(unknown_policy(POD_NODE_POLICY, policy, NODE_POLICIES))
        return self._known.setdefault(requirements, requirements), queue_info.fault

    def forget_unused(self, used: set[PodRequirements]) -> None:
        """Drop requirements that no pod has any more."""
        self._known = {requirements: requirements for requirements in used}
