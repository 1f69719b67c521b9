"""Patches of the Node: as many as needed, again when they fail."""

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from allocator.names import NODE_HOLDS
from kubeapi.errors import Forbidden, NotFound, Unreachable
from tests.ledger_world import ids
from tests.publisher_world import Bench
from tests.running import background
from tests.waiting import until


@pytest.fixture
def bench():
    """Everything was read."""
    bench = Bench()
    bench.complete()
    return bench


async def test_nothing_is_said_before_everything_was_read():
    bench = Bench()
    assert await bench.step() is None
    bench.ledger.apply_pod_list([], 0.0, 0.0)
    assert await bench.step() is None
    bench.checkpoint()
    assert await bench.step() == 0.0
    assert bench.said() == ((0, 0), set())
    assert await bench.step() is None
    assert bench.publisher.patches == 1
    assert bench.publisher.revision == 51


async def test_nothing_is_said_where_there_is_no_node(bench):
    bench.nodes.replace([], "2")
    assert await bench.step() is None
    assert bench.api.patches == []


async def test_a_gain_waits_for_its_turn_and_comes_with_its_pod(bench):
    await bench.step()
    bench.now_s += 0.5
    bench.admit(written=False)
    assert await bench.step() == 1.5
    bench.now_s += 1.2
    bench.checkpoint(a=ids("c0", 0, 1, 2))
    assert await bench.step() == pytest.approx(0.3)
    bench.now_s += 0.3
    assert await bench.step() == 0.0
    assert bench.said() == ((3, 0), {"a"})
    holds = bench.api.decoded().read_accounted_pods()
    assert holds is not None
    assert holds.units == {"a": {0: 3}}
    assert bench.publisher.patches == 2


async def test_a_gain_of_a_pod_that_lacks_a_container_waits_a_second(bench):
    await bench.step()
    bench.now_s += 60
    bench.bind([("one", 3, "main"), ("two", 2, "main")])
    bench.allocate(0, 1, 2)
    assert await bench.step() == 1.0
    bench.now_s += 1
    assert await bench.step() == 0.0
    assert bench.said() == ((3, 0), set())
    bench.allocate(3, 4)
    bench.now_s += 2
    assert await bench.step() == 0.0
    assert bench.said() == ((5, 0), {"a"})


async def test_a_release_goes_out_at_once(bench):
    bench.admit()
    await bench.step()
    assert bench.said() == ((3, 0), {"a"})
    bench.end()
    assert await bench.step() == 0.0
    assert bench.said() == ((0, 0), set())


async def test_a_pod_that_vanished_unheld_is_told_though_the_words_are_the_same(bench):
    await bench.step()
    bench.pods.seen_version = bench.pods.owed_version = 77
    assert await bench.step() == 0.0
    assert json.loads(bench.api.node["metadata"]["annotations"][NODE_HOLDS])["seen"] == "77"
    assert await bench.step() is None


async def test_after_an_etcd_restore_seen_goes_back_on_the_node_too(bench):
    bench.pods.seen_version = 501
    await bench.step()
    bench.pods.seen_version = 50
    assert await bench.step() == 0.0
    assert json.loads(bench.api.node["metadata"]["annotations"][NODE_HOLDS])["seen"] == "50"
    assert await bench.step() is None


@pytest.mark.parametrize(
    ("theirs", "ours"), [(900, 901), ((1 << 53) - 1, 51)], ids=["grows", "begins again from the clock"]
)
async def test_words_of_another_are_overwritten_with_a_revision_of_ours(bench, theirs, ours):
    await bench.step()
    for part in ("capacity", "allocatable"):
        bench.api.node["status"][part]["gpupack.io/packed-revision"] = theirs
        bench.api.node["status"][part]["gpupack.io/packed-used-0"] = 5
    bench.api.version += 1
    bench.nodes.apply_node(bench.api.decoded())
    assert await bench.step() == 0.0
    assert bench.publisher.revision == ours
    assert bench.said() == ((0, 0), set())
    assert await bench.step() is None


