"""A package as docs/policies/writing.md has it, installed, and its policies in every place that takes one."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from allocator.cards import Card
from allocator.names import POD_CARD_POLICY, POD_NODE_POLICY
from allocator.policies import CARD_POLICIES
from allocator.policy import card_policy
from allocator.request import ContainerRequest, PodRequest
from gpupack.cli.app import cli
from gpupack.embedded import EmbeddedCluster, wait_until
from scheduler_plugin.cache.amounts import ONE_POD
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.errors import SettingsError
from scheduler_plugin.queue.controller.settings import QueueSettings
from scheduler_plugin.scheduling.card_costs import get_array_costs
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies, explain_slow_policy
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from scheduler_plugin.settings import Settings
from scheduler_plugin.simulator.app import simulate
from scheduler_plugin.simulator.options import SimulationOptions
from standins.scheduler import Unschedulable
from tests.ask_world import Node, Pod, World
from tests.other_policies import offered
from tests.queue_world import QueueWorld

PAGE = Path(__file__).parents[2] / "docs" / "policies" / "writing.md"
NODE, CARD = "fewest-cards", "three-quarters"
NAMED = ((POD_NODE_POLICY, NODE), (POD_CARD_POLICY, CARD))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which pip has installed the page's two files."""
    project, target = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    text = PAGE.read_text()
    for name, kind in (("my_policies.py", "python"), ("pyproject.toml", "toml")):
        (project / name).write_text(re.search(rf"`{name}`:\n\n```{kind}\n(.*?)```", text, re.DOTALL)[1])
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    pip += ["--no-build-isolation", "--disable-pip-version-check", "--target", target, project]
    subprocess.run(pip, check=True, timeout=120)
    return target


@pytest.fixture
def installed(site, monkeypatch):
    """The package is installed, and this process has looked for none yet, like one that has just started."""
    monkeypatch.syspath_prepend(site)
    for registry in (NODE_POLICIES, CARD_POLICIES):
        registry.adopt(())
        monkeypatch.setattr(registry, "_loaded", False)
    yield
    for registry in (NODE_POLICIES, CARD_POLICIES):
        registry.adopt(())
    sys.modules.pop("my_policies", None)


@pytest.fixture
def command(site):
    """Run the command in a process of its own that finds the package."""

    def run(*arguments, python=("-m", "gpupack"), stdin=""):
        return subprocess.run(
            [sys.executable, *python, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(site)},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


@pytest.fixture
def trace(tmp_path):
    """Nodes of 1 and of 4 cards, and pods that ask for one card or for all four of a node."""
    nodes = ["sn,cpu_milli,memory_mib,gpu,model"]
    nodes += [f"n{number},64000,65536,{1 if number % 2 else 4},T4" for number in range(8)]
    pods = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"]
    pods += ["one,1000,1024,1,1000,", "four,1000,1024,4,1000,"]
    (tmp_path / "nodes.csv").write_text("\n".join(nodes) + "\n")
    (tmp_path / "pods.csv").write_text("\n".join(pods) + "\n")
    return tmp_path / "nodes.csv", tmp_path / "pods.csv"


def test_help_lists_them(command):
    done = command("scheduler", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    check_help("scheduler", done.stdout)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["simulate", "queue", "node"])
def test_help_of_others_lists_them(name):
    done = CliRunner().invoke(cli, [name, "--help"])
    assert done.exit_code == 0
    check_help(name, done.output)


def check_help(name, said):
    text = " ".join(said.split()).replace("- ", "-")
    told = "fill cards to three quarters, the fullest first; then the least used"
    assert f"{CARD} {told}; from my-policies 1.0" in text
    node_policy = (
        f"{NODE} small nodes first, so that large ones stay whole; parameters: per-card; from my-policies 1.0"
    )
    assert (node_policy in text) == (name != "node")


@pytest.mark.usefixtures("installed")
def test_simulate_runs_them_in_all_its_processes(command, trace):
    nodes, pods = map(str, trace)
    arguments = ["simulate", "--nodes", nodes, "--pods", pods, "--card-policy", CARD, "--seeds", "1-4"]
    arguments += ["--policy", f"{NODE},least-requested", "--policy-parameter", f"{NODE}.per-card=2"]
    done = command(*arguments, "--json", "-", "--jobs", "2")
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0)
    alone = CliRunner().invoke(cli, [*arguments, "--json", "-", "--jobs", "1"])
    assert alone.exit_code == 0
    told = [json.loads(each) for each in (done.stdout, alone.stdout)]
    assert {run["card_policy"] for run in told[0]["runs"]} == {CARD}
    allocated = [
        {policy: mean["allocated_percent"]["130"] for policy, mean in each["mean"].items()} for each in told
    ]
    assert allocated[0] == allocated[1]
    # Large nodes that stay whole have room for pods of four cards.
    assert allocated[0][NODE] > allocated[0]["least-requested"] + 10


