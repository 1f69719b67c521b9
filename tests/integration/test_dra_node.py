"""`gpupack node --serve dra` at its sockets: registration, claims, their files, restarts and refusals."""

import asyncio
import errno
import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pytest_mock import MockerFixture

from allocator.cards import CardAmounts
from allocator.ids import device_names
from allocator.ledger import release
from allocator.names import COMPUTE_RESOURCE, DRA_API, NODE_CORDON, NODE_DAEMON, NODE_HOLDS, NODE_SERVES
from allocator.packing import read_node
from allocator.records import Holds, load_holds
from deviceplugin import container_responses
from deviceplugin.check import check_node
from deviceplugin.dra import claim_service
from deviceplugin.dra.cdi_files import CdiFiles
from deviceplugin.dra.prepared_claims import PreparedClaim, PreparedClaims
from deviceplugin.enforcement import mps_clients
from deviceplugin.errors import KindInUseError, UnitInUseError
from deviceplugin.gpus.nvidia.mps.folder import CardFolder, ControlDaemonState
from deviceplugin.gpus.nvidia.mps.namespaces import Namespace
from deviceplugin.gpus.nvidia.mps.service import MpsService
from deviceplugin.gpus.nvidia.source import NvmlGpus
from deviceplugin.gpus.sources import SOURCES
from deviceplugin.host.cgroups import CgroupProbe
from deviceplugin.kubelet.checkpoint import CHECKPOINT_NAME
from tests.dra_world import CLAIMS, DRIVER, DraWorld, dra_world
from tests.integration.node_world import GIB, NODE, KubeletCgroups, card, node_world
from tests.nvml_world import Card, Driver, driver
from tests.waiting import DEADLINE_S, until

__all__ = ["driver"]


async def test_the_plugin_says_what_it_is_and_publishes_its_cards() -> None:
    async with dra_world(8, 16) as world:
        assert (world.info.type, world.info.name) == ("DRAPlugin", DRIVER)
        assert list(world.info.supported_versions) == ["v1.DRAPlugin"]
        (found,) = world.slices()
        assert found["spec"]["nodeName"] == NODE
        assert found["metadata"]["ownerReferences"][0] | {"uid": ""} == {
            "apiVersion": "v1",
            "kind": "Node",
            "name": NODE,
            "uid": "",
        }
        devices = found["spec"]["devices"]
        assert [one["attributes"]["uuid"]["string"] for one in devices] == [card(0), card(1)]
        assert [one["capacity"]["memory"]["value"] for one in devices] == ["8Gi", "16Gi"]
        assert not list(world.kubelet.device_plugin_dir.iterdir())


async def test_a_claim_is_prepared_counted_and_unprepared() -> None:
    async with dra_world() as world:
        uid = await world.claim("a", (1, 3))
        answer = await world.prepare("a")
        (device,) = answer["a"].devices
        assert (list(device.request_names), device.pool_name) == (["r0"], NODE)
        assert device.share_id
        await world.settled([0, 3], {uid})

        (spec,) = world.cdi_specs()
        (made,) = spec["devices"]
        assert list(device.cdi_device_ids) == [f"{spec['kind']}={made['name']}"]
        assert set(made["containerEdits"]["env"]) >= {
            "GPUPACK_MEMORY_MIB=3072",
            f"GPUPACK_CARDS={card(1)}:3",
            f"NVIDIA_VISIBLE_DEVICES={card(1)}",
        }
        await until(lambda: world.allocation("pod-a"), "the pod's annotation")

        again = await world.prepare("a")
        assert again == answer, "prepared twice is prepared once"
        world.end_pod("pod-a")
        await world.settled([0, 3], {uid})  # its claim is not let go yet
        assert await world.unprepare("a") == {"a": ""}
        await world.settled([0, 0], set())
        assert world.cdi_specs() == []
        assert await world.unprepare("a") == {"a": ""}


async def test_the_status_of_a_claim_says_who_has_it_beside_what_other_drivers_say() -> None:
    async with dra_world() as world:
        uid = await world.claim("a", (1, 3))
        other = {"driver": "net.example.com", "pool": "p", "device": "d"}
        path = f"{CLAIMS}/a"
        found = await world.call("GET", path)
        await world.call("PUT", f"{path}/status", found | {"status": {**found["status"], "devices": [other]}})
        await world.prepare("a")

        async def devices() -> list[dict[str, object]]:
            status = (await world.call("GET", path))["status"]
            return status["devices"] if len(status["devices"]) == 2 else []

        before, mine = await until(devices)
        assert before == other
        assert mine["data"] == {
            "card": card(1),
            "pod": "pod-a",
            "podUID": uid,
            "units": {"main": 3},
        }
        (ready,) = mine["conditions"]
        assert (ready["type"], ready["status"]) == ("Ready", "True")
        assert "pod pod-a has it, in containers main" in ready["message"]


async def test_a_pod_that_ends_by_itself_after_its_claim_was_let_go_is_charged_no_more() -> None:
    async with dra_world() as world:
        uid = await world.prepared("a", (1, 3))
        await world.settled([0, 3], {uid})
        await world.unprepare("a")
        world.kubelet.run(uid, runs=False)  # type: ignore[attr-defined]
        world.api.patch_pod("default", "pod-a", {"status": {"phase": "Succeeded"}})
        await world.settled([0, 0], set())


