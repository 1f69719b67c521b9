"""Memory limits on a real kubelet's containers: the shipped daemon finds each cgroup, and growth is refused.

The cards are simulated and so are their limits; kubelet, containerd, cgroups and the checkpoint are real.
"""

from itertools import product
from typing import Any

import pytest

from tests.cluster.harness import Cluster, cgroups, dra, growing, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.rest import Json
from tests.cluster.harness.views import cgroup_of, grants, memory


@pytest.fixture(scope="module", params=dra.NODE_KINDS)
def cluster(make_cluster, request) -> Cluster:
    def start(cluster: Cluster) -> None:
        cluster.daemon.module = growing.MODULE
        cluster.daemon.environment = {growing.DOOR: str(cluster.home / "door")}
        cluster.daemon.flags = [
            "--container-logs",
            str(cluster.home / "varlog" / "containers"),
            "--over-use-mib",
            "100",
        ]
        dra.start_as(request.param, cluster)

    return make_cluster(w.cards(8192, 8192), start=start)


def limited(cluster: Cluster, pod: str, container: str, mib: int) -> Json:
    """Wait until a container's limit is in force, and return what is said of it."""

    def found() -> Json:
        said = memory(cluster).get((pod, container), {})
        return said if said.get("limit_mib") == mib else None

    return until(found, f"limit of {pod}/{container}")


def test_every_container_is_held_to_its_own_share(cluster):
    """Init container, sidecar and main on one card, the daemon killed: each one's limit refuses growth."""
    init = [w.container("prepare", 1, ("/bin/true",)), w.container("side", 2, sidecar=True)]
    cluster.run(w.pod("held", w.container(gib=3), init=init))
    (card,) = grants(cluster, "held")
    # By claims all containers of a pod with such an init container have its effective units.
    main_units, side_units = (5, 5) if cluster.serves_claims else (3, 2)
    main_mib, side_mib = main_units << 10, side_units << 10
    assert grants(cluster, "held", "side") == {card: side_units}
    main = limited(cluster, "held", "main", main_mib)
    assert (main["held"], main["promised_mib"], main["problem"]) == ("driver", main_mib, "")
    limited(cluster, "held", "side", side_mib)
    assert ("held", "prepare") not in memory(cluster), "it has ended"
    cluster.run(w.pod("other", w.container(gib=4)))
    limited(cluster, "other", "main", 4096)

    def grow(container: str, mib: int, pid: int) -> str:
        return growing.grow(cluster.home / "door", card, pid, mib, cgroup_of(cluster, "held", container))

    assert grow("main", 3000, 900_001) == ""
    assert f"is {main_mib} MiB" in grow("main", main_mib + 28, 900_001)
    assert grow("side", side_mib, 900_002) == ""
    assert f"is {side_mib} MiB" in grow("side", side_mib + 1, 900_002)
    until(lambda: memory(cluster)["held", "main"]["used_mib"] == 3000, "use of main")
    labels = f'{{container="main",namespace="default",pod="held",uuid="{card}"}}'

    def told_mib() -> dict[str, float]:
        lines = [line for line in cluster.daemon.http("/metrics").splitlines() if labels in line]
        values = dict(line.rsplit(" ", 1) for line in lines)
        return {name.partition("{")[0]: float(value) / 2**20 for name, value in values.items()}

    expected = {
        "gpupack_container_promised_bytes": main_mib,
        "gpupack_container_used_bytes": 3000,
        "gpupack_container_limit_bytes": main_mib,
        "gpupack_container_over_use_bytes": 0,
    }
    until(lambda: told_mib() == expected, "the container's metrics")
    told = until(lambda: cluster.allocation("held").get("memory", {}).get("main"), "allocation annotation")
    assert told[card]["held"] == "driver"

    # The simulated driver forgets with its process; a daemon that starts has the checkpoint.
    cluster.daemon.kill()
    cluster.daemon.start()
    for pod, container, mib in (
        ("held", "main", main_mib),
        ("held", "side", side_mib),
        ("other", "main", 4096),
    ):
        limited(cluster, pod, container, mib)
    assert f"is {main_mib} MiB" in grow("main", main_mib + 1, 900_001)


