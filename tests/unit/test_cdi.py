"""CDI names of cards: the vendor's where its specification has them, else those of one that we write."""

import asyncio
import errno
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pytest_mock import MockerFixture

from deviceplugin import container_responses
from deviceplugin.containers import cdi, device_lists
from deviceplugin.containers.cdi import FILE_NAME, CdiNames, match_device_names, read_device_nodes
from deviceplugin.containers.device_lists import (
    ANNOTATION,
    CDI_ANNOTATIONS,
    CDI_CRI,
    ENVVAR,
    VOLUME_MOUNTS,
    DeviceListStrategies,
)
from deviceplugin.containers.device_nodes import DeviceNodes
from deviceplugin.dra.cdi_files import name_device
from deviceplugin.gpus.api.vendor import Vendor
from deviceplugin.gpus.nvidia.vendor import NVIDIA
from deviceplugin.gpus.simulated.profile import load_profile
from deviceplugin.gpus.simulated.source import SimulatedGpus
from deviceplugin.kubelet.plugin_service import _granted
from deviceplugin.settings import Settings
from tests.clock import Clock
from tests.responses_world import container_responses_of

CARDS = [simulated.card for simulated in load_profile("2xt4").cards]
UUIDS = [card.uuid for card in CARDS]
KIND = "nvidia.com/gpu"
UNNAMED = Vendor("gpu.invalid", "GPU_VISIBLE_DEVICES", "fault")

# The fields of the specification's JSON schema that we use, by hand: names, values and what must be there.
NAME = r"[A-Za-z0-9][A-Za-z0-9_.:-]*[A-Za-z0-9]"
ENV = r"[A-Za-z_][A-Za-z0-9_]*=.*"


def check_form(spec: dict[str, Any]) -> None:
    assert set(spec) == {"cdiVersion", "kind", "devices"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", spec["cdiVersion"])
    assert re.fullmatch(r"[a-z0-9.-]+/[A-Za-z][A-Za-z0-9_-]*", spec["kind"])
    names = [device["name"] for device in spec["devices"]]
    assert len(set(names)) == len(names) > 0
    for device in spec["devices"]:
        assert set(device) == {"name", "containerEdits"}
        assert re.fullmatch(NAME, device["name"])
        edits = device["containerEdits"]
        assert set(edits) <= {"env", "deviceNodes"}
        assert edits
        assert all(re.fullmatch(ENV, variable) for variable in edits["env"])
        assert all(
            set(node) == {"path"} and node["path"].startswith("/dev/")
            for node in edits.get("deviceNodes", ())
        )


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("etc", "run"):
        (tmp_path / name).mkdir()
    return tmp_path / "etc", tmp_path / "run"


def names(folders: tuple[Path, ...], *, devices: Path = Path("/nowhere"), vendor: Any = NVIDIA) -> CdiNames:
    found = CdiNames(vendor, folders, devices, wait_s=0)
    found.refresh(CARDS)
    return found


def toolkit(folder: Path, *devices: str, kind: str = KIND, suffix: str = "yaml") -> None:
    text = "".join(f'- {{name: "{name}", containerEdits: {{}}}}\n' for name in devices)
    (folder / f"nvidia.{suffix}").write_text(f"cdiVersion: 0.5.0\nkind: {kind}\ndevices:\n{text}")


def test_the_toolkits_names_are_used_and_nothing_is_written(folders: tuple[Path, Path]) -> None:
    toolkit(folders[0], "all", *UUIDS)
    assert names(folders).name_cards(UUIDS) == tuple(f"{KIND}={uuid}" for uuid in UUIDS)
    assert list(folders[1].iterdir()) == []


def test_indexes_where_the_toolkit_has_no_uuids(folders: tuple[Path, Path]) -> None:
    toolkit(folders[1], "0", "1", "all")
    assert names(folders).name_cards(UUIDS[::-1]) == (f"{KIND}=1", f"{KIND}=0")
    assert [path.name for path in folders[1].iterdir()] == ["nvidia.yaml"]


def with_nodes(folder: Path, nodes: dict[str, list[str]]) -> None:
    """What a toolkit writes that names cards by index: each with the nodes of one card."""
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/{node}"} for node in of_device]}}
        for name, of_device in nodes.items()
    ]
    text = json.dumps({"cdiVersion": "0.5.0", "kind": KIND, "devices": devices})
    (folder / "nvidia.json").write_text(text)