async def test_shares_are_those_of_the_containers_that_use_them() -> None:
    async with dra_world() as world:
        use = [{"name": "c", "request": "r0"}], [{"name": "c", "request": "r1"}]
        containers = [
            {"name": name, "image": "x", "resources": {"claims": claims}}
            for name, claims in zip(("first", "second"), use, strict=True)
        ]
        await world.claim("two", (0, 2), (1, 5), containers=containers)
        answer = await world.prepare("two")
        assert len(answer["two"].devices) == 2
        await until(lambda: world.allocation("pod-two"), "the pod's annotation")
        found = world.allocation("pod-two")["containers"]
        assert found == {"first": [[card(0), 2]], "second": [[card(1), 5]]}


async def test_a_claim_waits_for_room_and_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dra_world(8) as world:
        await world.prepared("big", (0, 6))
        await world.claim("late", (0, 4))
        waiting = asyncio.create_task(world.prepare("late"))
        await asyncio.sleep(0.2)
        assert not waiting.done()

        world.end_pod("pod-big")
        await world.unprepare("big")
        assert not (await waiting)["late"].error
        await until(lambda: world.used == [4], "used 4")


async def test_a_claim_that_was_deleted_while_it_waited_takes_no_room() -> None:
    async with dra_world(8) as world:
        await world.prepared("big", (0, 6))
        await world.claim("late", (0, 4))
        waiting = asyncio.create_task(world.prepare("late"))
        await asyncio.sleep(0.2)
        await world.call("DELETE", f"{CLAIMS}/late")
        world.end_pod("pod-big")
        await world.unprepare("big")
        assert "cannot be read" in (await waiting)["late"].error
        await world.settled([0], set())


async def test_holds_names_the_claims_that_the_words_contain() -> None:
    async with dra_world() as world:

        def held() -> Mapping[str, Mapping[int, CardAmounts]]:
            notes = world.api.node(NODE)["metadata"]["annotations"]
            return load_holds(notes[NODE_HOLDS]).claims

        uid = await world.claim("a", (0, 5))
        await world.claim("of-limits", (1, 2), pod="pod-b", label=True)
        await world.prepare("a")
        await world.prepare("of-limits")
        await until(
            lambda: held() == {world.uids["a"]: {0: (5, 0)}} and world.used == [5, 2], "the claim in holds"
        )
        await world.kill_daemon()
        await world.start_daemon()
        assert held() == {world.uids["a"]: {0: (5, 0)}}

        await world.unprepare("a")
        await until(lambda: not held(), "no claim in holds")
        assert world.used == [5, 2], "its pod still runs"
        assert uid in load_holds(world.api.node(NODE)["metadata"]["annotations"][NODE_HOLDS]).uids


async def test_the_compute_that_a_pods_limits_ask_for_counts_and_is_said_to_what_holds_it(
    mocker: MockerFixture,
) -> None:
    granted = mocker.spy(container_responses.ContainerResponses, "make_grant")
    limits = {"gpupack.io/gpu-memory-gib": "2", "gpupack.io/gpu-compute-percent": "30"}
    asks = {"name": "main", "image": "x", "resources": {"claims": [{"name": "c"}], "limits": limits}}
    async with dra_world(compute_limit_percent=150) as world:
        await world.prepared("of-limits", (1, 2), pod="pod-b", label=True, containers=[asks], compute=30)
        await until(lambda: published_compute(world) == (150, 0, 30), "the compute in the words")
        given = [f"{card(1)}::{number}" for number in range(2)]
        assert [call.args[1:] for call in granted.call_args_list] == [({card(1): 2048}, 30, given)]

        # Left from when there was a device plugin: a kubelet that starts would fail pods that ask for some.
        nothing = {COMPUTE_RESOURCE: "0"}
        world.api.patch_node(NODE, {"status": {"capacity": nothing, "allocatable": nothing}})
        await until(
            lambda: COMPUTE_RESOURCE not in world.api.node(NODE)["status"]["allocatable"], "not offered"
        )


