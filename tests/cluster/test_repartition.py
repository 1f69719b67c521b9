"""A card is partitioned anew while pods run on it: the kubelet takes other devices on its open stream."""

import pytest
import yaml

from allocator.names import NODE_CORDON, PERCENT_RESOURCE, POD_GPU_UUID
from deviceplugin.gpus.simulated.profile import parse_profile
from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.dra import (
    CLAIMS,
    DRIVER,
    cdi_files,
    claim,
    claim_pod,
    on_card,
    slices,
    start_with_claims,
)
from tests.cluster.harness.polling import holds_for

CARD = 81_920
BEFORE = ["3g.40gb", "3g.40gb"]
AFTER = ["3g.40gb", "2g.20gb", "1g.10gb"]


def profile(instances: list[str]) -> dict:
    """One H100 with instances of 10 GiB for each slice, and one whole card of 8 GiB."""
    made = w.cards(CARD, 8192, name="NVIDIA H100 80GB HBM3")
    made["devices"][0]["mig"] = instances
    return made


def instances_before() -> list[str]:
    """The UUIDs of the instances of `BEFORE`."""
    instances = parse_profile("t", yaml.safe_dump(profile(BEFORE))).cards[0].instances
    assert instances is not None
    return [instance.uuid for instance in instances]


def on(uuid: str) -> dict[str, str]:
    return {POD_GPU_UUID: uuid}


def write(cluster: Cluster, made: dict) -> None:
    draft = cluster.daemon.profile.with_suffix(".new")
    draft.write_text(yaml.safe_dump(made))
    draft.rename(cluster.daemon.profile)


@pytest.fixture(scope="module")
def cluster(make_cluster) -> Cluster:
    return make_cluster(profile(BEFORE))


def test_instances_change_while_pods_run(cluster):
    cluster.change_cards(profile(BEFORE))
    stays, goes = instances_before()
    for name, gib, uuid in (("stays", 30, stays), ("goes", 20, goes)):
        cluster.run(w.pod(name, w.container(gib=gib), annotations=on(uuid)))
    cluster.wait_used([30, 20, 0])
    registrations = cluster.daemon.metric("gpupack_node_registrations_total")
    write(cluster, profile(AFTER))

    state = cluster.wait_used([30, 0, 0, 0])
    assert [card.size for card in state.cards] == [40, 20, 10, 8]
    assert state.cards[0].uuid == stays
    until(lambda: cluster.allocatable() == 78, "the kubelet has the new devices")
    cluster.wait_event("goes", "GPUGone: card " + goes)
    # For kube-scheduler the pod that lost its instance counts until it is deleted.
    cluster.delete("goes")
    holds_for(lambda: list(cluster.state().used) == [30, 0, 0, 0], "the words", 1.0)
    # The new instances and what is left of the old one are filled to the last unit.
    for name, gib, uuid in (("rest", 10, stays), ("new", 20, state.cards[1].uuid), ("small", 10, "")):
        cluster.run(w.pod(name, w.container(gib=gib), annotations=on(uuid) if uuid else None))
        if uuid:
            assert cluster.environment(name)["NVIDIA_VISIBLE_DEVICES"] == uuid
    cluster.wait_used([40, 20, 10, 0])
    assert cluster.daemon.metric("gpupack_node_registrations_total") == registrations
    # The kubelet restarts, asks for nothing that is gone, and all pods run on.
    cluster.host.restart_kubelet()
    cluster.wait_used([40, 20, 10, 0])
    assert cluster.phase("stays") == "Running"