def test_a_card_keeps_its_device_where_one_before_it_is_gone(folders: tuple[Path, Path]) -> None:
    nodes = ["nvidia0", "dri/card1"], ["nvidia1", "nvidia-caps/nvidia-cap1"]
    with_nodes(folders[0], {"0": nodes[0], "1": nodes[1], "all": [*nodes[0], *nodes[1]]})
    assert names(folders).name_cards(UUIDS) == (f"{KIND}=0", f"{KIND}=1")
    # The specification is as old as the boot. The driver counts the cards that it has now.
    left = [replace(CARDS[1], index=0)]
    found = CdiNames(NVIDIA, folders, Path("/nowhere"))
    found.refresh(left)
    assert found.name_cards(UUIDS[1:]) == (f"{KIND}=1",)


def test_the_device_of_another_card_is_nobodys(folders: tuple[Path, Path]) -> None:
    with_nodes(folders[0], {"0": ["nvidia5"], "1": ["nvidiactl"], "2": ["nvidia1"]})
    assert not NVIDIA.is_card_node("/dev/nvidiactl")
    assert names(folders).name_cards(UUIDS) == (f"gpupack.io/gpu={UUIDS[0]}", f"{KIND}=2")


@pytest.mark.parametrize("minor", [-1, 7], ids=["the card's node is not known", "no node of a card"])
def test_an_index_counts_where_the_device_names_no_card(folders: tuple[Path, Path], minor: int) -> None:
    with_nodes(folders[0], {"0": ["dxg"], "1": ["nvidia9"] if minor < 0 else ["nvidiactl"]})
    found = CdiNames(NVIDIA, folders, Path("/nowhere"))
    found.refresh([replace(card, minor=minor) for card in CARDS])
    assert found.name_cards(UUIDS) == (f"{KIND}=0", f"{KIND}=1")


@pytest.mark.parametrize(
    "edits",
    [None, 4, {"deviceNodes": 4}, {"deviceNodes": [4]}, {"deviceNodes": [{}]}, {"deviceNodes": None}],
    ids=str,
)
def test_device_nodes_that_cannot_be_read_are_none(edits: Any) -> None:
    text = json.dumps({"kind": KIND, "devices": [{"name": "0", "containerEdits": edits}]})
    assert read_device_nodes(text, KIND) == {"0": frozenset()}


def test_indexes_are_not_trusted_beside_instances() -> None:
    instances = [CARDS[0], replace(CARDS[1], uuid="MIG-1", parent="GPU-9")]
    two: dict[str, frozenset[str]] = {"0": frozenset(), "1": frozenset()}
    assert match_device_names(instances, two, NVIDIA) == {}
    assert match_device_names(instances, {**two, "MIG-1": frozenset()}, NVIDIA) == {"MIG-1": f"{KIND}=MIG-1"}


def test_without_a_toolkit_ours_is_written_of_a_kind_of_our_own(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    devices = tmp_path / "dev"
    devices.mkdir()
    for node in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (devices / node).touch()
    found = names(folders, devices=devices)
    assert found.name_cards(UUIDS) == tuple(f"gpupack.io/gpu={uuid}" for uuid in UUIDS)
    spec = json.loads((folders[1] / FILE_NAME).read_text())
    check_form(spec)
    first, second = spec["devices"]
    assert first["containerEdits"] == {
        "env": [f"GPUPACK_CDI_CARD_0={UUIDS[0]}"],
        "deviceNodes": [{"path": f"/dev/{name}"} for name in ("nvidia0", "nvidiactl", "nvidia-uvm")],
    }
    assert [node["path"] for node in second["containerEdits"]["deviceNodes"]] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    ]
    assert [path.name for path in folders[1].iterdir()] == [FILE_NAME]


def test_simulated_cards_of_no_vendor_have_a_specification_too(folders: tuple[Path, Path]) -> None:
    found = names(folders, vendor=UNNAMED)
    check_form(json.loads((folders[1] / FILE_NAME).read_text()))
    assert found.name_cards(UUIDS[:1]) == (f"gpupack.io/gpu={UUIDS[0]}",)


def test_a_toolkit_that_comes_later_is_used_and_ours_stays_for_those_that_run(
    folders: tuple[Path, Path],
) -> None:
    found = names(folders)
    toolkit(folders[1], *UUIDS)
    found.refresh(CARDS)
    assert found.name_cards(UUIDS) == tuple(f"{KIND}={uuid}" for uuid in UUIDS)
    assert (folders[1] / FILE_NAME).exists()


