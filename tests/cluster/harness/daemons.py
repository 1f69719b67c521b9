"""`gpupack node` and `gpupack scheduler` as processes, the way a user starts them."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.harness.node import NodeSide
from tests.cluster.harness.polling import until
from tests.cluster.harness.processes import Process, tail

REPOSITORY = Path(__file__).resolve().parents[3]
GPUPACK = (sys.executable, "-m", "gpupack")


def run_gpupack(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of gpupack to its end."""
    command = [*GPUPACK, *arguments, f"--kubeconfig={kubeconfig}"]
    return subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=400)


class _Daemon:
    """A command of gpupack with an HTTP port; start, kill and start again with the same arguments.

    Attributes:
        flags: Added to the arguments at the next start.
        module: What runs at the next start.
        environment: Its variables besides ours.
        prefix: A command that runs it.
    """

    def __init__(self, name: str, arguments: list[str], log: Path, port: int) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self.flags: list[str] = []
        self.module = "gpupack"
        self.environment: dict[str, str] = {}
        self.prefix: list[str] = []
        self._arguments = arguments
        self._process: Process | None = None

    def start(self, *, ready: bool = True) -> None:
        """Start it; with `ready` return when /readyz says so."""
        assert self._process is None, f"{self.name} already runs"
        command = [*self.prefix, sys.executable, "-m", self.module, *self._arguments, *self.flags]
        self._process = Process(self.name, command, self.log, cwd=REPOSITORY, environment=self.environment)
        if ready:
            self.wait_ready()

    def revive(self) -> None:
        """Start it where it does not run."""
        if not self.alive:
            self.kill()
            self.start()

    def wait_ready(self) -> None:
        """Return once /readyz answers 200.

        Raises:
            AssertionError: If it ended or is not ready in time; shows its log.
        """
        try:
            until(lambda: not self.alive or self.is_ready(), f"{self.name} ready")
            assert self.alive, f"{self.name} ended"
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from error

    def is_ready(self) -> bool:
        try:
            return self.http("/readyz") is not None
        except OSError:
            return False

    def why_not_ready(self) -> str:
        """What /readyz says while it is not 200; empty when it is, or when nobody answers."""
        try:
            self.http("/readyz")
        except urllib.error.HTTPError as refused:
            return refused.read().decode()
        except OSError:
            pass
        return ""

    def http(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=20) as answer:
            return str(answer.read(), "utf-8")

    def samples(self, name: str, **labels: str) -> list[float]:
        """The values of all samples of a name that have these labels among theirs."""
        return [
            float(sample.value)
            for family in text_string_to_metric_families(self.http("/metrics"))
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def metric(self, name: str) -> float:
        lines = (line.rsplit(maxsplit=1) for line in self.http("/metrics").splitlines())
        (value,) = [float(words[1]) for words in lines if words and words[0] == name]
        return value

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def stop(self) -> int | None:
        """SIGTERM; returns the exit status, None if it had to be killed."""
        assert self._process is not None
        process, self._process = self._process, None
        return process.stop()

    def tail(self, lines: int = 40) -> str:
        return tail(self.log, lines)


class NodeDaemon(_Daemon):
    """`gpupack node` at the real kubelet's sockets.

    Args:
        profile: Simulated GPUs, or the name of the source of real ones.
    """

    def __init__(
        self, node: NodeSide, kubeconfig: Path, profile: dict[str, Any] | str, port: int, *extra: str
    ) -> None:
        self.profile = node.kubelet_dir.parent / "gpus.yaml"
        self.profile.write_text(yaml.safe_dump(profile))
        self.gpus = (
            ["--gpus", profile]
            if isinstance(profile, str)
            else ["--gpus", "simulated", "--profile", str(self.profile)]
        )
        arguments = {
            "--node-name": node.name,
            "--kubeconfig": str(kubeconfig),
            "--device-plugin-dir": str(node.device_plugin_dir),
            "--kubelet-dir": str(node.kubelet_dir),
            "--http": f"127.0.0.1:{port}",
        }
        flat = [word for pair in arguments.items() for word in pair]
        log = node.log_dir / "gpupack-node.log"
        super().__init__("gpupack-node", ["node", *self.gpus, *flat, *extra], log, port)

    def beside(self, port: int) -> "_Daemon":
        """Another daemon for the same node, as of a second DaemonSet; not started."""
        arguments = [*self._arguments, "--http", f"127.0.0.1:{port}"]
        return _Daemon("second-gpupack-node", arguments, self.log.with_name("second-gpupack-node.log"), port)


class Extender(_Daemon):
    """`gpupack scheduler` on plain HTTP."""

    def __init__(self, kubeconfig: Path, log_dir: Path, port: int, *extra: str) -> None:
        arguments = ["scheduler", "--kubeconfig", str(kubeconfig), "--http", f"127.0.0.1:{port}", *extra]
        super().__init__("gpupack-scheduler", arguments, log_dir / "gpupack-scheduler.log", port)

    def call(self, verb: str, body: Any) -> Any:
        request = urllib.request.Request(
            f"{self.url}/{verb}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())


class QueueController(_Daemon):
    """`gpupack queue` with a configuration that tests change."""

    def __init__(self, kubeconfig: Path, folder: Path, log_dir: Path, port: int, *extra: str) -> None:
        self.config = folder / "queues.yaml"
        arguments = ["queue", "--config", str(self.config), "--kubeconfig", str(kubeconfig)]
        arguments += ["--http", f"127.0.0.1:{port}", *extra]
        super().__init__("gpupack-queue", arguments, log_dir / "gpupack-queue.log", port)

    def status(self) -> Any:
        """What `gpupack queue status` shows."""
        return json.loads(self.http("/status"))


class Autoscale(_Daemon):
    """`gpupack autoscale`."""

    def __init__(self, kubeconfig: Path, log_dir: Path, port: int, *extra: str) -> None:
        arguments = ["autoscale", "--kubeconfig", str(kubeconfig), "--http", f"127.0.0.1:{port}", *extra]
        super().__init__("gpupack-autoscale", arguments, log_dir / "gpupack-autoscale.log", port)


class Dashboard(_Daemon):
    """`gpupack dashboard`."""

    def __init__(self, kubeconfig: Path, log_dir: Path, port: int, *extra: str) -> None:
        arguments = ["dashboard", "--no-browser", "--log-level=debug", "--kubeconfig", str(kubeconfig)]
        arguments += ["--http", f"127.0.0.1:{port}", *extra]
        super().__init__("gpupack-dashboard", arguments, log_dir / "gpupack-dashboard.log", port)
        self.teams_tls = any("tls-cert" in each for each in extra)