@pytest.mark.usefixtures("installed")
def test_the_pages_card_policy_is_asked_about_all_nodes_at_once():
    costs_of = get_array_costs(CARD)
    assert costs_of is not None
    sizes, free = np.meshgrid([4, 15, 80], range(81))
    found = costs_of(sizes, np.minimum(sizes, free), 3)
    for size, left, cost in zip(sizes.flat, np.minimum(sizes, free).flat, found.flat, strict=True):
        card = Card(0, "GPU-0", "", int(size), int(size - left))
        assert cost == (card_policy(CARD).costs([card], 3)[0] if left >= 3 else np.inf)
    assert explain_slow_policy(NODE_POLICIES.made("fragmentation"), CARD) == ""


def test_a_card_policy_that_is_asked_node_by_node_is_told_of_once(trace):
    """By `ClusterPolicies`, for extender, queue and the commands that ask, and by the simulator."""
    slow = SimpleNamespace(costs=lambda cards, _: [card.used_units for card in cards])
    line = 'card policy "slow" of others 1.0 has neither array_costs nor by_fill: '
    with offered(CARD_POLICIES, slow=lambda _: slow):
        policies, said = ClusterPolicies("fragmentation"), []
        policies.slow_policy_found.connect(said.append)
        one = PodRequest((ContainerRequest("c", 1, "main"),), card_policy="slow")
        for request in (one, replace(one, cards=2), replace(one, card_policy="least-used")):
            policies.make_request(NodeArrays(), request, ONE_POD)
        assert (
            [text[: len(line)] for text in said]
            == [line]
            == [text[: len(line)] for text in policies.warnings]
        )
        for name, told in (("fragmentation", 1), ("least-requested", 0)):
            warned = []
            options = SimulationOptions(*map(str, trace), (name,), card_policy="slow", seeds=(1, 2), jobs=1)
            simulate(options, warned.append, lambda *_: None)
            assert [text[: len(line)] for text in warned] == [line] * told


@pytest.mark.usefixtures("installed")
async def test_filter_and_bind_follow_them():
    profiles = {"large": "4xl40s", "small": "2xt4"}
    spread = {"node_policy": "least-requested", "card_policy": "least-used"}
    async with EmbeddedCluster(profiles, **spread) as cluster:

        async def run(name, **annotations):
            manifest = cluster.make_pod_manifest(name, [4])
            manifest["metadata"]["annotations"] = {
                f"gpupack.io/{kind}-policy": policy for kind, policy in annotations.items()
            }
            node = await cluster.schedule(cluster.create(manifest))
            await wait_until(
                lambda: "gpupack.io/allocation" in annotations_of(name), "the node says which card"
            )
            said = annotations_of(name)
            (assigned,) = json.loads(said["gpupack.io/assigned"])["c0"]
            ((allocated, _),) = json.loads(said["gpupack.io/allocation"])["containers"]["c0"]
            assert assigned[0] == allocated
            return node, [card["uuid"] for card in cards_of(node)].index(allocated)

        def annotations_of(name):
            return cluster.api.pod("default", name)["metadata"].get("annotations", {})

        def cards_of(node):
            (found,) = (each for each in cluster.api.objects("nodes") if each["metadata"]["name"] == node)
            return json.loads(found["metadata"]["annotations"]["gpupack.io/cards"])

        assert await run("own-way") == ("large", 0)
        assert await run("by-node", node=NODE) == ("small", 0)
        # Beside the first one, where least-used takes the other card; a third would be too much there.
        assert await run("by-both", node=NODE, card=CARD) == ("small", 0)
        assert await run("again", node=NODE, card=CARD) == ("small", 1)

        for kind, registry, name in (("node", NODE_POLICIES, NODE), ("card", CARD_POLICIES, CARD)):
            assert name in registry.names()
            listed = re.escape(", ".join(registry.names()))
            with pytest.raises(Unschedulable, match=f'{kind}-policy is "nowhere"; allowed: {listed}'):
                await run(f"no-{kind}", **{kind: "nowhere"})


