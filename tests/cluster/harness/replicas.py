"""Replicas of the scheduler's pod: kube-scheduler, and by its Lease the extender and the queue beside it."""

from tests.cluster.harness import binaries
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.controlplane import extender_entry, free_ports
from tests.cluster.harness.daemons import Extender, QueueController
from tests.cluster.harness.processes import Process

LEASE = "kube-system/gpupack-scheduler"
LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gpupack-scheduler"


class Replica:
    """One of several pods of the scheduler; each process of it has the pod's name as its host name.

    Attributes:
        name: Of the pod.
        extender: `gpupack scheduler`.
        queue: `gpupack queue`.
    """

    def __init__(self, cluster: Cluster, name: str, queues: str) -> None:
        """Prepare files; nothing runs yet."""
        control = cluster.control
        folder = cluster.home / name
        folder.mkdir()
        extender_port, queue_port, self._port = free_ports(3)
        in_pod = ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', name]
        follow = f"--follow-lease={LEASE}"
        self.name = name
        self.extender = Extender(control.admin_config, folder, extender_port, "--commit", follow)
        self.queue = QueueController(
            control.admin_config,
            folder,
            folder,
            queue_port,
            "--committer",
            self.extender.url,
            follow,
            "--leader-elect",
        )
        for daemon in (self.extender, self.queue):
            daemon.prefix = in_pod
        self.queue.config.write_text(queues)
        self._in_pod, self._folder, self._cluster = in_pod, folder, cluster
        self._scheduler: Process | None = None

    def start(self) -> None:
        self.start_kube_scheduler()
        self.extender.start()
        self.queue.start(ready=False)

    def start_kube_scheduler(self) -> None:
        control = self._cluster.control
        config = self._folder / "scheduler.json"
        control.write_scheduler_config(
            config,
            leaderElection={
                "leaderElect": True,
                "resourceNamespace": LEASE.partition("/")[0],
                "resourceName": LEASE.partition("/")[2],
                "leaseDuration": "15s",
                "renewDeadline": "10s",
                "retryPeriod": "2s",
            },
            extenders=[extender_entry(self.extender.url)],
        )
        kubeconfig = control.admin_config
        command = [
            *self._in_pod,
            str(binaries.programs() / "kube-scheduler"),
            f"--config={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={control.certificates}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
        ]
        log = self._folder / "kube-scheduler.log"
        self._scheduler = Process(f"kube-scheduler of {self.name}", command, log, cwd=self._folder)

    def kill_kube_scheduler(self) -> None:
        """SIGKILL to kube-scheduler alone; the Lease is taken by another one when it has run out."""
        if self._scheduler is not None:
            self._scheduler.kill()
            self._scheduler = None

    def kill(self) -> None:
        """SIGKILL to the whole pod."""
        self.extender.kill()
        self.queue.kill()
        self.kill_kube_scheduler()

    def bound(self) -> float:
        """Pods of batch mode that it has bound since it started."""
        return self.extender.metric('gpupack_extender_batch_pods_total{outcome="bound"}')

    def leads(self) -> bool:
        """Whether its kube-scheduler has the Lease."""
        holder = self._cluster.api.get(LEASE_PATH)["spec"].get("holderIdentity", "")
        return bool(holder.partition("_")[0] == self.name)