def test_a_toolkit_that_lacks_a_card_leaves_that_one_to_us(folders: tuple[Path, Path]) -> None:
    toolkit(folders[1], UUIDS[0])
    assert names(folders).name_cards(UUIDS) == (f"{KIND}={UUIDS[0]}", f"gpupack.io/gpu={UUIDS[1]}")


def test_what_has_not_changed_is_not_written_again(folders: tuple[Path, Path]) -> None:
    found = names(folders)
    path = folders[1] / FILE_NAME
    before = path.stat()
    found.refresh(CARDS)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    found.refresh(CARDS[:1])
    assert path.stat().st_ino != before.st_ino
    assert len(json.loads(path.read_text())["devices"]) == 1
    path.unlink()
    found.refresh(CARDS)
    assert path.exists()


def test_rubbish_in_the_place_of_ours_is_overwritten(folders: tuple[Path, Path]) -> None:
    (folders[1] / FILE_NAME).write_bytes(b"\xff")
    CdiNames(NVIDIA, folders, wait_s=0).refresh(CARDS)
    check_form(json.loads((folders[1] / FILE_NAME).read_bytes()))


def test_folders_that_are_not_there_mean_that_somebody_else_sees_to_it(tmp_path: Path) -> None:
    found = names((tmp_path / "a", tmp_path / "b"))
    assert found.name_cards(UUIDS[:1]) == (f"{KIND}={UUIDS[0]}",)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["[", "[]", "devices: 4", "\x00", "kind: nvidia.com/gpu\ndevices: [4, {x: y}]"]
)
def test_rubbish_in_the_folders_is_passed_over(folders: tuple[Path, Path], text: str) -> None:
    (folders[0] / "nvidia.yaml").write_text(text)
    (folders[0] / "binary.json").write_bytes(b"\xff\xfe")
    (folders[0] / "folder.yaml").mkdir()
    (folders[0] / "notes.txt").write_text("x")
    assert names(folders).name_cards(UUIDS[:1]) == (f"gpupack.io/gpu={UUIDS[0]}",)


