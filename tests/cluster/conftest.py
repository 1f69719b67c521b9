"""Real cluster tests: skipped with a plain reason where they cannot run, failed where they must (CI)."""

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import Cluster, binaries, shipped, workload
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.daemons import QueueController

StartQueue = Callable[..., QueueController]
LIVE: list[Cluster] = []
BUILT = "gpupack_built"
# Files that take longest begin first, so that no worker is left with one of them in the end.
LONGEST = (
    "test_restarts",
    "test_sharing",
    "test_shipped_pods",
    "test_kubelet_script",
    "test_verify",
    "test_controllers",
    "test_dra_faults",
    "test_dra",
    "test_dra_installed",
    "test_manifests",
    "test_dra_mixed",
    "test_autoscaler",
    "test_rollouts",
    "test_batch",
    "test_queue",
    "test_policies",
    "test_teams",
    "test_kubelet_checkpoint",
    "test_chart",
    "test_limits",
    "test_card",
    "test_karpenter",
    "test_autoscale",
    "test_repartition",
    "test_uninstall",
    "test_components",
    "test_pod_groups",
    "test_identity",
)
SHOWN = ("gpupack", "kube-scheduler", "kubelet", "kueue", *(each.name for each in binaries.CONTROLLERS))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/cluster/" in item.path.as_posix():
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist that its controller builds: what cannot be built is told once."""
    node.workerinput[BUILT] = True


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Build the programs before the first test: minutes that must not count against its limit."""
    controller = session.config.pluginmanager.has_plugin("dsession")
    wanted = controller or any(item.get_closest_marker("cluster") for item in session.items)
    if session.config.option.collectonly or not wanted or binaries.obstacle() is not None:
        return
    if getattr(session.config, "workerinput", {}).get(BUILT):
        return
    try:
        binaries.build()
    except (FileNotFoundError, ValueError) as error:
        raise pytest.UsageError(str(error)) from error
    except RuntimeError as error:
        pytest.exit(str(error), returncode=1)


@pytest.fixture(scope="session", autouse=True)
def _machine() -> None:
    """Skip everything here with the reason, or fail with it where a skip would be a lie."""
    reason = binaries.obstacle()
    if reason is None:
        return
    if os.environ.get("CI") == "true" or os.environ.get("GPUPACK_CLUSTER_REQUIRED") == "1":
        pytest.fail(f"cluster tests are required here: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def make_cluster() -> Iterator[Any]:
    """A function that starts a cluster which lives until the module's tests are through."""
    started: list[Cluster] = []

    def make(*arguments: Any, start: Callable[[Cluster], None] = Cluster.start, **options: Any) -> Cluster:
        cluster = Cluster(*arguments, **options)
        started.append(cluster)
        LIVE.append(cluster)
        start(cluster)
        return cluster

    yield make
    for cluster in reversed(started):
        LIVE.remove(cluster)
        cluster.stop()


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gpupack's image, built here, once for all workers."""
    reason = shipped.obstacle()
    if reason is not None:
        assert os.environ.get("GPUPACK_IMAGE_REQUIRED") != "1", reason
        pytest.skip(reason)
    # A worker of pytest-xdist has a folder of its own in the run's.
    folder = tmp_path_factory.getbasetemp()
    target = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "gpupack.tar"
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            shipped.build_image(target)
    return target


@pytest.fixture(scope="module")
def two_cards(make_cluster: Any) -> Cluster:
    """A cluster of a module's own, whose node has two cards of 8 GiB."""
    cluster: Cluster = make_cluster(workload.cards(8192, 8192))
    return cluster


@pytest.fixture
def cluster(two_cards: Cluster) -> Cluster:
    """Clear the two cards before a test; modules that need another cluster have a fixture of this name."""
    two_cards.clear()
    return two_cards


@pytest.fixture(scope="module")
def start_queue() -> Iterator[StartQueue]:
    """Start `gpupack queue` with the rights of its own manifests, or as an administrator."""
    started: list[QueueController] = []

    def start(cluster: Cluster, config: str, *flags: str, is_admin: bool = False) -> QueueController:
        kubeconfig = cluster.control.admin_config
        if not is_admin:
            kubeconfig = cluster.use_account("gpupack-queue")
        queue = QueueController(kubeconfig, cluster.home, cluster.control.log_dir, *free_ports(1))
        queue.flags = [*flags]
        started.append(queue)
        queue.config.write_text(config)
        queue.start()
        return queue

    yield start
    for queue in started:
        queue.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Show the end of gpupack's and the cluster's logs with every failure."""
    report = yield
    if report.failed:
        for cluster in LIVE:
            if (told := cluster.explain()) is not None:
                report.sections.append(("/explain of gpupack-node", told))
            logs = cluster.logs(60)
            report.sections += [(f"log of {name}", logs[name]) for name in logs if name.startswith(SHOWN)]
    return report