async def test_what_holds_containers_is_told_the_ids_of_each_request(mocker: MockerFixture) -> None:
    """Of one claim for all: containers with as much compute would share one MPS namespace, and its limit."""
    granted = mocker.spy(container_responses.ContainerResponses, "make_grant")
    users = [
        {"name": name, "image": "x", "resources": {"claims": [{"name": "c", "request": request}]}}
        for name, request in (("one", "r0"), ("two", "r1"))
    ]
    async with dra_world(16) as world:
        await world.prepared("a", (0, 3), (0, 9), containers=users, compute=30)
        told = {call.args[1][card(0)] // 1024: call.args[3] for call in granted.call_args_list}
        assert told == {
            3: [f"{card(0)}::{number}" for number in range(3)],
            9: [f"{card(0)}::{number}" for number in range(3, 12)],
        }


async def test_a_claim_that_is_written_again_while_its_service_is_away_keeps_its_namespace(
    mocker: MockerFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its containers run, and a control daemon that comes back makes their namespaces from these files."""
    monkeypatch.setattr(claim_service, "SHARERS_LOOK_S", 0.05)
    monkeypatch.setattr(mps_clients, "LOOK_S", 0.05)
    make_control = mocker.patch.object(type(SOURCES["simulated"]), "make_mps_control")
    make_control.side_effect = lambda root: MpsService(root, wait_s=0.0)
    mocker.patch.object(type(SOURCES["simulated"]), "mps_program", "a program")
    folder = CardFolder(tmp_path, card(0))
    folder.make()
    folder.serve(ControlDaemonState(48, interface=3))
    folder.namespaces.begin()
    name = "u0_c30_m0"
    namespace = Namespace.parse(name)
    assert namespace is not None
    folder.namespaces.answer(namespace, "")
    folder.namespaces.want(Namespace("u2", 50, 0))
    changes = {"sharing": "mps", "mps_root": tmp_path}

    def wanted() -> set[str]:
        return {each.name for each in folder.namespaces.list_wanted()}

    def is_client() -> bool:
        return name in json.dumps(world.cdi_specs())

    async with dra_world(16, **changes) as world:
        await world.prepared("a", (0, 3), compute=30)
        assert is_client()
        assert wanted() == {name}, "a former claim had the other one"
        folder.end()
        await until(lambda: not is_client(), "the file of the claim is written again")
        assert wanted() == {name}
        await world.stop_daemon()
        await world.start_daemon()
        await world.prepare("a")
        assert wanted() == {name}
        # The control daemon is there again, and has not made the namespace yet.
        folder.namespaces.begin()
        folder.serve(ControlDaemonState(48, interface=3))
        await world.prepare("a")
        assert wanted() == {name}


def published_compute(world: DraWorld) -> tuple[int, ...]:
    """The limit of the node's cards, and what of each is given away."""
    words = read_node(world.api.node(NODE)["status"]["allocatable"])
    return (words.compute_limit, *words.compute_used) if words is not None else ()


def held_claims(world: DraWorld) -> Holds:
    return load_holds(world.api.node(NODE)["metadata"]["annotations"][NODE_HOLDS])


async def test_the_compute_of_a_claim_counts_once_on_each_of_its_cards(mocker: MockerFixture) -> None:
    """Also where two containers share its cards; it is published, said to what holds it, and kept on disk."""
    granted = mocker.spy(container_responses.ContainerResponses, "make_grant")
    mocker.patch.object(release, "CGROUP_GRACE_S", 0.5)
    both = [{"name": name, "image": "x", "resources": {"claims": [{"name": "c"}]}} for name in ("one", "two")]
    async with dra_world(8, 8) as world:
        (found,) = world.slices()
        assert [one["capacity"]["compute"] for one in found["spec"]["devices"]] == [
            {
                "value": "100",
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
            }
        ] * 2
        await world.claim("a", (0, 2), (1, 3), containers=both, compute=30)
        await world.claim("plain", (1, 2))
        await world.prepare("a", "plain")
        await until(lambda: published_compute(world) == (100, 30, 30), "the compute in the words")
        assert held_claims(world).claims[world.uids["a"]] == {0: (2, 30), 1: (3, 30)}
        assert {call.args[2] for call in granted.call_args_list if call.args[1] == {card(0): 2048}} == {30}

        async def told() -> list[int]:
            status = (await world.call("GET", f"{CLAIMS}/a"))["status"]
            return [one["data"]["compute"] for one in status.get("devices") or ()]

        assert await until(told, "the status of the claim") == [30, 30]

        await world.stop_daemon()
        await world.start_daemon()
        await until(lambda: published_compute(world) == (100, 30, 30), "the same after a restart")
        world.end_pod("pod-a")
        assert await world.unprepare("a") == {"a": ""}
        await until(lambda: published_compute(world) == (100, 0, 0), "free again")
        assert world.uids["a"] not in held_claims(world).claims


@pytest.mark.parametrize("of_limits", [False, True], ids=["a claim", "the claim of limits"])
async def test_a_claim_beyond_what_a_card_gives_of_its_compute_is_refused_until_there_is_some(
    monkeypatch: pytest.MonkeyPatch, *, of_limits: bool
) -> None:
    monkeypatch.setattr(claim_service.ClaimService.__init__, "__kwdefaults__", {"room_wait_s": 0.1})
    limits = {"gpupack.io/gpu-memory-gib": "2", "gpupack.io/gpu-compute-percent": "50"}
    asks = {"name": "main", "image": "x", "resources": {"claims": [{"name": "c"}], "limits": limits}}
    async with dra_world(8) as world:
        await world.claim("most", (0, 2), compute=60)
        await world.claim(
            "late", (0, 2), compute=50, label=of_limits, containers=[asks] if of_limits else None
        )
        assert not (await world.prepare("most"))["most"].error
        assert (await world.prepare("late"))["late"].error == (
            f"claim default/late: card {card(0)} gives 100 percent of its compute, of which other pods have "
            "60 and this pod has 0: 50 more are not there"
        )
        world.end_pod("pod-most")
        await world.unprepare("most")
        await until(lambda: published_compute(world) == (100, 0), "free again")
        assert not (await world.prepare("late"))["late"].error
        await until(lambda: published_compute(world) == (100, 50), "the compute in the words")


async def test_a_claim_that_an_older_extender_wrote_counts_the_compute_of_its_pods_limits() -> None:
    """It wrote none, and so did an older daemon into the claim's file: the words had none of it."""
    limits = {"gpupack.io/gpu-memory-gib": "2", "gpupack.io/gpu-compute-percent": "50"}
    asks = {"name": "main", "image": "x", "resources": {"claims": [{"name": "c"}], "limits": limits}}
    plain = {"name": "main", "image": "x", "resources": {"claims": [{"name": "c"}]}}
    async with dra_world(8, 8) as world:
        await world.claim("old", (0, 2), label=True, containers=[asks])
        await world.claim("none", (1, 2), label=True, containers=[plain])
        await world.prepare("old", "none")
        await until(lambda: published_compute(world) == (100, 50, 0), "the compute in the words")
        await world.stop_daemon()
        await world.start_daemon()
        await until(lambda: published_compute(world) == (100, 50, 0), "the same after a restart")


async def test_a_claim_finds_no_room_beside_the_compute_of_limits_that_an_older_extender_did_not_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim_service.ClaimService.__init__, "__kwdefaults__", {"room_wait_s": 0.1})
    limits = {"gpupack.io/gpu-memory-gib": "2", "gpupack.io/gpu-compute-percent": "60"}
    asks = {"name": "main", "image": "x", "resources": {"claims": [{"name": "c"}], "limits": limits}}
    async with dra_world(8) as world:
        await world.claim("old", (0, 2), label=True, containers=[asks])
        await world.claim("own", (0, 2), compute=50)
        await world.reserve("own", "pod-old")
        await world.prepare("old")
        await until(lambda: published_compute(world) == (100, 60), "the compute in the words")
        assert (await world.prepare("own"))["own"].error == (
            f"claim default/own: card {card(0)} gives 100 percent of its compute, of which other pods have "
            "0 and this pod has 60: 50 more are not there"
        )


async def test_a_claim_of_more_compute_than_a_card_has_is_refused() -> None:
    async with dra_world(8, compute_limit_percent=200) as world:
        await world.claim("by-hand", (0, 2), compute=150)
        assert "compute 150 of device" in (await world.prepare("by-hand"))["by-hand"].error


async def test_a_claim_that_was_let_go_is_prepared_again_for_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the second pod of a shared claim, where the first one ended before the second had started."""
    monkeypatch.setattr(claim_service.ClaimService.__init__, "__kwdefaults__", {"room_wait_s": 0.1})
    async with dra_world(8) as world:
        await world.prepared("a", (0, 5))
        await until(lambda: world.used == [5], "used 5")
        await world.unprepare("a")
        assert not (await world.prepare("a"))["a"].error
        await world.claim("b", (0, 3))
        assert not (await world.prepare("b"))["b"].error
        await until(lambda: world.used == [8], "used 8")


async def test_a_claim_beyond_the_card_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_service.ClaimService.__init__, "__kwdefaults__", {"room_wait_s": 0.1})
    async with dra_world(8) as world:
        await world.claim("big", (0, 6))
        await world.claim("late", (0, 4))
        await world.prepare("big")
        refused = (await world.prepare("late"))["late"]
        assert refused.error == (
            f"claim default/late: card {card(0)} has 8 units, of which other pods have 6 and this pod has 0: "
            "4 more are not there"
        )
        assert len(world.cdi_specs()) == 1


@pytest.mark.parametrize("gib", [0, -1])
async def test_an_allocation_by_hand_of_no_memory_is_refused(gib: int) -> None:
    async with dra_world(8) as world:
        await world.claim("a", (0, gib))
        refused = (await world.prepare("a"))["a"]
        assert refused.error == (
            f'claim default/a: memory "{gib}Gi" of device {device_names([card(0)])[card(0)]}; '
            "allowed: more than 0"
        )
        assert not world.cdi_specs()
        await until(lambda: world.used == [0], "used 0")


@pytest.mark.parametrize("missing", ["claim", "allocation", "pod", "pool"])
async def test_what_cannot_be_prepared_is_said(missing: str) -> None:
    async with dra_world(8) as world:
        await world.claim("a", (0, 1), pool="elsewhere" if missing == "pool" else NODE)
        if missing == "claim":
            await world.call("DELETE", f"{CLAIMS}/a")
        if missing == "allocation":
            found = await world.call("GET", f"{CLAIMS}/a")
            await world.call("PUT", f"{CLAIMS}/a/status", found | {"status": {}})
        if missing == "pod":
            world.end_pod("pod-a")
        error = (await world.prepare("a"))["a"].error
        assert {
            "claim": "cannot be read",
            "allocation": "is not allocated",
            "pod": "is reserved for no pod of node n1",
            "pool": "is no card of this node",
        }[missing] in error
        await until(lambda: world.used == [0], "used 0")


async def test_a_daemon_that_starts_anew_knows_its_claims_and_writes_their_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(release, "CGROUP_GRACE_S", 0.5)
    async with dra_world() as world:
        uid = await world.claim("a", (0, 5))
        before = (await world.prepare("a"))["a"]
        await world.settled([5, 0], {uid})
        specs = world.cdi_specs()
        await world.kill_daemon()
        for path in world.cdi.iterdir():
            path.unlink()
        (world.cdi / "gpupack.io-claim_of-nobody.json").write_text("{}")
        (world.cdi / f"gpupack.io-claim_{world.uids['a']}.json").write_bytes(b"\xff torn")

        await world.start_daemon()
        assert world.cdi_specs() == specs
        await world.settled([5, 0], {uid})
        assert (await world.prepare("a"))["a"] == before
        world.end_pod("pod-a")
        await world.unprepare("a")
        await world.settled([0, 0], set())


async def test_slices_that_somebody_deletes_or_changes_are_published_again() -> None:
    async with dra_world() as world:
        (found,) = world.slices()
        path = f"/apis/resource.k8s.io/v1/resourceslices/{found['metadata']['name']}"
        await world.call("DELETE", path)
        await until(
            lambda: [one for one in world.slices() if one["metadata"]["uid"] != found["metadata"]["uid"]]
        )
        (found,) = world.slices()
        devices = found["spec"]["devices"]
        await world.call("PUT", path, {**found, "spec": {**found["spec"], "devices": devices[:1]}})
        await until(lambda: world.slices()[0]["spec"]["devices"] == devices, "both devices again")


async def test_the_fullest_card_stands_first_and_a_cordoned_one_is_tainted() -> None:
    async with dra_world(8, 8) as world:
        await world.prepared("a", (1, 5))

        def order() -> list[str]:
            return [one["attributes"]["uuid"]["string"] for one in world.slices()[0]["spec"]["devices"]]

        await until(lambda: order() == [card(1), card(0)], "the fuller card first")
        world.api.patch_node(NODE, {"metadata": {"annotations": {"gpupack.io/cordon": card(0)}}})
        await until(
            lambda: (
                [
                    one.get("taints", []) and one["taints"][0]["key"]
                    for one in world.slices()[0]["spec"]["devices"]
                ]
                in ([[], "gpupack.io/cordoned"], ["gpupack.io/cordoned", []])
            ),
            "the taint",
        )


async def test_a_socket_that_is_gone_is_served_again() -> None:
    async with dra_world() as world:
        world.registry.unlink()
        await until(world.registry.exists, "socket")
        info = await world.register()
        assert info.name == DRIVER
        await until(world.daemon.ready.is_set)


async def test_what_the_kubelet_remembers_of_a_stopped_device_plugin_is_left_to_it() -> None:
    """Else both write the Node again and again, until the kubelet forgets the plugin."""
    async with dra_world() as world:

        def amounts() -> list[str]:
            status = world.api.node(NODE)["status"]
            return [status[side][GIB] for side in ("capacity", "allocatable")]

        world.api.patch_node(NODE, {"status": {"capacity": {GIB: "16"}, "allocatable": {GIB: "0"}}})
        cordon = {"gpupack.io/cordon": card(0)}
        world.api.patch_node(NODE, {"metadata": {"annotations": cordon}})
        await until(
            lambda: any("taints" in one for one in world.slices()[0]["spec"]["devices"]),
            "the daemon has seen what was written last",
        )
        assert amounts() == ["16", "0"]

        world.api.patch_node(NODE, {"status": {"allocatable": {GIB: "16"}}})
        await until(lambda: amounts() == ["0", "0"], "nothing that a pod could be given")


async def test_who_does_not_own_the_node_writes_neither_slices_nor_its_kind() -> None:
    """Two daemons with the same --node-name would write over each other's cards again and again."""

    def change(annotations: Mapping[str, str | None]) -> None:
        world.api.patch_node(NODE, {"metadata": {"annotations": annotations}})

    def annotations() -> Mapping[str, str]:
        found: Mapping[str, str] = world.api.node(NODE)["metadata"]["annotations"]
        return found

    async with dra_world() as world:
        before = world.slices()
        change({NODE_DAEMON: json.dumps({"owner": {"host": "other"}})})
        await until(lambda: "claim" in annotations()[NODE_DAEMON], "it asks whether the other is alive")
        change({NODE_CORDON: card(0), NODE_SERVES: None})
        await asyncio.sleep(1.0)
        assert (world.slices(), annotations().get(NODE_SERVES)) == (before, None)
        change({NODE_DAEMON: None})
        await until(lambda: NODE_SERVES in annotations() and world.slices() != before, "the Node is its own")


async def test_a_node_changes_its_kind_drained_only() -> None:
    async with dra_world() as world:
        await world.prepared("a", (0, 5))
        await world.stop_daemon()
        with pytest.raises(KindInUseError, match="1 pods of this node have their cards by claims"):
            await world.spawn_daemon(serve="device-plugin")
        _claim_file(world).write_bytes(b"{")
        with pytest.raises(KindInUseError, match=f"cannot be read, such as {world.uids['a']}"):
            await world.spawn_daemon(serve="device-plugin")


async def test_another_unit_in_use_stops_the_start() -> None:
    """A claim of few large units would count as few small ones. Its containers keep what they have."""
    async with dra_world() as world:
        uid = await world.prepared("a", (0, 5))
        before = world.cdi_specs()
        await world.stop_daemon()
        with pytest.raises(UnitInUseError, match=f"pod {uid} holds gpupack.io/gpu-memory-gib.*drain"):
            await world.spawn_daemon(unit_mib=512, serve="dra", cdi_dirs=(world.cdi,))
        assert world.cdi_specs() == before


async def test_a_pod_of_which_nobody_knows_whether_it_runs_keeps_the_other_kind_away(
    mocker: MockerFixture,
) -> None:
    async with dra_world() as world:
        uid = await world.prepared("a", (0, 5))
        await world.stop_daemon()
        unknown = CgroupProbe(unknown=frozenset({uid}), problem="too many open files")
        mocker.patch.object(KubeletCgroups, "probe", return_value=unknown)
        with pytest.raises(KindInUseError, match=f"1 pods of this node .* such as {uid}"):
            await world.spawn_daemon(serve="device-plugin")


async def test_a_shared_claim_is_of_another_pod_once_its_own_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Words, status and the other kind of daemon know of it."""
    monkeypatch.setattr(claim_service, "SHARERS_LOOK_S", 0.05)
    monkeypatch.setattr(release, "CGROUP_GRACE_S", 0.5)
    async with dra_world(8, 16) as world:
        first = await world.claim("a", (0, 2), (0, 3), (1, 5))
        second = await world.share("a", "second")
        await world.prepare("a")
        await world.settled([5, 5], {first})
        world.end_pod("pod-a")
        await world.settled([5, 5], {second})
        path = f"{CLAIMS}/a"

        async def is_told() -> bool:
            devices = (await world.call("GET", path))["status"].get("devices", ())
            return {device["data"]["pod"] for device in devices} == {"second"}

        await until(is_told)
        await world.stop_daemon()
        with pytest.raises(KindInUseError, match=f"1 pods of this node .* such as {second}"):
            await world.spawn_daemon(serve="device-plugin")
        await world.start_daemon()
        await world.settled([5, 5], {second})
        world.end_pod("second")
        await world.unprepare("a")
        await world.settled([0, 0], set())


@pytest.mark.parametrize("unit_mib", [1024, 512])
async def test_pods_of_the_device_plugin_keep_claims_away(unit_mib: int) -> None:
    """Also where the unit is another one from then on."""
    async with node_world() as world:
        await world.run("a", 2)
        await world.stop_daemon()
        with pytest.raises(KindInUseError, match="1 pods of this node have devices of the device plugin"):
            await world.spawn_daemon(serve="dra", cdi_dirs=(world.folder / "cdi",), unit_mib=unit_mib)


async def test_a_torn_checkpoint_keeps_claims_away_and_the_error_says_what_to_do() -> None:
    """A kubelet without a device plugin leaves the file as it is; a device plugin would have it written."""
    async with dra_world() as world:
        await world.stop_daemon()
        checkpoint = world.kubelet.device_plugin_dir / CHECKPOINT_NAME
        checkpoint.write_bytes(b'{"Data":')
        said = f"{re.escape(str(checkpoint))}: torn: .*; if that lasts, drain the node, remove the file"
        with pytest.raises(KindInUseError, match=f"--serve dra: pods may have devices .*: {said}"):
            await world.start_daemon()
        checkpoint.unlink()
        await world.start_daemon()


async def test_a_daemon_that_no_kubelet_finds_says_where_it_waits() -> None:
    async with dra_world() as world:
        await world.stop_daemon()
        elsewhere = world.folder / "elsewhere"
        world.spawn_daemon(serve="dra", cdi_dirs=(world.cdi,), kubelet_dir=elsewhere)
        registry = elsewhere / "plugins_registry" / f"{DRIVER}-reg.sock"
        await until(registry.is_socket, "our socket")
        url = f"http://127.0.0.1:{world.daemon.http_port}/readyz"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            told = (answer.status, await answer.text())
        said = f"which is to call {registry}: --kubelet-dir is the kubelet's --root-dir"
        assert told[0] == 503
        assert told[1].splitlines()[0] == f"not registered with the kubelet, {said}"


async def test_mig_instances_are_devices_of_their_own_and_a_claim_names_its_instance(
    driver: Driver, tmp_path: Path
) -> None:
    """Of one card in MIG mode and a whole one: what the driver shows is what the slice tells apart."""
    names = ["MIG-1b6f6ef2-8d3c-5d0f-9c5e-4f0e0f5d1c01", "MIG-1b6f6ef2-8d3c-5d0f-9c5e-4f0e0f5d1c05"]
    driver.cards[0].mig = [
        Card(names[0], total_mib=40448, reserved_mib=40, instance=1),
        Card(names[1], total_mib=9728, reserved_mib=10, instance=5),
    ]
    async with dra_world(source=NvmlGpus(pci_devices=tmp_path)) as world:
        (found,) = world.slices()
        devices = found["spec"]["devices"]
        assert {
            one["name"]: (
                one["attributes"]["type"]["string"],
                one["attributes"]["uuid"]["string"],
                one["capacity"]["memory"]["value"],
            )
            for one in devices
        } == {
            names[0].lower(): ("mig", names[0], "39Gi"),
            names[1].lower(): ("mig", names[1], "9Gi"),
            "gpu-b": ("gpu", "GPU-b", "79Gi"),
        }

        await world.claim("a", (1, 4), uuids=[*names, "GPU-b"])
        answer = (await world.prepare("a"))["a"]
        assert not answer.error
        (spec,) = world.cdi_specs()
        (made,) = spec["devices"]
        assert set(made["containerEdits"]["env"]) >= {
            f"NVIDIA_VISIBLE_DEVICES={names[1]}",
            f"GPUPACK_CARDS={names[1]}:4",
            "GPUPACK_MEMORY_MIB=4096",
        }
        await until(lambda: world.used == [0, 4, 0], "the units of the instance alone")
        await world.unprepare("a")
        assert world.cdi_specs() == []


@pytest.mark.parametrize(
    ("answers", "verdict", "says"),
    [
        ({}, "ok", "sockets in"),
        (
            {"/version": {"major": "1", "minor": "35+", "gitVersion": "v1.35.4-cloud"}},
            "bad",
            "the API server is Kubernetes v1.35.4-cloud; allowed: 1.36 or later",
        ),
        (
            {DRA_API: None},
            "bad",
            "the API server does not serve resourceclaims, resourceslices of resource.k8s.io/v1",
        ),
        ({"/version": []}, "less", "what the API server can do is not known"),
    ],
    ids=["served", "old", "no API", "something else"],
)
async def test_check_says_what_the_api_server_lacks(
    answers: Mapping[str, Any], verdict: str, says: str
) -> None:
    async with dra_world() as world:

        async def intercept(request: web.Request) -> web.Response | None:
            if request.path not in answers:
                return None
            answer = answers[request.path]
            return web.json_response(answer, status=404 if answer is None else 200)

        world.api.http.intercept = intercept
        settings = world.settings(serve="dra", profile="2xt4", cdi_dirs=(world.cdi,))
        findings = await asyncio.to_thread(check_node, settings)
        (claims,) = [each for each in findings if each.what == "claims (--serve dra)"]
        assert (claims.verdict, says in claims.found) == (verdict, True), claims


NVML = {"gpus": "nvml", "profile": None}


class Machine:
    """A machine with NVIDIA cards, whose device nodes are numbered at each start."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver = driver
        self.devices = folder / "dev"
        self.devices.mkdir()

    def boot(self, *uuids: str) -> NvmlGpus:
        for path in self.devices.iterdir():
            path.unlink()
        for name in ("nvidiactl", *(f"nvidia{minor}" for minor in range(len(uuids)))):
            (self.devices / name).touch()
        self.driver.cards = [
            Card(uuid, minor=minor, bus_id=f"00000000:{minor:02X}:00.0") for minor, uuid in enumerate(uuids)
        ]
        return NvmlGpus(pci_devices=self.devices)


@pytest.fixture
def machine(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(driver, tmp_path)
    monkeypatch.setattr(container_responses, "DEVICES", machine.devices)
    return machine


async def test_a_node_waits_for_the_toolkits_names_before_it_serves(machine: Machine) -> None:
    """At the start of the machine: the kubelet keeps the names that a container was given first."""
    names = {"device_list_strategy": ("cdi-cri",)}
    async with dra_world(source=machine.boot("GPU-a"), start=False, **NVML, **names) as world:
        cdi = world.folder / "cdi"
        cdi.mkdir()
        starting = asyncio.create_task(world.start())
        await until(lambda: hasattr(world, "daemon") and world.daemon.http_port, "the HTTP server")
        url = f"http://127.0.0.1:{world.daemon.http_port}/readyz"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert "no CDI specification" in await answer.text()
        assert not starting.done()
        spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "GPU-a"}]}
        (cdi / "nvidia.json").write_text(json.dumps(spec))
        await starting
        await world.claim("a", (0, 4), uuids=["GPU-a"])
        (device,) = (await world.prepare("a"))["a"].devices
        assert "nvidia.com/gpu=GPU-a" in device.cdi_device_ids