@pytest.mark.parametrize("call", ["read_text", "iterdir"])
def test_what_cannot_be_read_now_has_what_was_read_of_it_last(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Without a file descriptor left; and what was never read is read as soon as it can be."""

    def fails(path: Path, *_args: object, **_more: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    by_index = (f"{KIND}=0", f"{KIND}=1")
    toolkit(folders[0], "0", "1")
    found = CdiNames(NVIDIA, folders, Path("/nowhere"), wait_s=0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, call, fails)
        found.refresh(CARDS)
        assert found.name_cards(UUIDS) != by_index
    found.refresh(CARDS)
    assert found.name_cards(UUIDS) == by_index
    with monkeypatch.context() as patch:
        patch.setattr(Path, call, fails)
        toolkit(folders[0], "0", "1", "all")
        found.refresh(CARDS)
        assert found.name_cards(UUIDS) == by_index


SPECIFICATION = f"kind: {KIND}\ndevices:\n" + "".join(
    f'- {{name: "{uuid}", containerEdits: {{deviceNodes: [{{path: /dev/nvidia{at}}}]}}}}\n'
    for at, uuid in enumerate(UUIDS)
)


@pytest.mark.parametrize(
    "text",
    ["", "kin", SPECIFICATION[:-9], SPECIFICATION[: SPECIFICATION.index(UUIDS[1])], "devices: []\n", None],
    ids=["empty", "a word", "no YAML", "the first device alone", "the kind is missing", "the file is away"],
)
def test_a_specification_that_is_torn_or_away_for_a_moment_changes_no_names(
    folders: tuple[Path, Path], text: str | None
) -> None:
    """The kubelet keeps a container's names, and those of ours bring no driver libraries."""
    whole, path = SPECIFICATION, folders[0] / "nvidia.yaml"
    path.write_text(whole)
    clock = Clock()
    found = CdiNames(NVIDIA, folders, Path("/nowhere"), clock=clock)
    found.refresh(CARDS)
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    clock.now += 59
    found.refresh(CARDS)
    assert found.name_cards(UUIDS) == tuple(f"{KIND}={uuid}" for uuid in UUIDS)
    assert list(folders[1].iterdir()) == []
    path.write_text(whole)
    found.refresh(CARDS)
    assert found.name_cards(UUIDS) == tuple(f"{KIND}={uuid}" for uuid in UUIDS)


def test_a_specification_that_stays_away_is_gone(folders: tuple[Path, Path]) -> None:
    toolkit(folders[0], *UUIDS)
    clock = Clock()
    found = CdiNames(NVIDIA, folders, Path("/nowhere"), clock=clock)
    found.refresh(CARDS)
    (folders[0] / "nvidia.yaml").unlink()
    clock.now += 60
    found.refresh(CARDS)
    assert found.name_cards(UUIDS) == tuple(f"gpupack.io/gpu={uuid}" for uuid in UUIDS)


def test_names_wait_for_the_toolkit_once_after_each_start_of_the_machine(folders: tuple[Path, Path]) -> None:
    clock = Clock()
    found = CdiNames(NVIDIA, folders, Path("/nowhere"), clock=clock)
    found.refresh(CARDS)
    assert found.is_waiting
    assert list(folders[1].iterdir()) == []
    toolkit(folders[1], *UUIDS)
    found.refresh(CARDS)
    assert not found.is_waiting
    (folders[1] / "nvidia.yaml").unlink()
    without = CdiNames(NVIDIA, folders, Path("/nowhere"), clock=clock)
    clock.now += 60
    without.refresh(CARDS)
    assert not without.is_waiting
    assert without.name_cards(UUIDS[:1]) == (f"gpupack.io/gpu={UUIDS[0]}",)
    started_again = CdiNames(NVIDIA, folders, Path("/nowhere"), clock=clock)
    started_again.refresh(CARDS)
    assert not started_again.is_waiting


def test_nobody_waits_longer_for_a_folder_that_goes(folders: tuple[Path, Path]) -> None:
    clock = Clock()
    found = CdiNames(NVIDIA, folders, Path("/nowhere"), clock=clock)
    found.refresh(CARDS)
    for folder in folders:
        folder.rmdir()
    found.refresh(CARDS)
    assert found.is_waiting
    clock.now += 60
    found.refresh(CARDS)
    assert not found.is_waiting


def test_a_device_from_before_a_reboot_is_not_the_card_of_its_uuid(folders: tuple[Path, Path]) -> None:
    """Its node is another card's by now."""
    with_nodes(folders[0], {UUIDS[0]: ["nvidia0"], UUIDS[1]: ["nvidia1"]})
    found = CdiNames(NVIDIA, folders, Path("/nowhere"), wait_s=0)
    found.refresh(CARDS)
    assert found.name_cards(UUIDS) == tuple(f"{KIND}={uuid}" for uuid in UUIDS)
    found.refresh([replace(CARDS[1], index=0, minor=0)])
    assert found.name_cards(UUIDS[1:]) == (f"gpupack.io/gpu={UUIDS[1]}",)


def test_a_file_that_cannot_be_written_is_no_end(folders: tuple[Path, Path]) -> None:
    (folders[1] / f".{FILE_NAME}.new").mkdir()
    assert names(folders).name_cards(UUIDS[:1]) == (f"gpupack.io/gpu={UUIDS[0]}",)


def test_specifications_of_other_kinds_are_not_the_cards() -> None:
    assert read_device_nodes("kind: nvidia.com/gds\ndevices: [{name: all}]", KIND) == {}
    assert read_device_nodes("kind: nvidia.com/gpu", KIND) == {}


def test_cards_that_no_specification_of_ours_can_have_keep_the_vendors_names(
    folders: tuple[Path, Path],
) -> None:
    instance = replace(CARDS[0], uuid="MIG-1", parent="GPU-9")
    found = CdiNames(NVIDIA, folders, wait_s=0)
    found.refresh([instance, CARDS[1]])
    assert found.name_cards(["MIG-1", UUIDS[1]]) == (f"{KIND}=MIG-1", f"gpupack.io/gpu={UUIDS[1]}")


def test_old_instance_uuids_become_names(folders: tuple[Path, Path]) -> None:
    card = replace(CARDS[0], uuid="MIG-GPU-1/7/0")
    found = CdiNames(NVIDIA, folders, wait_s=0)
    found.refresh([card])
    assert found.name_cards([card.uuid]) == ("gpupack.io/gpu=MIG-GPU-1_7_0",)


@pytest.mark.parametrize(
    ("strategies", "visible", "annotated", "in_cri"),
    [
        ((ENVVAR,), "a,b", False, False),
        ((ENVVAR, CDI_CRI), "a,b", False, True),
        ((VOLUME_MOUNTS,), "void", False, False),
        ((CDI_ANNOTATIONS,), "void", True, False),
        ((CDI_ANNOTATIONS, CDI_CRI), "void", True, True),
    ],
)
def test_strategies(strategies: tuple[str, ...], visible: str, annotated: bool, in_cri: bool) -> None:
    wanted = device_lists.needs_cdi_names(strategies)
    assert wanted == (annotated or in_cri)
    grant = DeviceListStrategies(NVIDIA, strategies, CdiNames(NVIDIA) if wanted else None).describe_cards(
        ["a", "b"]
    )
    assert grant.envs == {"NVIDIA_VISIBLE_DEVICES": visible}
    both = (f"{KIND}=a", f"{KIND}=b")
    assert grant.annotations == ({ANNOTATION: ",".join(both)} if annotated else {})
    assert grant.cdi_devices == (both if in_cri else ())
    # NVIDIA's runtime reads the names of what /dev/null of the host is mounted on there.
    named = [(mount.host_path, mount.container_path) for mount in grant.mounts]
    folder = "/var/run/nvidia-container-devices"
    wanted_mounts = [("/dev/null", f"{folder}/a"), ("/dev/null", f"{folder}/b")]
    assert named == (wanted_mounts if VOLUME_MOUNTS in strategies else [])


def test_device_nodes_for_a_kubelet_that_tells_the_runtime_again(tmp_path: Path) -> None:
    for node in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / node).touch()
    nodes = DeviceNodes(NVIDIA, lambda: CARDS, tmp_path)
    grant = DeviceListStrategies(NVIDIA, nodes=nodes).describe_cards(UUIDS)
    assert [node.path for node in grant.devices] == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia1"]
    unnamed = DeviceListStrategies(UNNAMED, nodes=DeviceNodes(UNNAMED, lambda: CARDS, tmp_path))
    assert unnamed.describe_cards(UUIDS).devices == ()
    answer = _granted(grant)
    first = answer.devices[0]
    assert (first.host_path, first.container_path, first.permissions) == (
        "/dev/nvidia0",
        "/dev/nvidia0",
        "rw",
    )


