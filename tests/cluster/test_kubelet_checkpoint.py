"""The real kubelet's checkpoint, with the shipped daemon beside it: what our accounts may build on.

What the kubelet does alone, with a plugin that does as told, is in tests/scripts/kubelet_steps_checkpoint.py.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from deviceplugin.errors import CheckpointError
from deviceplugin.kubelet.checkpoint import CHECKPOINT_NAME, Checkpoint, CheckpointReader
from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.views import grants, words_never_below

pytestmark = pytest.mark.telling

RESOURCE = "gpupack.io/gpu-memory-gib"
GRACE_S = 120
"""Longer than pods take to start on a machine under load."""
# Does not end when asked to.
STUBBORN = ("/bin/sh", "-c", "trap '' TERM; while true; do /bin/sleep 0.2; done")


def read(cluster: Cluster) -> Checkpoint:
    checkpoint = CheckpointReader(cluster.host.device_plugin_dir).read()
    assert checkpoint is not None, "there is no checkpoint"
    return checkpoint


def registered(cluster: Cluster) -> list[str]:
    """Every device ID of ours that was healthy when the checkpoint was written."""
    data = json.loads((cluster.host.device_plugin_dir / CHECKPOINT_NAME).read_bytes())["Data"]
    return data["RegisteredDevices"][RESOURCE]


def entries(cluster: Cluster, uid: str) -> dict[str, dict[str, int]]:
    """What the checkpoint says of one pod: units by card for each container."""
    found: dict[str, dict[str, int]] = {}
    for entry in read(cluster).entries:
        if (entry.uid, entry.resource) == (uid, RESOURCE):
            cards = [identifier.rpartition("::")[0] for identifier in entry.ids]
            found[entry.container] = {card: cards.count(card) for card in cards}
    return found


def bound(cluster: Cluster, pod: dict) -> dict:
    """A pod that the extender never saw."""
    return pod | {"spec": pod["spec"] | {"nodeName": cluster.node_name}}


def restart(cluster: Cluster, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Kill the kubelet, do something, start it, and wait until it follows our devices again."""
    cluster.register_again(cluster.host.kill_kubelet, meanwhile, cluster.host.start_kubelet)
    until(cluster.node_ready, "node ready")


def test_every_container_stands_under_its_pods_uid(cluster):
    """Init container, sidecar and two mains: the checkpoint says of each what its environment says."""
    init = [w.container("prepare", 3, ("/bin/true",)), w.container("side", 1, sidecar=True)]
    uid = cluster.create(w.pod("many", w.container(gib=2), w.container("second", gib=1), init=init))
    cluster.wait_running("many")
    found = entries(cluster, uid)
    assert {name: sum(cards.values()) for name, cards in found.items()} == {
        "prepare": 3,
        "side": 1,
        "main": 2,
        "second": 1,
    }
    for name in ("side", "main", "second"):
        assert found[name] == grants(cluster, "many", name)
    checkpoint = read(cluster)
    ids = {entry.container: entry.ids for entry in checkpoint.entries if entry.uid == uid}
    assert len(ids["side"] | ids["main"] | ids["second"]) == 4, "running containers share nothing"
    assert ids["prepare"] < ids["side"] | ids["main"] | ids["second"], (
        "who comes after has the init container's"
    )
    assert len(registered(cluster)) == 16
    cluster.wait_used([0, 4])


def test_restarts_leave_the_checkpoint_as_it_is(cluster):
    """Whoever restarts, and with the kubelet away: the same entries.

    All of the pod's containers run: a kubelet that starts asks again for one that does not, as an ordinary
    init container that has ended, and refuses the pod if it knows no devices yet.
    """
    uid = cluster.create(w.pod("kept", w.container(gib=2), init=[w.container("side", 6, sidecar=True)]))
    cluster.wait_running("kept")
    before, seen = entries(cluster, uid), []
    assert before.keys() == {"side", "main"}
    until(lambda: sum(cluster.state().used) == 8, "the pod published")
    restart(cluster, lambda: seen.append(entries(cluster, uid)))
    assert seen == [before]
    assert entries(cluster, uid) == before
    since = time.time()
    cluster.daemon.kill()
    assert entries(cluster, uid) == before
    cluster.daemon.start()
    cluster.wait_registered(since)
    assert entries(cluster, uid) == before


def test_an_entry_is_dropped_while_containers_run(cluster):
    """Deleted by force, the pod leaves the checkpoint with the next allocation; its processes run on."""
    uid = cluster.create(
        w.pod("stubborn", w.container(gib=8, command=STUBBORN), terminationGracePeriodSeconds=GRACE_S)
    )
    status = cluster.wait_running("stubborn")["status"]
    container = status["containerStatuses"][0]["containerID"].partition("://")[2]
    (card,) = entries(cluster, uid)["main"]
    cluster.wait_used([0, 8])
    # Asked to end first, with its whole grace, and then deleted by force: the grace goes on.
    cluster.delete("stubborn", grace_s=GRACE_S, wait=False)
    cluster.delete("stubborn", grace_s=0)
    cluster.run(w.pod("next", w.container(gib=1)))
    until(lambda: not entries(cluster, uid), "the entry is dropped")
    assert cluster.host.pids(container), "its processes run"
    assert cluster.state().used_by_uuid[card] == 8
    for pid in cluster.host.pids(container):
        # Its `sleep` may have ended since, or ends with the first process.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    cluster.wait_used([0, 1])


