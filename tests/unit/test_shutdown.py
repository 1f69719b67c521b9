"""How long the daemon's end waits, and for what."""

import asyncio
from pathlib import Path

from structlog.testing import capture_logs

from deviceplugin.kubelet.registration import RegistrationTimeouts
from deviceplugin.publishing.shutdown import ShutdownTimeouts, publish_full_and_wait
from kubeapi.serving import GRACE_S
from tests.yaml_text import read_yaml

FOR_EVER_S = 1e6


class Bench:
    """Counts looks at the pods; those under way are gone after so many."""

    def __init__(self, looks_under_way: float = 0) -> None:
        self.left = looks_under_way
        self.looks = 0
        self.said = 0

    async def publish(self) -> None:
        self.said += 1

    def under_way(self) -> bool:
        self.looks += 1
        self.left -= 1
        return self.left >= 0


async def test_pods_on_their_way_are_waited_for():
    bench = Bench(5)
    await publish_full_and_wait(
        bench.publish, bench.under_way, ShutdownTimeouts(late_s=0.0, admit_s=FOR_EVER_S)
    )
    assert (bench.said, bench.looks) == (1, 6)


async def test_without_pods_the_late_ones_are_waited_for_all_the_same():
    bench = Bench()
    ending = asyncio.create_task(
        publish_full_and_wait(
            bench.publish, bench.under_way, ShutdownTimeouts(late_s=FOR_EVER_S, admit_s=FOR_EVER_S)
        )
    )
    await asyncio.sleep(0.1)
    assert not ending.done()
    assert bench.said == 1
    ending.cancel()


async def test_a_pod_that_never_gets_devices_is_not_waited_for_longer_than_the_limit():
    bench = Bench(float("inf"))
    with capture_logs() as logs:
        await publish_full_and_wait(bench.publish, bench.under_way, ShutdownTimeouts(late_s=0.0, admit_s=0.1))
    assert [entry["event"] for entry in logs] == ["pods are on their way without devices"]


async def test_an_api_server_that_is_away_is_not_waited_for_longer_than_the_limit():
    bench = Bench(float("inf"))
    with capture_logs() as logs:
        await publish_full_and_wait(asyncio.Event().wait, bench.under_way, ShutdownTimeouts(publish_s=0.05))
    assert [entry["event"] for entry in logs] == ["the words go on offering cards"]
    assert bench.looks == 0


def test_the_longest_end_is_within_the_grace_period_of_the_shipped_pod():
    manifest = Path(__file__).parents[2] / "manifests" / "node" / "daemonset.yaml"
    grace_s = read_yaml(manifest.read_text())["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    patience = ShutdownTimeouts()
    shutdown_s = patience.publish_s + patience.admit_s
    # Streams that are to end, then calls; and requests over HTTP.
    assert shutdown_s + 2 * RegistrationTimeouts().grace_s + GRACE_S < grace_s