def _nodes(world: DraWorld) -> list[list[str]]:
    edits = [spec["devices"][0]["containerEdits"] for spec in world.cdi_specs()]
    return [[node["path"] for node in edit["deviceNodes"]] for edit in edits]


async def test_after_a_reboot_a_claim_gives_the_node_that_its_card_has_now(machine: Machine) -> None:
    async with dra_world(source=machine.boot("GPU-a", "GPU-b", "GPU-c"), **NVML) as world:
        await world.prepared("b", (1, 4), uuids=["GPU-a", "GPU-b", "GPU-c"])
        assert _nodes(world) == [["/dev/nvidia1", "/dev/nvidiactl"]]
        await world.stop_daemon()

        world.source = machine.boot("GPU-b", "GPU-c")
        await world.start_daemon()
        assert _nodes(world) == [["/dev/nvidia0", "/dev/nvidiactl"]]
        assert not (await world.prepare("b"))["b"].error
        await until(lambda: world.used == [4, 0], "4 units of GPU-b")


async def test_a_claim_whose_card_is_gone_after_a_reboot_is_refused_and_stays_charged(
    machine: Machine,
) -> None:
    async with dra_world(source=machine.boot("GPU-a", "GPU-b", "GPU-c"), **NVML) as world:
        await world.prepared("b", (1, 4), uuids=["GPU-a", "GPU-b", "GPU-c"])
        await world.stop_daemon()

        world.source = machine.boot("GPU-a", "GPU-c")
        await world.start_daemon()
        assert world.cdi_specs() == [], "its node is GPU-c's by now"
        assert (await world.prepare("b"))["b"].error == (
            "claim default/b: card GPU-b is not on this node; pod pod-b has it until it is deleted"
        )
        assert json.loads(_claim_file(world).read_bytes())["shares"][0]["uuid"] == "GPU-b"
        await world.stop_daemon()

        world.source = machine.boot("GPU-a", "GPU-b", "GPU-c")
        await world.start_daemon()
        await until(lambda: world.used == [0, 4, 0], "charged again")
        assert not (await world.prepare("b"))["b"].error
        assert _nodes(world) == [["/dev/nvidia1", "/dev/nvidiactl"]]


