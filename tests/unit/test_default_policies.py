"""One default for every part, and the documents say which."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

from allocator.ledger.ledger import Ledger
from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY
from allocator.policies import CARD_POLICIES
from benchmarks import extender as extender_benchmark
from benchmarks.two_tier.workers import BatchSettings
from deviceplugin.settings import Settings as NodeSettings
from gpupack.cli.app import cli
from gpupack.embedded import EmbeddedCluster
from scheduler_plugin.cache.amounts import NOTHING
from scheduler_plugin.queue.controller.settings import QueueSettings
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from scheduler_plugin.scheduling.policies.registry import PolicyRequest
from scheduler_plugin.settings import Settings as SchedulerSettings
from scheduler_plugin.simulator.options import SimulationOptions, choose_policies
from tests.yaml_text import read_yaml_documents

ROOT = Path(__file__).resolve().parents[2]
BOTH = (DEFAULT_NODE_POLICY, DEFAULT_CARD_POLICY)


def test_they_exist() -> None:
    assert DEFAULT_NODE_POLICY in NODE_POLICIES.names()
    assert DEFAULT_CARD_POLICY in CARD_POLICIES.names()


def test_the_commands_agree() -> None:
    named = {}
    for command, made in cli.commands.items():
        defaults = {option.name: option.default for option in made.params}
        node = defaults.get("policy" if command == "simulate" else "node_policy")
        if node is not None or "card_policy" in defaults:
            named[command] = (node, defaults.get("card_policy"))
    assert named.pop("node") == (None, DEFAULT_CARD_POLICY)
    # Without the option the queues decide, and where they do not say, the default.
    assert (choose_policies(None, None)[0], named.pop("simulate")[1]) == BOTH
    assert set(named) >= {"scheduler", "queue", "demo"}
    assert set(named.values()) == {BOTH}


def test_the_parts_agree() -> None:
    assert (SchedulerSettings().node_policy, SchedulerSettings().card_policy) == BOTH
    assert NodeSettings(node_name="n").card_policy == DEFAULT_CARD_POLICY
    queue = {field.name: field.default for field in fields(QueueSettings)}
    assert (queue["node_policy"], queue["card_policy"]) == BOTH
    assert (ClusterPolicies().node_policy, ClusterPolicies().card_policy) == BOTH
    assert (BatchSettings().node_policy, BatchSettings().card_policy) == BOTH
    assert (SimulationOptions("n", "p").policies, SimulationOptions("n", "p").card_policy) == (
        BOTH[:1],
        BOTH[1],
    )
    assert PolicyRequest(NOTHING, ()).card_policy == DEFAULT_CARD_POLICY
    assert inspect.signature(Ledger).parameters["policy"].default == DEFAULT_CARD_POLICY
    embedded = inspect.signature(EmbeddedCluster).parameters
    assert (embedded["node_policy"].default, embedded["card_policy"].default) == BOTH
    assert "default=DEFAULT_NODE_POLICY" in inspect.getsource(extender_benchmark)


def test_the_manifests_name_no_other() -> None:
    named = re.compile(r"^--(node|card)-policy(?:=|$)")
    for path in (one for one in (ROOT / "manifests").rglob("*.yaml") if one.parent.name != "templates"):
        for document in read_yaml_documents(path.read_text()):
            assert not [text for text in _texts(document) if named.match(text)], path


def test_the_documents_agree() -> None:
    readme = (ROOT / "README.md").read_text()
    assert f"--node-policy {DEFAULT_NODE_POLICY} --card-policy {DEFAULT_CARD_POLICY}" in readme
    choosing = " ".join((ROOT / "docs/policies/choosing.md").read_text().split())
    assert (
        f"The default is `{DEFAULT_NODE_POLICY}` for nodes and `{DEFAULT_CARD_POLICY}` for cards" in choosing
    )
    claimed = re.compile(
        r"[Dd]efault(?:s| policies| node policy| card policy)? (?:is|are) `([a-z]+-?[a-z]*)`"
    )
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for name in claimed.findall(path.read_text()):
            if name in {*NODE_POLICIES.names(), *CARD_POLICIES.names()}:
                assert name in BOTH, path


def _texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in _texts(each)]
    if isinstance(value, list):
        return [text for each in value for text in _texts(each)]
    return [value] if isinstance(value, str) else []