MOOD = ("not_found", "dmem", True)
"""The others run nightly; `tests/unit/test_simulated_limits.py` goes through all of them in no cluster."""


def become(cluster: Cluster, limits: dict[str, Any], *, has_reserved: bool = False) -> None:
    """Let the node have another driver: the same cards of 8 GiB beside 512 MiB that it keeps for itself."""
    made = w.cards(8704, 8704, reserved_mib=512)
    for device in made["devices"]:
        device["memory"]["used_has_reserved"] = has_reserved
    cluster.change_cards({**made, "limits": limits})


@pytest.mark.parametrize(
    ("unset", "backend", "has_reserved"),
    [
        pytest.param(*mood, marks=() if mood == MOOD else pytest.mark.nightly)
        for mood in product(("unlimited", "not_found", "not_supported"), ("misc", "dmem"), (False, True))
    ],
)
def test_a_container_is_held_in_every_mood_of_the_driver(cluster, unset, backend, has_reserved):
    """All of an idle card fits, its limit is set and refuses, whatever the driver says of none."""
    become(cluster, {"unset": unset, "backend": backend}, has_reserved=has_reserved)
    cluster.run(w.pod("whole", w.container(gib=8)), w.pod("part", w.container(gib=3)))
    for name, mib in (("whole", 8192), ("part", 3072)):
        assert limited(cluster, name, "main", mib)["held"] == "driver"
    (card,) = grants(cluster, "part")
    place = cgroup_of(cluster, "part", "main")
    assert growing.grow(cluster.home / "door", card, 900_003, 3072, place) == ""
    assert "is 3072 MiB" in growing.grow(cluster.home / "door", card, 900_003, 3073, place)
    cluster.wait_used([3, 8])


@pytest.mark.nightly
def test_a_driver_that_lets_nobody_set_limits_holds_nothing(cluster):
    become(cluster, {"set": "no_permission"})
    cluster.run(w.pod("loose", w.container(gib=3)))
    until(lambda: memory(cluster).get(("loose", "main"), {}).get("held") == "accounted", "accounted")
    assert memory(cluster)["loose", "main"]["limit_mib"] is None


def test_a_cgroup_that_takes_no_limit_is_told(cluster):
    """The kernel's controller is not enabled for containers: no limit, and people hear of it."""
    become(cluster, {"backend": "dmem", "files": True})
    cluster.run(w.pod("open", w.container(gib=3)))
    cluster.wait_event("open", "GPUMemoryNotLimited: ")
    said = memory(cluster)["open", "main"]
    assert (said["limit_mib"], said["held"]) == (None, "accounted")
    assert "has no dmem.max" in said["problem"]


def test_without_limits_over_use_is_told(cluster):
    """`off`: nothing refuses, so the pod gets an Event, and no limit is set."""
    cluster.clear()
    cluster.daemon.stop()
    cluster.daemon.flags += ["--memory-limits", "off"]
    cluster.daemon.start()
    cluster.run(w.pod("greedy", w.container(gib=3)))
    (card,) = grants(cluster, "greedy")
    (pid, *_) = cgroups.container_pids(
        cluster.host.cgroup,
        cluster.pod("greedy")["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2],
    )
    assert growing.grow(cluster.home / "door", card, pid, 4000, cgroup_of(cluster, "greedy", "main")) == ""
    cluster.wait_event("greedy", "GPUMemoryOverUse: container main uses 4000 MiB")
    said = memory(cluster)["greedy", "main"]
    assert (said["used_mib"], said["limit_mib"], said["held"]) == (4000, None, "accounted")
    assert cluster.daemon.metric("gpupack_node_over_uses_total") == 1
