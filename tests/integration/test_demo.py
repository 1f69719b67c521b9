"""`gpupack demo`: it shows the main job, and a lie told by any part ends it with an error."""

import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from allocator.ids import device_id, parse_device_id
from allocator.packing import node_resources, read_node
from gpupack.audit import (
    collect_views,
    find_environment_faults,
    find_faults,
    find_over_committed,
    list_pod_units,
)
from gpupack.cli.app import cli
from gpupack.demo import play as demo
from gpupack.demo.load import WAITING, DemoLoad
from gpupack.demo.play import DemoFailedError, play
from gpupack.demo.pods import NODES, PODS, shuffle_shapes
from gpupack.embedded import EmbeddedCluster, wait_until
from standins.scheduler import Unschedulable
from tests.integration.cli_world import in_process

BEFORE = "Before: all cards are free"
BARS = re.compile(r"[░▏▎▍▌▋▊▉█]{4} (\d+)/")
TITLES = re.compile(rf"^({BEFORE}|\d+ pods run|After: 8 pods have gone, \d+ run on)$", re.MULTILINE)


class Doctored:
    """Another object with some of its methods replaced."""

    def __init__(self, real, **lies):
        self._real = real
        self._lies = lies

    def __getattr__(self, name):
        if name in self._lies:
            return self._lies[name]
        return getattr(self._real, name)


def doctor(cluster, name, part, **lies):
    node = cluster.nodes[name]
    cluster.nodes[name] = replace(node, **{part: Doctored(getattr(node, part), **lies)})


@pytest.fixture
async def cluster():
    async with EmbeddedCluster({"node-t4": "2xt4"}, card_policy="most-used") as started:
        yield started


async def place(cluster, **shape):
    pod = cluster.create(cluster.make_pod_manifest("p", **shape))
    await cluster.schedule(pod)
    await wait_until(lambda: cluster.api.pod("default", "p")["status"].get("phase") == "Running", "pod runs")
    await wait_until(lambda: not find_faults(cluster), "views agree")


