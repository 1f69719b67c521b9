"""Settings of the extender, checked as a whole: every fault is told at once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from allocator.errors import AllocatorError
from allocator.names import (
    DEFAULT_CARD_POLICY,
    DEFAULT_NODE_POLICY,
    MAX_UNIT_MIB,
    MIB_PER_GIB,
    SCHEDULER_NAME,
)
from kubeapi.addresses import find_address_faults, is_loopback
from kubeapi.options import find_faults, option
from kubeapi.process_options import (
    MIN_STALE_S,
    ElectionOptions,
    follow_lease_option,
    kubeconfig_option,
    list_election_faults,
    list_follower_faults,
    list_kubeconfig_faults,
    list_tls_faults,
    log_format_option,
    log_level_option,
)
from scheduler_plugin.errors import PolicyError, SettingsError

MAX_SHORTLIST: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ElectionOptions):
    """Settings of the extender. Each field with an option is one of `gpupack scheduler`.

    Attributes:
        node_policy_parameters: Text by name.
        bind_timeout_s: T: a Binding without an answer for so long has failed or never will.
    """

    kubeconfig: str | None = kubeconfig_option()
    http: str = option("127.0.0.1:8910", help="HOST:PORT to serve on.")
    metrics_http: str | None = option(
        None,
        metavar="HOST:PORT",
        help="Serve /healthz /readyz /metrics there too: without TLS, without the verbs.",
    )
    node_policy: str = option(DEFAULT_NODE_POLICY, help="Ranks nodes.")
    node_policy_parameters: Mapping[str, str] = option(
        {},
        name="node-policy-parameter",
        repeat=True,
        metavar="NAME=VALUE",
        help="A parameter of the node policy; may be repeated.",
    )
    card_policy: str = option(DEFAULT_CARD_POLICY, help="Chooses cards on a node.")
    rank_all_pods: bool = option(
        False, help="Rank nodes for pods without GPU too, where kube-scheduler is told to ask about them."
    )
    shortlist: int = option(
        16,
        least=0,
        most=MAX_SHORTLIST,
        zero_means="all",
        help="Nodes filter returns; 0 for all that fit.",
    )
    unit_mib: int = option(
        MIB_PER_GIB, least=1, most=MAX_UNIT_MIB, help="MiB of one unit; names the resource."
    )
    tls_cert: str | None = option(
        None, name="tls-cert-file", metavar="FILE", help="PEM; with the key, the server speaks TLS only."
    )
    tls_key: str | None = option(None, name="tls-key-file", metavar="FILE", help="PEM.")
    tls_client_ca: str | None = option(
        None,
        name="tls-client-ca-file",
        metavar="FILE",
        help="PEM; then filter, prioritize, bind and preempt want a client certificate of this authority. "
        "Needed where --http is not a loopback address.",
    )
    anonymous_auth: bool = option(
        False, help="Let everybody who reaches --http bind and evict pods, in place of --tls-client-ca-file."
    )
    leader_elect: bool = option(False, shown=False, help="For the Service form: only the leader answers.")
    lease_name: str = option(f"{SCHEDULER_NAME}-extender")
    lease_s: int = 15
    bind_timeout_s: float = option(4.0, name="bind-timeout", help="Seconds.")
    stale_s: float = option(
        180.0,
        name="stale-after",
        least=MIN_STALE_S,
        help="Seconds without word from the API server from which filter answers with an error; from 10.",
    )
    commit: bool = option(
        False,
        help="Bind pods with schedulerName gpupack-batch that a queue hands over: gpupack queue --committer.",
    )
    follow_lease: str | None = follow_lease_option(
        "With --commit: bind only while the kube-scheduler of this pod holds that Lease."
    )
    preemption: bool = option(
        True,
        help="Evict pods of smaller priority for one that no card has room for, though its node's sum has.",
    )
    log_level: str = log_level_option()
    log_format: str = log_format_option()

    def check(self) -> None:
        of_http = list(find_address_faults("--http", self.http))
        faults = [
            *(of_http or self._exposure_faults()),
            *(
                find_address_faults("--metrics-http", self.metrics_http)
                if self.metrics_http is not None
                else ()
            ),
            *self._policy_faults(),
            *self._tls_faults(),
            *list_election_faults(self, "--bind-timeout", self.bind_timeout_s),
            *list_follower_faults(self.follow_lease, "--bind-timeout", self.bind_timeout_s),
            *list_kubeconfig_faults(self.kubeconfig),
            *find_faults(self),
        ]
        if faults:
            raise SettingsError("\n".join(faults))

    def _policy_faults(self) -> list[str]:
        from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
        from scheduler_plugin.scheduling.policies import NODE_POLICIES, list_names
        from scheduler_plugin.scheduling.policies.registry import ranks_plain_pods

        faults = []
        try:
            policy = ClusterPolicies(self.node_policy, parameters=self.node_policy_parameters).cluster_policy
            if self.rank_all_pods and not ranks_plain_pods(policy):
                able = ", ".join(name for name in list_names() if ranks_plain_pods(NODE_POLICIES.made(name)))
                faults.append(f"--rank-all-pods with node policy {self.node_policy}; allowed: {able}")
        except PolicyError as error:
            faults.append(str(error))
        try:
            ClusterPolicies(card_policy_name=self.card_policy)
        except AllocatorError as error:
            faults.append(str(error))
        return faults

    def _exposure_faults(self) -> list[str]:
        """Say where somebody could bind and evict pods whom nobody meant to let."""
        if self.tls_client_ca is not None and self.anonymous_auth:
            return [
                f"--anonymous-auth with --tls-client-ca-file {self.tls_client_ca!r}; allowed: one of the two"
            ]
        if self.tls_client_ca is not None or self.anonymous_auth or is_loopback(self.http):
            return []
        allowed = "a loopback address, a client CA (--tls-client-ca-file), or --anonymous-auth where all may"
        return [f"--http {self.http!r}: whoever reaches it could bind and evict pods; allowed: {allowed}"]

    def _tls_faults(self) -> Iterator[str]:
        if self.tls_client_ca is not None and self.tls_cert is None:
            where = "allowed with --tls-cert-file and --tls-key-file only"
            yield f"--tls-client-ca-file {self.tls_client_ca!r}: {where}"
        yield from list_tls_faults("--tls", self.tls_cert, self.tls_key, self.tls_client_ca)