@pytest.mark.usefixtures("installed")
def test_settings_take_them_with_parameters(trace):
    Settings(node_policy=NODE, node_policy_parameters={"per-card": "2"}, card_policy=CARD).check()
    with pytest.raises(SettingsError, match=f'"{NODE}" of my-policies 1.0 cannot be made with per-card='):
        Settings(node_policy=NODE, node_policy_parameters={"per-card": "x"}).check()
    nodes, pods = map(str, trace)
    options = SimulationOptions(nodes, pods, (NODE,), parameters={NODE: {"per-card": "x"}})
    with pytest.raises(SettingsError, match="cannot be made"):
        simulate(options, lambda _: None, lambda *_: None)


# What nobody told to look for packages: each finds them when it meets their names.

NODES = (Node("large", (16,) * 4), Node("small", (16, 16)))
WAITS = Pod("waits", 8, policies=NAMED)
TEXT = World(NODES, (WAITS,)).text


def asked(*arguments, text=TEXT):
    done = CliRunner().invoke(cli, [*arguments, "-f", "-"], input=text)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.usefixtures("installed")
def test_why_knows_them():
    answer = json.loads(asked("why", "waits", "-o", "json"))
    assert (answer["state"], answer["notes"]) == ("fits", [])
    full = World(
        NODES,
        (
            WAITS,
            *(
                Pod(
                    node.name,
                    16 * len(node.sizes),
                    node.name,
                    tuple(range(len(node.sizes))),
                    count=len(node.sizes),
                )
                for node in NODES
            ),
        ),
    ).text
    answer = json.loads(asked("why", "waits", "-o", "json", text=full))
    assert (answer["state"], answer["notes"]) == ("pending", [])


@pytest.mark.usefixtures("installed")
def test_the_queue_knows_them(tmp_path):
    QueueSettings(str(tmp_path / "queues.yaml"), node_policy=NODE, card_policy=CARD).check()
    world = QueueWorld(policy=NODE)
    world.node("large", (16,) * 4)
    world.node("small", (16, 16))
    world.pod("p1", 8)
    world.pod("p2", 8, annotations=dict(NAMED))
    (first, second) = (release.members[0].node for release in world.decide())
    assert (first, second) == ("small", "small")


def test_the_queues_command_knows_them(command, tmp_path):
    done = command("queue", "--config", tmp_path / "none", "--node-policy", NODE, "--card-policy", CARD)
    assert (done.returncode, "policy" in done.stderr) == (2, False)
    assert "none" in done.stderr


def test_python_users_have_them(command):
    """In a new process: importing the package looks for nothing, the first name does."""
    code = f"""
import gpupack, sys
gpupack.why
assert "my_policies" not in sys.modules
cluster = gpupack.read(sys.stdin.buffer.read())
assert [name for name, _ in gpupack.rank(cluster, 8, policy="{NODE}")] == ["small", "large"]
assert gpupack.why(cluster, "default", "waits").notes == ()
assert list(gpupack.simulate(cluster, ("{NODE}",), card_policy="{CARD}")) == ["{NODE}"]
"""
    done = command(python=("-c", code), stdin=TEXT)
    assert (done.returncode, done.stderr) == (0, "")
