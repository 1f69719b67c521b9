"""Settings of the queue, checked as a whole: every fault is told at once."""

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from allocator.errors import AllocatorError
from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY, MAX_UNIT_MIB, MIB_PER_GIB
from kubeapi.addresses import find_address_faults
from kubeapi.options import find_faults, option
from kubeapi.process_options import (
    MIN_STALE_S,
    ElectionOptions,
    follow_lease_option,
    kubeconfig_option,
    list_election_faults,
    list_follower_faults,
    list_kubeconfig_faults,
    log_format_option,
    log_level_option,
)
from scheduler_plugin.errors import PolicyError, SettingsError

if TYPE_CHECKING:
    from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies

INDEXED: Final = {"best-fit": {"mode": "pick"}}
"""The queue makes its candidates itself: best-fit finds a node through its index."""


class DecisionSettings(msgspec.Struct, frozen=True, rename="camel"):
    """All by which a queue decides, so that others can find out what it would do."""

    configuration: str
    node_policy: str = DEFAULT_NODE_POLICY
    node_policy_parameters: dict[str, str] = msgspec.field(default_factory=dict)
    card_policy: str = DEFAULT_CARD_POLICY
    unit_mib: int = MIB_PER_GIB

    def make_settings(self) -> "QueueSettings":
        return QueueSettings(
            config="",
            node_policy=self.node_policy,
            node_policy_parameters=self.node_policy_parameters,
            card_policy=self.card_policy,
            unit_mib=self.unit_mib,
        )


@dataclass(frozen=True, slots=True)
class QueueSettings(ElectionOptions):
    """Settings of `gpupack queue`. Each field with an option is one of the command, whose help explains it.

    Attributes:
        write_timeout_s: A write without an answer for so long has failed or never will.
        stale_s: Age of the view, in seconds, from which nothing is admitted; from 10.
    """

    config: str = option(metavar="FILE", help="YAML with the queues; read again when it changes.")
    _: KW_ONLY
    kubeconfig: str | None = kubeconfig_option()
    http: str = option("127.0.0.1:8914", help="HOST:PORT of health, metrics, status.")
    node_policy: str = option(DEFAULT_NODE_POLICY, help="As of the scheduler.")
    node_policy_parameters: Mapping[str, str] = option(
        {},
        name="node-policy-parameter",
        repeat=True,
        metavar="NAME=VALUE",
        help="A parameter of the node policy; may be repeated. The configuration may have others.",
    )
    card_policy: str = option(DEFAULT_CARD_POLICY, help="As of the scheduler.")
    unit_mib: int = option(MIB_PER_GIB, least=1, most=MAX_UNIT_MIB, help="MiB of one unit.")
    leader_elect: bool = option(False, shown=False, help="Only the leader admits pods.")
    lease_name: str = option("gpupack-queue")
    committer: str | None = option(
        None,
        metavar="URL",
        help="Scheduler that binds pods with schedulerName gpupack-batch (gpupack scheduler --commit).",
    )
    follow_lease: str | None = follow_lease_option(
        "Be elected only while the kube-scheduler of this pod holds that Lease."
    )
    write_timeout_s: float = 4.0
    stale_s: float = 180.0
    log_level: str = log_level_option()
    log_format: str = log_format_option()

    @property
    def longest_write_s(self) -> float:
        """Seconds for which what a process before this one has decided may take effect.

        The committer sends what it was handed within a write's time, and that takes effect within another.
        """
        return self.write_timeout_s * (1 if self.committer is None else 2)

    def describe_decisions(self, text: str) -> "DecisionSettings":
        """Say by what this process decides, with the text of the configuration in force."""
        return DecisionSettings(
            text, self.node_policy, dict(self.node_policy_parameters), self.card_policy, self.unit_mib
        )

    def make_policies(self) -> "ClusterPolicies":
        from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies

        return ClusterPolicies(self.node_policy, self.card_policy, self.node_policy_parameters, INDEXED)

    def find_policy_faults(
        self, node_policy: str | None, parameters: Mapping[str, Mapping[str, str]]
    ) -> list[str]:
        """Say what is wrong with the node policies of a configuration; None: it names none."""
        policies = self.make_policies()
        given: dict[str, Mapping[str, Mapping[str, str]]] = {
            "nodePolicy": {},
            "nodePolicyParameters": parameters,
        }
        for key, each in given.items():
            try:
                policies.configure(node_policy, each)
            except PolicyError as error:
                return [f"{key}: {error}"]
        return []

    def _list_follower_faults(self) -> Iterator[str]:
        if self.follow_lease is not None and not self.leader_elect:
            yield f"--follow-lease {self.follow_lease!r} without an election; allowed: with --leader-elect"
        yield from list_follower_faults(self.follow_lease, "write timeout", self.write_timeout_s)

    def check(self) -> None:
        from kubeapi.urls import find_url_faults
        from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies

        faults = [
            *list_election_faults(self, "write timeout", self.write_timeout_s),
            *self._list_follower_faults(),
            *find_address_faults("--http", self.http),
            *(find_url_faults("--committer", self.committer) if self.committer is not None else ()),
            *list_kubeconfig_faults(self.kubeconfig),
            *find_faults(self),
        ]
        for make in (
            partial(ClusterPolicies, self.node_policy, parameters=self.node_policy_parameters),
            partial(ClusterPolicies, card_policy_name=self.card_policy),
        ):
            try:
                make()
            except (PolicyError, AllocatorError) as error:
                faults.append(str(error))
        if not self.stale_s >= MIN_STALE_S:
            faults.append(f"stale limit {self.stale_s:g} s; allowed: {MIN_STALE_S:g} or more")
        if faults:
            raise SettingsError("\n".join(faults))