def said_by(*arguments):
    """Run the demo; returns what it says on stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "gpupack", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def fates(out):
    """What became of the pods with the extender, by name: a node with cards, or `pending`."""
    told = out.partition("The same pods with")[0]
    return re.findall(r"^  (pod-\d\d) +\S.* -> (pending|node-\S+, cards? [\d, ]+)", told, re.MULTILINE)


@pytest.fixture(scope="module")
def default():
    return said_by()


def test_the_demo(default):
    out, err = default
    assert err == ""
    lines = out.splitlines()
    titles = TITLES.findall(out)
    assert [title.split()[-1] for title in titles] == ["free", "run", "on"]
    tables = [lines.index(title) + 1 for title in titles]
    for start in tables:
        assert lines[start].split() == ["NODE", "STATUS", "UNIT", "USED", "CARDS"]
        assert [line.split()[0] for line in lines[start + 1 : start + 4]] == sorted(NODES)
    used = [int(re.search(r"(\d+)/\d+ in use", lines[start + 4])[1]) for start in tables]
    assert used[0] == 0 < used[2] < used[1]
    told = fates(out)
    assert sorted(name for name, _ in told) == [f"pod-{number:02}" for number in range(len(PODS))]
    running = [fate for _, fate in told if fate != "pending"]
    assert titles[1] == f"{len(running)} pods run"
    cards = {
        (node, card) for node, _, numbers in (fate.split(maxsplit=2) for fate in running)
        for card in numbers.split(", ")
    }  # fmt: skip
    # As many cards as the pods are said to have are in use in the table.
    table = "\n".join(lines[tables[1] + 1 : tables[1] + 4])
    assert len(cards) == sum(units != "0" for units in BARS.findall(table))
    need = sum(
        shape.get("cards", 1) for name, shape in shuffle_shapes(1).items() if (name, "pending") not in told
    )
    assert f"{len(running)} pods on {len(cards)} cards; whole GPUs need {need}, and there are 14." in lines
    # The word says what the table says of its node.
    (node,) = re.findall(r"^How (node-\S+) says so, in two integers of its status:$", out, re.MULTILINE)
    (line,) = [line for line in table.splitlines() if line.startswith(node)]
    steps = re.findall(r"^ +card (\d): \d+ >> +\d+ & 63 = +(\d+)   \2 units in use$", out, re.MULTILINE)
    assert steps == [(str(card), units) for card, units in enumerate(BARS.findall(line))]
    assert any(units != "0" for _, units in steps)
    assert "-> pending: no healthy card of 45 GiB or more" in out
    refused = re.findall(r"^  \S+ +.* -> node-\S+, whose kubelet refuses it: .*card.*", out, re.MULTILINE)
    (failed,) = re.findall(r"^(\d+) of 21 pods fail for good in the kubelet", out, re.MULTILINE)
    assert 1 <= len(refused) == min(int(failed), 3)
    assert lines[-5].startswith("Every check held")
    assert lines[-1] == "  kubectl label node NODE gpupack.io/node=true"


def test_a_port_without_the_dashboard_is_refused():
    result = CliRunner().invoke(cli, ["demo", "--port", "3"])
    assert (result.exit_code, "--port: allowed with --dashboard only" in result.output) == (2, True)


def test_a_seed_repeats_the_demo_and_another_changes_it(default, monkeypatch, capsys):
    assert in_process(monkeypatch, capsys, "demo")("--seed", "1") == (0, *default)
    assert shuffle_shapes(2) == shuffle_shapes(2) != shuffle_shapes(1)
    for seed in (1, 2):
        assert sorted(map(str, shuffle_shapes(seed).values())) == sorted(map(str, PODS))


def test_a_pod_without_room_stays_pending_and_the_rest_is_checked_all_the_same():
    policies = ["--node-policy", "least-requested", "--card-policy", "least-used"]
    out, err = said_by("-v", *policies)
    # Every line of the log says which part speaks.
    speakers = [re.search(r" (node=node-\S+|component=extender)$", line) for line in err.splitlines()]
    assert all(speakers), err
    assert {found[1] for found in speakers} == {"component=extender", *(f"node={node}" for node in NODES)}
    assert re.search(r"^  pod-\d\d +44 GiB +-> pending: no card with 44 GiB free", out, re.MULTILINE)
    assert "Every check held" in out


async def test_the_kubelets_refusal_is_shown_in_the_plugins_words(cluster, capsys):
    """A card of 14 cannot take 20, which kube-scheduler does not know: both cards together can."""
    await demo._without_extender(cluster, {"pod-00": {"units": [8]}, "pod-01": {"units": [20]}}, 1)
    out = capsys.readouterr().out
    assert re.search(r"pod-01 +20 GiB +-> node-t4, whose kubelet refuses it: .*20", out)
    # No sum of these two cards has 45.
    assert "  1 pending: no node has so much left in sum" in out
    assert "1 of 3 pods fail for good" in out


def test_a_long_refusal_is_cut():
    wrapped = "UnexpectedAdmissionError: rpc error: code = X desc = " + "a" * 200
    assert demo._short(wrapped) == "a" * (demo.REFUSAL_SIGNS - 3) + "..."
    assert demo._short("UnexpectedAdmissionError: no card") == "UnexpectedAdmissionError: no card"


async def test_a_word_that_does_not_say_what_the_product_reads_ends_it(cluster, monkeypatch):
    monkeypatch.setattr(demo, "explain_word", lambda _: ([], [1, 2]))
    with pytest.raises(DemoFailedError, match=r"a word decoded step by step says \[1, 2\]"):
        demo._decode(cluster)


async def test_cards_of_a_pod(cluster):
    await place(cluster, units=[6], cards=2)
    (node,) = cluster.nodes.values()
    uid = cluster.api.pod("default", "p")["metadata"]["uid"]
    assert list_pod_units(cluster, node, uid) == {0: 3, 1: 3}
    assert list_pod_units(cluster, node, "other") == {}


def test_a_lie_ends_the_command_with_an_error(monkeypatch, capsys):
    """Through the command itself: status 1, a line per fault, no traceback."""
    from gpupack.cli.app import main  # noqa: PLC0415

    async def lying(cluster, seed):
        assert seed == 7
        doctor(
            cluster, "node-t4", "kubelet", running_pods=lambda: frozenset({"u"}), held=held, containers=one
        )
        await play(cluster, wait_s=0.5)

    one = {("u", "c"): SimpleNamespace(running=False)}

    def held(_uid, _container):
        ids = [device_id("GPU-unknown", 0), device_id("GPU-00000074-0000-4000-8000-000000000000", 3)]
        return {"gpupack.io/gpu-memory-gib": ids}

    monkeypatch.setattr(sys, "argv", ["gpupack", "demo", "--seed", "7"])
    monkeypatch.setattr(demo, "play", lying)
    with pytest.raises(SystemExit) as exit_of:
        main()
    out, err = capsys.readouterr()
    assert exit_of.value.code == 1
    assert "Every check held" not in out
    first, second = err.splitlines()
    assert first == "gpupack: views disagree before:"
    assert second.startswith(
        "gpupack: node-t4: views of the units used differ: kubelet [1, 0], ledger [0, 0], words [0, 0]"
    )


async def test_views_of_a_running_pod(cluster):
    await place(cluster, units=[5])
    (node,) = cluster.nodes.values()
    seen = collect_views(cluster, node)
    assert seen.sizes == {"cards": (14, 14), "words": (14, 14), "extender": (14, 14)}
    assert set(seen.used.values()) == {(5, 0)}
    assert set(seen.used) == {"kubelet", "ledger", "words", "extender"}
    assert seen.assumed == (0, 0)


async def test_another_unit_from_the_daemon_to_the_container():
    async with EmbeddedCluster({"node-t4": "2xt4"}, unit_mib=512) as cluster:
        assert cluster.resource == "gpupack.io/gpu-memory-512mib"
        await place(cluster, units=[5])
        (node,) = cluster.nodes.values()
        words = read_node(cluster.api.node("node-t4")["status"]["allocatable"])
        assert (words.layout.unit_mib, words.sizes, sum(words.used)) == (512, (29, 29), 5)
        ((_, record),) = node.kubelet.containers.items()
        card = record.envs["NVIDIA_VISIBLE_DEVICES"]
        assert record.envs["GPUPACK_MEMORY_MIB"] == "2560"
        assert record.envs["GPUPACK_CARDS"] == f"{card}:5"
        assert {parse_device_id(text)[0] for text in record.devices[cluster.resource]} == {card}
        # Whole cards are 29 units, so the second pod fits on the other card only, and a larger one on none.
        whole = cluster.create(cluster.make_pod_manifest("whole", units=[29]))
        await cluster.schedule(whole)
        larger = cluster.create(cluster.make_pod_manifest("larger", units=[30]))
        with pytest.raises(Unschedulable, match="no healthy card of 15 GiB or more"):
            await cluster.schedule(larger)


async def test_what_an_init_container_holds_is_seen_by_all(cluster):
    await place(cluster, units=[2], init=9)
    (node,) = cluster.nodes.values()
    assert set(collect_views(cluster, node).used.values()) == {(9, 0)}


def lie(cluster, who):
    """Let one of those who speak of cards lie; returns what takes it back."""
    node = cluster.nodes["node-t4"]
    arrays = cluster.state.nodes
    row = arrays.rows["node-t4"]

    def back():
        cluster.nodes["node-t4"] = node
        cluster.api = api
        arrays.used[row, 1] = arrays.assumed[row, 1] = 0
        arrays.size[row, 1] = 14

    api = cluster.api
    match who:
        case "kubelet":
            doctor(cluster, "node-t4", "kubelet", held=lambda *_: {})
        case "ledger":
            ledger = Doctored(node.daemon.account.ledger, allocated_units=dict)
            doctor(cluster, "node-t4", "daemon", account=Doctored(node.daemon.account, ledger=ledger))
        case "words":
            told = api.node("node-t4")
            words = replace(read_node(told["status"]["allocatable"]), used=(5, 1))
            told["status"]["allocatable"].update(node_resources(words))
            cluster.api = Doctored(api, node=lambda _: told)
        case "extender":
            arrays.used[row, 1] = 1
        case "assumed":
            arrays.assumed[row, 1] = 1
        case "sizes":
            arrays.size[row, 1] = 15
        case "environment" | "mib":
            ((key, record),) = node.kubelet.containers.items()
            wrong = {"NVIDIA_VISIBLE_DEVICES": "all"} if who == "environment" else {"GPUPACK_MEMORY_MIB": "5"}
            doctor(
                cluster,
                "node-t4",
                "kubelet",
                containers={key: replace(record, envs={**record.envs, **wrong})},
            )
    return back


async def test_any_view_that_differs_is_told(cluster):
    await place(cluster, units=[5])
    told = {
        "kubelet": "units used differ: kubelet [0, 0], ledger [5, 0]",
        "ledger": "units used differ: kubelet [5, 0], ledger [0, 0]",
        "words": "words [5, 1], extender [5, 0]",
        "extender": "words [5, 0], extender [5, 1]",
        "assumed": "the extender still assumes [0, 1]",
        "sizes": "views of the sizes differ: cards [14, 14], words [14, 14], extender [14, 15]",
        "environment": "p/c0 on node-t4 sees 'all'",
        "mib": "5 MiB a card: the kubelet gave it ['GPU-00000074-0000-4000-8000-000000000000:5'], 5120",
    }
    for who, what in told.items():
        back = lie(cluster, who)
        (fault,) = find_faults(cluster)
        assert what in fault, who
        assert find_over_committed(cluster) == [], who
        with pytest.raises(DemoFailedError, match="views disagree before"):
            await play(cluster, wait_s=0)
        back()
        assert find_faults(cluster) == [], who


async def test_a_card_that_holds_more_than_it_has_ends_it_at_once(cluster):
    await place(cluster, units=[14])
    node = cluster.nodes["node-t4"]
    arrays = cluster.state.nodes
    row = arrays.rows["node-t4"]
    card = node.daemon.account.ledger.cards()[0].uuid
    ids = frozenset(device_id(card, slot) for slot in range(15))
    doctor(cluster, "node-t4", "kubelet", held=lambda *_: {cluster.resource: ids})
    arrays.used[row, 0] = 15
    expected = [
        f"node-t4: card 0 is over-committed: {who} says 15 of 14 units" for who in ("kubelet", "extender")
    ]
    assert find_over_committed(cluster) == expected
    with pytest.raises(DemoFailedError, match=re.escape(expected[0])):
        await play(cluster)


async def test_a_node_without_words_or_row_is_a_difference_not_a_crash(cluster):
    bare = cluster.api.node("node-t4")
    for broken in ({}, {"gpupack.io/packed-layout": "3"}):
        bare["status"]["allocatable"] = broken
        cluster.api = Doctored(cluster.api, node=lambda _: bare)
        assert any("words []" in fault for fault in find_faults(cluster))
    cluster.state.nodes.rows.pop("node-t4")
    assert any("extender []" in fault for fault in find_faults(cluster))


def test_environments():
    gib = "gpupack.io/gpu-memory-gib"
    ids = frozenset(
        {device_id("GPU-a", 0), device_id("GPU-a", 7), device_id("GPU-b", 1), device_id("GPU-b", 0)}
    )

    def record(**changes):
        envs = {**promise, **changes.pop("wrong", {})}
        base = {"pod": "p", "name": "c", "running": True, "devices": {gib: ids}, "envs": envs}
        return SimpleNamespace(**{**base, **changes})

    promise = {
        "NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a",
        "GPUPACK_CARDS": "GPU-a:2,GPU-b:2",
        "GPUPACK_MEMORY_MIB": "1024",
    }
    right = [record(), record(running=False, envs={}), record(devices={}, envs={})]
    assert find_environment_faults("n", right, gib, 512) == []
    wrong = [
        record(envs={}),
        record(wrong={"NVIDIA_VISIBLE_DEVICES": "GPU-a"}),
        record(wrong={"GPUPACK_CARDS": "GPU-a:1,GPU-b:3"}),
        record(wrong={"GPUPACK_MEMORY_MIB": "2048"}),
    ]
    told = find_environment_faults("n", wrong, gib, 512)
    assert [fault.startswith("p/c on n sees ") for fault in told] == [True] * 4
    assert all(
        fault.endswith("the kubelet gave it ['GPU-a:2', 'GPU-b:2'], 1024 MiB a card") for fault in told
    )


async def test_the_dashboards_load_comes_and_goes_and_never_over_commits():
    async with EmbeddedCluster(NODES, seed=3) as cluster:
        load = DemoLoad(cluster, seed=3)
        sizes = set()
        for _ in range(60):
            await load.do_step()
            sizes.add(len(load.running))
            assert find_over_committed(cluster) == []
        assert len(load.waiting) <= WAITING
        await wait_until(
            lambda: all(
                cluster.api.pod("default", name)["status"].get("phase") == "Running" for name in load.running
            ),
            "all placed pods run",
        )
        assert max(sizes) > 10