def _claim_file(world: DraWorld) -> Path:
    (path,) = (world.kubelet_dir / "plugins" / DRIVER / "claims").glob("*.json")
    return path


async def test_a_claim_that_cannot_be_read_is_not_none() -> None:
    async with dra_world(8, 8) as world:
        uid = await world.prepared("a", (0, 6))
        await world.settled([6, 0], {uid})
        await world.kill_daemon()
        words, specs = world.words(), world.cdi_specs()
        whole = _claim_file(world).read_bytes()
        _claim_file(world).write_bytes(whole[:40])
        await world.start_daemon(slices=False)
        assert world.cdi_specs() == specs, "the pod's container may start again"
        problem = str(world.daemon.account and world.daemon.account.checkpoint_problem)
        assert problem.startswith(f"prepared claim {_claim_file(world)} cannot be read: ")
        assert problem.endswith("; if that lasts, delete its pod")
        await world.claim("b", (0, 2))
        refused = (await world.prepare("b"))["b"].error
        assert "claim default/b: prepared claim" in refused
        assert world.words() == words, "nothing more is published"

        # The kubelet has it prepared anew, as it does for each new sandbox of a pod.
        assert not (await world.prepare("a"))["a"].error
        assert not (await world.prepare("b"))["b"].error
        await until(lambda: world.used == [8, 0], "both claims")