async def test_a_node_that_does_not_keep_the_holds_is_patched_ever_more_seldom(bench):
    bench.api.dropped = {NODE_HOLDS}
    with capture_logs() as logs:
        await bench.until_s(bench.now_s + 60)
    # After 0.1 to 0.2 s, 0.2 to 0.4 s and so on, at last after 7.5 to 15 s.
    assert 10 <= bench.publisher.patches <= 17
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [line["differs"] for line in warnings] == [[NODE_HOLDS]]
    bench.api.dropped = set()
    await bench.until_s(bench.now_s + 15)
    assert bench.said() == ((0, 0), set())
    assert await bench.step() is None


async def test_a_release_goes_out_at_once_to_a_node_that_does_not_keep_the_holds(bench):
    bench.api.dropped = {NODE_HOLDS}
    bench.admit()
    await bench.until_s(bench.now_s + 60)
    assert await bench.step() != 0.0
    bench.end()
    assert await bench.step() == 0.0
    assert bench.api.decoded().read_words().used == (0, 0)
    assert await bench.step() != 0.0


async def test_words_that_another_writes_again_and_again_are_overwritten_ever_more_seldom(bench):
    await bench.step()
    began_s, end_s = bench.now_s, bench.now_s + 60
    with capture_logs() as logs:
        while bench.now_s < end_s:
            bench.undo()
            await bench.until_s(min(end_s, bench.now_s + 0.05))
    assert bench.publisher.patches <= 17
    assert bench.now_s - began_s == pytest.approx(60)
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [line["differs"] for line in warnings] == [["gpupack.io/packed-*"]]


async def test_words_that_another_writes_seldom_are_overwritten_at_once(bench):
    await bench.step()
    for _ in range(5):
        bench.now_s += 61
        bench.undo()
        assert await bench.step() == 0.0
        assert bench.said() == ((0, 0), set())


async def test_a_node_that_comes_again_is_patched_at_once_and_nobody_undid_it(bench):
    await bench.step()
    with capture_logs() as logs:
        for _ in range(5):
            bench.nodes.replace([], "2")
            assert await bench.step() is None
            bench.api.node["status"] = {"capacity": {}, "allocatable": {}}
            bench.api.version += 1
            bench.nodes.replace([bench.api.decoded()], "3")
            assert await bench.step() == 0.0
    assert [line for line in logs if "differs" in line] == []


async def test_a_failed_patch_is_tried_again(bench):
    bench.publisher._stepper.hurry()
    bench.api.failures = [Unreachable("away"), NotFound("no node"), Forbidden("no right")]
    for _ in range(3):
        assert await bench.step() == 0.0
    assert (bench.publisher.errors, bench.publisher.patches) == (3, 0)
    await bench.step()
    assert bench.said() == ((0, 0), set())


async def test_words_are_relied_upon_from_the_first_patch_until_they_failed_for_a_minute():
    bench = Bench()
    bench.publisher._stepper.hurry()
    bench.complete()
    assert bench.publisher.problem == "no patch of the status of Node n1 went through yet"
    bench.api.failures = [Forbidden("may not patch nodes/status")]
    await bench.step()
    refused = "the status of Node n1 cannot be patched, for 0 s now: may not patch nodes/status"
    assert bench.publisher.problem == refused
    await bench.step()
    assert bench.publisher.problem is None
    bench.now_s += 600
    assert bench.publisher.problem is None
    bench.admit()
    bench.api.failures = [Unreachable("away"), Unreachable("away")]
    await bench.step()
    bench.now_s += 59
    await bench.step()
    assert bench.publisher.problem is None
    bench.now_s += 1
    assert bench.publisher.problem == "the status of Node n1 cannot be patched, for 60 s now: away"
    await bench.step()
    assert bench.said()[0] == (3, 0)
    assert bench.publisher.problem is None