@pytest.mark.nightly
def test_with_dra_instances_change_while_pods_run(make_cluster):
    """A slice tells instances from whole cards; whoever has an instance that is gone can still end."""
    cluster: Cluster = make_cluster(profile(BEFORE), start=start_with_claims)
    stays, goes = instances_before()
    kind = f'device.attributes["{DRIVER}"].type'
    wanted = {
        "whole": (8, f'{kind} == "gpu"'),
        "stays": (30, f'{kind} == "mig" && {on_card(stays)}'),
        "goes": (20, f'{kind} == "mig" && {on_card(goes)}'),
    }
    for name, (gib, selector) in wanted.items():
        cluster.api.post(CLAIMS, claim(name, gib, selector))
        cluster.run(claim_pod(name, name))
    assert cluster.environment("stays")["NVIDIA_VISIBLE_DEVICES"] == stays
    assert cluster.environment("stays")["GPUPACK_CARDS"] == f"{stays}:30"
    cluster.wait_used([30, 20, 8])
    write(cluster, profile(AFTER))

    state = cluster.wait_used([30, 0, 0, 8])
    uuids = {card.uuid for card in state.cards}

    def published() -> set[str]:
        (found,) = slices(cluster)
        return {device["attributes"]["uuid"]["string"] for device in found["spec"]["devices"]}

    until(lambda: published() == uuids, "the slice has the new instances")
    cluster.delete("goes")
    until(lambda: len(cdi_files(cluster)) == 2, "the CDI file of what is gone is gone")
    new = state.cards[1].uuid
    cluster.api.post(CLAIMS, claim("new", 20, on_card(new)))
    cluster.run(claim_pod("new", "new"))
    assert cluster.environment("new")["NVIDIA_VISIBLE_DEVICES"] == new
    cluster.wait_used([30, 20, 0, 8])


def test_a_node_goes_on_where_a_card_loses_its_units_with_a_pod_on_it(cluster):
    """MIG mode is switched on, and there are no instances."""
    before, after = profile([]), profile([])
    del before["devices"][0]["mig"]
    cluster.change_cards(before)
    large = cluster.state().cards[0].uuid
    cluster.run(w.pod("half", w.container(limits={PERCENT_RESOURCE: 50}), annotations=on(large)))
    cluster.wait_used([40, 0])
    write(cluster, after)
    cluster.wait_used([0, 0])
    cluster.run(w.pod("next", w.container(gib=8)))
    cluster.wait_used([0, 8])
    write(cluster, before)
    cluster.wait_used([40, 8])


def test_memory_that_compute_instances_share_is_promised_to_nobody(cluster):
    """A GPU instance is divided into compute instances, and put together again."""
    divided = ["3g.40gb", "1c.3g.40gb", "2c.3g.40gb"]
    cluster.change_cards(profile(divided))
    assert [card.size for card in cluster.state().cards] == [40, 0, 0, 8]
    until(lambda: cluster.allocatable() == 48, "the kubelet has the memory of the whole instance alone")
    write(cluster, profile(BEFORE))
    until(lambda: cluster.allocatable() == 88, "the kubelet has both instances")
    cluster.run(w.pod("large", w.container(gib=40)), w.pod("other", w.container(gib=40)))
    cluster.wait_used([40, 40, 0])


def test_mig_mode_changes_while_cordoned_empty_cards_are_let_go(cluster):
    """The steps of docs/howto/gpu-operator.md; the card refuses the change while the daemon has it open."""
    made = profile([])
    del made["devices"][0]["mig"]
    made["driver"] = {"mode_change": "when_unused"}
    made["script"] = [{"at_s": 0, "card": 0, "mig": BEFORE}]
    cluster.change_cards(made)
    cards = [card.uuid for card in cluster.state().cards]
    node = f"/api/v1/nodes/{cluster.node_name}"

    def cordon(names: str | None) -> None:
        cluster.api.merge(node, {"metadata": {"annotations": {NODE_CORDON: names}}})

    def detached() -> bool:
        return cluster.daemon.metric("gpupack_node_driver_detached") == 1

    cluster.run(w.pod("last", w.container(gib=8), annotations=on(cards[1])))
    cordon(",".join(cards))
    cluster.wait_used([80, 8])
    holds_for(lambda: not detached(), "a card that a pod has is needed", 6.0)
    assert [card.size for card in cluster.state().cards] == [80, 8]
    cluster.delete("last")
    until(detached, "the driver is let go")
    cordon(None)
    state = cluster.wait_used([0, 0, 0])
    assert [card.size for card in state.cards] == [40, 40, 8]
    until(lambda: not detached(), "the driver is there again")
    cluster.run(w.pod("new", w.container(gib=40), annotations=on(state.cards[0].uuid)))
    assert cluster.environment("new")["NVIDIA_VISIBLE_DEVICES"] == state.cards[0].uuid