async def test_claims_that_cannot_be_read_are_prepared_anew_without_asking_for_room() -> None:
    async with dra_world(8, 8) as world:
        for name, gib in (("a", 5), ("b", 3)):
            await world.prepared(name, (0, gib))
        await until(lambda: world.used == [8, 0], "both claims")
        await world.kill_daemon()
        for path in (world.kubelet_dir / "plugins" / DRIVER / "claims").glob("*.json"):
            path.write_bytes(b"")
        await world.start_daemon(slices=False)
        ledger = world.daemon.account and world.daemon.account.ledger
        assert ledger is not None
        ledger.set_healthy(card(0), False)
        assert not (await world.prepare("a"))["a"].error, "its containers run, whatever the card says"
        assert not ledger.is_complete, "it is not known what the other one has"
        assert not (await world.prepare("b"))["b"].error
        ledger.set_healthy(card(0), True)
        await world.claim("c", (1, 1))
        assert not (await world.prepare("c"))["c"].error
        await until(lambda: world.used == [8, 1], "all claims")


@pytest.mark.parametrize("wrong", [("", ""), ("::", ":"), ('"uid":"', '"uid":"x')])
async def test_a_claim_that_cannot_be_read_ends_with_its_pod(wrong: tuple[str, str]) -> None:
    async with dra_world(8, 8) as world:
        await world.prepared("a", (0, 6))
        await world.kill_daemon()
        whole = _claim_file(world).read_text()
        _claim_file(world).write_text(whole.replace(*wrong) if wrong[0] else "")
        half_written = _claim_file(world).with_name(f".{_claim_file(world).name}.new")
        half_written.write_text(whole[:40])
        await world.start_daemon(slices=False)
        assert "prepared claim" in str(world.daemon.account and world.daemon.account.checkpoint_problem)
        world.end_pod("pod-a")
        assert await world.unprepare("a") == {"a": ""}
        await until(lambda: world.used == [0, 0], "nothing is in use")
        assert world.cdi_specs() == []
        assert not half_written.exists()