async def test_whether_patches_go_through_is_found_out_though_the_node_says_all(bench):
    await bench.step()
    again = Bench()
    again.publisher._stepper.hurry()
    again.api.node = bench.api.node
    again.nodes.replace([again.api.decoded()], "2")
    again.complete()
    again.api.failures = [Forbidden("may not patch nodes/status")]
    await again.step()
    assert "may not patch nodes/status" in again.publisher.problem
    assert await again.step() == 0.0
    assert await again.step() is None
    assert again.publisher.problem is None
    assert (again.api.empty_patches, again.publisher.patches) == (1, 0)


async def test_a_failure_ends_though_there_is_nothing_to_say_any_more():
    bench = Bench()
    bench.publisher._stepper.hurry()
    bench.complete()
    await bench.step()
    said = bench.api.node["status"]
    bench.undo()
    bench.api.failures = [Unreachable("away")]
    await bench.step()
    bench.api.node["status"] = {
        part: {**words, "gpupack.io/packed-used-0": 0} for part, words in said.items()
    }
    bench.api.version += 1
    bench.nodes.apply_node(bench.api.decoded())
    bench.now_s += 60
    assert "away" in bench.publisher.problem
    await bench.step()
    assert bench.publisher.problem is None
    assert bench.api.empty_patches == 1


async def test_the_loop_follows_the_ledger():
    bench = Bench(gap_s=0.0)
    bench.complete()
    async with background(bench.publisher.run()):
        await until(lambda: bench.api.patches)
        bench.admit()
        bench.account.notify_subscribers()
        await until(lambda: len(bench.api.patches) > 1)
    assert bench.said() == ((3, 0), {"a"})


async def test_the_last_patch_says_that_all_is_full_and_holds_stay(bench):
    bench.admit()
    await bench.until_s(110)
    assert bench.said() == ((3, 0), {"a"})
    before = len(bench.api.patches)
    await bench.leave()
    assert bench.said() == ((8, 8), {"a"})
    assert len(bench.api.patches) == before + 1
    assert NODE_HOLDS not in bench.api.patches[-1]["metadata"]["annotations"]
    assert bench.publisher.revision == bench.api.decoded().read_words().revision


async def test_a_last_patch_before_everything_was_read_ends_the_offers_of_the_daemon_before(bench):
    bench.admit()
    await bench.until_s(110)
    again = Bench()
    again.api.node = bench.api.node
    again.nodes.replace([again.api.decoded()], "2")
    await again.leave()
    assert again.said() == ((8, 8), {"a"})


async def test_a_last_patch_that_fails_is_said_again(bench):
    await bench.until_s(110)
    bench.api.failures += [Unreachable("gone"), Unreachable("still gone")]
    await bench.leave()
    assert bench.said() == ((8, 8), set())
    assert bench.publisher.errors == 2


async def test_no_back_off_holds_up_the_last_patch(mocker):
    bench = Bench()
    bench.complete()
    mocker.patch.object(bench.publisher._stepper._failures, "failed", return_value=1e6)
    bench.api.failures.append(Unreachable("gone"))
    running = asyncio.create_task(bench.publisher.run())
    await until(lambda: bench.publisher.errors)
    await bench.publisher.publish_full()
    await running
    # Nothing had been offered, so nothing was taken back.
    assert bench.api.patches == []


async def test_without_a_node_there_is_no_last_patch():
    bench = Bench()
    bench.nodes.replace([], "2")
    await bench.leave()
    assert bench.api.patches == []


async def test_nothing_is_said_before_pods_can_be_served(bench):
    serves = []
    bench.publisher._offers = lambda: bool(serves)
    assert await bench.step() is None
    assert bench.api.patches == []
    serves.append("registered")
    assert await bench.step() == 0.0
    assert bench.said() == ((0, 0), set())