REFUSED = {
    "SysctlForbidden": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
    "NodeAffinity": {"nodeSelector": {"no": "such"}},
    "PodOSNotSupported": {"os": {"name": "windows"}},
    "OutOfcpu": {},
}
"""Reasons why a kubelet refuses a pod, and specifications that it refuses; only the first before devices."""


LOOKS = 10
"""Pods that are refused for one reason before its entry must have been read."""


def seen_until_refused(cluster: Cluster, uid: str, name: str, reason: str) -> set[int]:
    """How many units the checkpoint ever said that a pod has, until it is refused.

    Read beside the questions to the API server: the daemon has the entry dropped within milliseconds, too few
    for some reads on a machine under load.
    """
    reader, seen, refused = CheckpointReader(cluster.host.device_plugin_dir), set(), threading.Event()

    def follow() -> None:
        while not refused.wait(0.0005):
            seen.update(len(entry.ids) for entry in reader.read().entries if entry.uid == uid)

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        try:
            until(lambda: cluster.pod(name)["status"].get("reason") == reason, f"refused for {reason}")
        finally:
            refused.set()
        following.result()
    return seen


def test_a_refused_pod_may_stand_in_the_checkpoint(cluster):
    """What the kubelet checks after it gave devices leaves an entry, until the next allocation at most.

    What it gave counts on until it is certain that nothing of the pod runs.
    """
    for running, (reason, spec) in enumerate(REFUSED.items()):
        name, limits = reason.lower(), {"cpu": 1000} if reason == "OutOfcpu" else {}
        units = set() if reason == "SysctlForbidden" else {3}
        for _ in range(LOOKS):
            uid = cluster.create(bound(cluster, w.pod(name, w.container(gib=3, limits=limits), **spec)))
            if (seen := seen_until_refused(cluster, uid, name, reason)) == units:
                break
            cluster.delete(name)
            until(lambda only=running: sum(cluster.state().used) == only, "the cards have room again")
        assert seen == units, reason
        cluster.run(w.pod(f"after-{name}", w.container(gib=1)))
        assert not entries(cluster, uid), reason
    until(lambda: sum(cluster.state().used) == len(REFUSED), "only what runs is charged")


def lose(cluster: Cluster) -> None:
    (cluster.host.device_plugin_dir / CHECKPOINT_NAME).unlink()


def tear(cluster: Cluster) -> None:
    path = cluster.host.device_plugin_dir / CHECKPOINT_NAME
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        read(cluster)


def falsify(cluster: Cluster) -> None:
    path = cluster.host.device_plugin_dir / CHECKPOINT_NAME
    changed = json.loads(path.read_bytes())
    changed["Checksum"] ^= 1
    path.write_text(json.dumps(changed))


@pytest.mark.parametrize("spoil", [lose, tear, falsify])
def test_a_spoilt_checkpoint_forgets_running_pods(cluster, spoil):
    """The kubelet begins a new one with our first list; the words go on counting what runs."""
    uid = cluster.create(w.pod("running", w.container(gib=5)))
    cluster.wait_running("running")
    (card,) = entries(cluster, uid)["main"]
    cluster.wait_used([0, 5])
    floor = [5 if one.uuid == card else 0 for one in cluster.state().cards]
    with words_never_below(cluster, floor):
        restart(cluster, lambda: spoil(cluster))
        assert len(registered(cluster)) == 16
        assert not entries(cluster, uid)
        new = cluster.create(w.pod("new", w.container(gib=8)))
        cluster.wait_running("new")
        cluster.wait_used([5, 8])
    assert card not in entries(cluster, new)["main"]
    assert not entries(cluster, uid)


def test_a_torn_checkpoint_keeps_no_daemon_from_starting(cluster):
    """The kubelet, also one that starts with it, writes its checkpoint when it gets our list, not before."""
    cluster.run(w.pod("running", w.container(gib=5)))
    cluster.wait_used([0, 5])
    floor = cluster.state().used
    with words_never_below(cluster, floor):
        for round_, restarted in enumerate((False, True)):
            since = time.time()
            cluster.daemon.kill()
            if restarted:
                cluster.host.kill_kubelet()
            tear(cluster)
            cluster.daemon.start(ready=False)
            if restarted:
                cluster.host.start_kubelet()
            cluster.wait_registered(since)
            until(cluster.node_ready, "node ready")
            cluster.run(w.pod(f"new-{round_}", w.container(gib=3)))
        cluster.wait_used([3, 8])


def test_a_pod_bound_while_the_kubelet_is_away_finds_its_room(cluster):
    """The kubelet admits its first batch against the checkpoint as it was: nothing of it may be promised."""
    cluster.run(*(w.pod(name, w.container(gib=8)) for name in ("a", "b")))
    cluster.wait_used([8, 8])
    cluster.delete("a")
    cluster.wait_used([0, 8])
    cluster.host.kill_kubelet()
    cluster.create(w.pod("c", w.container(gib=8)))
    cluster.wait_bound("c")
    cluster.host.start_kubelet()
    cluster.wait_running("c")
    cluster.wait_used([8, 8])