@pytest.mark.parametrize(("gpus", "given"), [("nvml", ["/dev/nvidia0", "/dev/nvidiactl"]), ("simulated", [])])
def test_simulated_cards_give_no_nodes_of_the_machines_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, given: list[str]
) -> None:
    for node in ("nvidia0", "nvidiactl"):
        (tmp_path / node).touch()
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / FILE_NAME).write_text("of the daemon before, which waited for a toolkit")
    monkeypatch.setattr(container_responses, "DEVICES", tmp_path)
    settings = Settings(
        node_name="n1",
        gpus=gpus,
        pass_device_specs=True,
        device_list_strategy=(CDI_CRI,),
        cdi_dirs=(tmp_path / "cdi",),
    )
    made = container_responses_of(settings, SimulatedGpus(load_profile("2xt4")))
    asyncio.run(made.prepare())
    assert [
        node.path for node in asyncio.run(made.make_grant(dict.fromkeys(UUIDS[:1], 1024))).devices
    ] == given
    spec = json.loads((tmp_path / "cdi" / FILE_NAME).read_text())
    assert [node["path"] for node in spec["devices"][0]["containerEdits"].get("deviceNodes", [])] == given


def test_a_specification_is_parsed_once_as_long_as_it_stays(
    folders: tuple[Path, Path], mocker: MockerFixture
) -> None:
    """NVIDIA's has thousands of lines, and the folders are looked at every ten seconds."""
    toolkit(folders[0], *UUIDS)
    (folders[0] / "rubbish.yaml").write_text("[")
    parsing = mocker.spy(cdi, "read_device_nodes")
    found = names(folders)
    found.refresh(CARDS)
    assert parsing.call_count == 2
    toolkit(folders[0], UUIDS[0], "other-name")
    found.refresh(CARDS)
    assert parsing.call_count == 3
    assert found.name_cards(UUIDS[:1]) == (f"{KIND}={UUIDS[0]}",)


def test_every_request_of_a_claim_has_a_device_of_its_own() -> None:
    assert name_device("uid", "card") == "uid-card"
    assert name_device("uid", "card/large") != name_device("uid", "card-large")