async def test_a_claim_is_let_go_after_the_call_that_the_kubelet_gave_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a slow disk the file of the first call would come after the second, and be charged for ever."""
    entered, may_write, written = threading.Event(), threading.Event(), threading.Event()
    write = PreparedClaims.write

    def slow(claims: PreparedClaims, claim: PreparedClaim) -> None:
        entered.set()
        may_write.wait(DEADLINE_S)
        write(claims, claim)
        written.set()

    monkeypatch.setattr(PreparedClaims, "write", slow)
    monkeypatch.setattr(release, "CGROUP_GRACE_S", 0.5)
    async with dra_world(8, 8) as world:
        await world.claim("a", (0, 6))
        preparing = asyncio.create_task(world.prepare("a"))
        assert await asyncio.to_thread(entered.wait, DEADLINE_S)
        preparing.cancel()
        await asyncio.gather(preparing, return_exceptions=True)
        world.end_pod("pod-a")
        letting_go = asyncio.create_task(world.unprepare("a"))
        await asyncio.sleep(0.2)
        may_write.set()
        assert await letting_go == {"a": ""}
        assert await asyncio.to_thread(written.wait, DEADLINE_S)
        await until(lambda: world.used == [0, 0], "nothing is in use")
        assert not list((world.kubelet_dir / "plugins" / DRIVER / "claims").iterdir())


async def test_a_claim_is_let_go_after_a_call_that_waited_for_it_to_be_let_go_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered = {name: threading.Event() for name in ("remove", "write")}
    go_on = {name: threading.Event() for name in entered}
    remove, write = CdiFiles.remove, PreparedClaims.write

    def slow_remove(files: CdiFiles, uid: str) -> None:
        entered["remove"].set()
        go_on["remove"].wait(DEADLINE_S)
        remove(files, uid)

    def slow_write(claims: PreparedClaims, claim: PreparedClaim) -> None:
        entered["write"].set()
        go_on["write"].wait(DEADLINE_S)
        write(claims, claim)

    monkeypatch.setattr(CdiFiles, "remove", slow_remove)
    monkeypatch.setattr(PreparedClaims, "write", slow_write)
    async with dra_world(8, 8) as world:
        await world.claim("a", (0, 6))
        first = asyncio.create_task(world.unprepare("a"))
        assert await asyncio.to_thread(entered["remove"].wait, DEADLINE_S)
        preparing = asyncio.create_task(world.prepare("a"))
        await asyncio.sleep(0.2)
        go_on["remove"].set()
        assert await first == {"a": ""}
        assert await asyncio.to_thread(entered["write"].wait, DEADLINE_S)
        last = asyncio.create_task(world.unprepare("a"))
        await asyncio.sleep(0.2)
        go_on["write"].set()
        assert not (await preparing)["a"].error
        assert await last == {"a": ""}
        assert not list((world.kubelet_dir / "plugins" / DRIVER / "claims").iterdir())
        assert world.cdi_specs() == []


async def test_one_cdi_file_that_cannot_be_written_does_not_end_the_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim_service, "SHARERS_LOOK_S", 0.05)
    async with dra_world(8, 8) as world:
        for name, card_number in (("a", 0), ("b", 1)):
            await world.prepared(name, (card_number, 6))
        specs = world.cdi_specs()
        await world.stop_daemon()
        for path in world.cdi.iterdir():
            path.unlink()
        write = CdiFiles.write

        def full(files: CdiFiles, uid: str, spec: Mapping[str, Any]) -> None:
            if uid == world.uids["a"]:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(files, uid, spec)

        with monkeypatch.context() as patch:
            patch.setattr(CdiFiles, "write", full)
            await world.start_daemon()
            assert len(world.cdi_specs()) == 1
            await until(lambda: world.used == [6, 6], "both are charged")
            assert "No space left" in (await world.prepare("a"))["a"].error
        await until(lambda: world.cdi_specs() == specs, "the other file, as soon as there is room")


async def test_a_claim_that_waits_for_a_card_that_goes_is_refused(mocker: MockerFixture) -> None:
    """As a MIG instance goes."""
    async with dra_world(8, 8) as world:
        await world.prepared("a", (1, 6))
        await world.claim("b", (1, 6))
        waiting = asyncio.create_task(world.prepare("b"))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        mocker.patch.object(world.source, "cards", return_value=world.source.cards()[:1])
        assert (await waiting)["b"].error == f"claim default/b: card {card(1)} is not on this node any more"
