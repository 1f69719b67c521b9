"""Reading the kubelet's own checkpoint: real ones, others, none, and being told when it changed."""

import asyncio
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import CheckpointError, TornCheckpointError
from deviceplugin.kubelet.checkpoint import (
    CHECKPOINT_NAME,
    Checkpoint,
    CheckpointEntry,
    CheckpointReader,
    FileVersion,
    decode_checkpoint,
)
from tests.waiting import until

SAMPLES = Path(__file__).with_name("checkpoints")
RESOURCE = "gpupack.io/gpu-memory-gib"
STAMP = FileVersion(1, 2, 3)


def decode(data: bytes, stamp: FileVersion) -> Checkpoint:
    return decode_checkpoint(data, stamp, {})[0]


ENTRY = {
    "PodUID": "u1",
    "ContainerName": "main",
    "ResourceName": RESOURCE,
    "DeviceIDs": {"-1": ["GPU-0::0", "GPU-0::1"]},
    "AllocResp": "",
}
STORED: dict[str, Any] = {
    "Data": {"PodDeviceEntries": [ENTRY], "RegisteredDevices": {RESOURCE: ["GPU-0::0"]}},
    "Checksum": 7,
}


def changed(path: str, value: object) -> bytes:
    """The checkpoint with one field replaced, or taken out where `value` is `...`; the path is dotted."""
    made = json.loads(json.dumps(STORED))
    *outer, last = path.split(".")
    inside: Any = made
    for name in outer:
        inside = inside[int(name) if name.isdigit() else name]
    if value is ...:
        del inside[last]
    else:
        inside[last] = value
    return json.dumps(made).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / CHECKPOINT_NAME


def replace(path: Path, data: bytes) -> None:
    """As the kubelet does it: a new file, renamed over the old one."""
    new = path.with_name(".new")
    new.write_bytes(data)
    new.rename(path)


def remove(path: Path) -> None:
    path.unlink()


def test_a_kubelet_that_gave_nothing() -> None:
    checkpoint = decode((SAMPLES / "kubelet-1.36.3-fresh.json").read_bytes(), STAMP)
    assert checkpoint.entries == ()
    assert checkpoint.file_version == STAMP


def test_every_container_of_a_pod() -> None:
    """Init container, sidecar and two mains: all four are there, under their names."""
    data = (SAMPLES / "kubelet-1.36.3-init-sidecar-mains.json").read_bytes()
    checkpoint = decode(data, STAMP)
    assert len({entry.uid for entry in checkpoint.entries}) == 1
    assert {entry.container: len(entry.ids) for entry in checkpoint.entries} == {
        "prepare": 3,
        "side": 1,
        "main": 2,
        "second": 1,
    }
    # In order of pod and container, whatever order Go's map gave the file.
    assert [entry.container for entry in checkpoint.entries] == ["main", "prepare", "second", "side"]
    # An ordinary init container's IDs stand again under those who have them after it.
    times = Counter(identifier for entry in checkpoint.entries for identifier in entry.ids)
    assert sorted(times.values()) == [1, 2, 2, 2]
    assert all(identifier in json.loads(data)["Data"]["RegisteredDevices"][RESOURCE] for identifier in times)


def test_the_devices_of_every_numa_node_are_one_set() -> None:
    ids = {"-1": ["a"], "0": ["b", "c"], "1": ["c"]}
    (entry,) = decode(changed("Data.PodDeviceEntries.0.DeviceIDs", ids), STAMP).entries
    assert entry == CheckpointEntry("u1", "main", RESOURCE, frozenset("abc"))


@pytest.mark.parametrize("path", ["Extra", "Data.Extra", "Data.PodDeviceEntries.0.Extra"])
def test_more_fields_are_passed_over(path: str) -> None:
    assert decode(changed(path, {"a": [1]}), STAMP) == decode(json.dumps(STORED).encode(), STAMP)


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (b"", "truncated"),
        (json.dumps(STORED).encode()[:-20], "truncated"),
        (b"\x00" * 100, "malformed"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"Data":' + b"[" * 100_000, "Expected `object`, got `array`"),
        (b'{"Extra":' + b"[" * 100_000, "recursion"),
        (changed("Data.PodDeviceEntries.0.PodUID", "\udcff").replace(b"\\udcff", b"\xff"), "utf-8"),
        (changed("Checksum", ...), "missing required field `Checksum`"),
        (changed("Checksum", "7"), "$.Checksum"),
        (changed("Data", ...), "missing required field `Data`"),
        (changed("Data", None), "got `null` - at `$.Data`"),
        (changed("Data.PodDeviceEntries", ...), "missing required field `PodDeviceEntries`"),
        (changed("Data.PodDeviceEntries", {}), "$.Data.PodDeviceEntries"),
        (changed("Data.RegisteredDevices", ...), "missing required field `RegisteredDevices`"),
        (changed("Data.RegisteredDevices", [RESOURCE]), "$.Data.RegisteredDevices"),
        (changed("Data.PodDeviceEntries.0.PodUID", ...), "missing required field `PodUID`"),
        (changed("Data.PodDeviceEntries.0.PodUID", 5), "PodDeviceEntries[0].PodUID"),
        (changed("Data.PodDeviceEntries.0.ContainerName", ...), "missing required field `ContainerName`"),
        (changed("Data.PodDeviceEntries.0.ResourceName", None), "PodDeviceEntries[0].ResourceName"),
        # The checkpoint before Kubernetes 1.20 had no NUMA nodes.
        (changed("Data.PodDeviceEntries.0.DeviceIDs", ["GPU-0::0"]), "PodDeviceEntries[0].DeviceIDs"),
        (changed("Data.PodDeviceEntries.0.DeviceIDs", {"zero": []}), "DeviceIDs"),
        (changed("Data.PodDeviceEntries", [ENTRY, ENTRY]), f"two entries for u1 main {RESOURCE}"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value[:40],
)
def test_another_format_is_one_clear_line(path: Path, data: bytes, seen: str) -> None:
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        CheckpointReader(path.parent).read()
    message = str(caught.value)
    assert str(path) in message
    assert seen in message
    assert len(message) <= 256
    assert "\n" not in message


def test_the_message_says_what_is_allowed() -> None:
    with pytest.raises(
        CheckpointError, match=r"unknown format: .*; allowed: the checkpoint of Kubernetes 1\.22"
    ):
        decode(b"{}", STAMP)
    with pytest.raises(CheckpointError) as caught:
        decode(changed("Data.PodDeviceEntries", [ENTRY | {"PodUID": "u" * 1000}] * 2), STAMP)
    assert len(str(caught.value)) == 256


def test_what_did_not_change_is_not_read_again(path: Path) -> None:
    entries = [ENTRY | {"PodUID": f"u{at}"} for at in range(3)]
    reader = CheckpointReader(path.parent)
    replace(path, changed("Data.PodDeviceEntries", entries))
    before = reader.read()
    entries = [entries[2], ENTRY | {"PodUID": "u3"}, entries[0] | {"DeviceIDs": {"-1": ["GPU-0::7"]}}]
    replace(path, changed("Data.PodDeviceEntries", entries))
    after = reader.read()
    assert before is not None
    assert after is not None
    assert [(one.uid, min(one.ids)) for one in after.entries] == [
        ("u0", "GPU-0::7"),
        ("u2", "GPU-0::0"),
        ("u3", "GPU-0::0"),
    ]
    assert after.entries[1] is before.entries[2]


def test_a_young_file_of_the_same_bytes_is_the_same_checkpoint(path: Path) -> None:
    reader = CheckpointReader(path.parent)
    replace(path, changed("Checksum", 8))
    assert reader.read() is reader.read()
    found = path.stat()
    path.write_bytes(changed("Data.PodDeviceEntries.0.PodUID", "u2"))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    checkpoint = reader.read()
    assert checkpoint is not None
    assert checkpoint.entries[0].uid == "u2", "its times and size do not show it"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
PATHS = (
    "Data",
    "Checksum",
    "Data.PodDeviceEntries",
    "Data.RegisteredDevices",
    *(f"Data.PodDeviceEntries.0.{name}" for name in ENTRY),
)


@given(st.binary())
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        decode(data, STAMP)


@given(st.sampled_from(PATHS), JSON)
def test_a_wrong_field_is_refused_or_harmless(path: str, value: object) -> None:
    """Whatever stands in one field: there is a checkpoint of the right types, or the one error."""
    try:
        checkpoint = decode(changed(path, value), STAMP)
    except CheckpointError:
        return
    for entry in checkpoint.entries:
        assert all(isinstance(each, str) for each in (entry.uid, entry.container, entry.resource, *entry.ids))


@given(st.integers(0), st.sampled_from(sorted(SAMPLES.glob("*.json"))))
def test_a_torn_checkpoint_is_refused(at: int, sample: Path) -> None:
    whole = sample.read_bytes().rstrip()
    with pytest.raises(TornCheckpointError):
        decode(whole[: at % len(whole)], STAMP)


KEYS = st.tuples(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))


@given(st.dictionaries(KEYS, st.dictionaries(st.integers(-1, 3), st.sets(st.text()), min_size=1)))
def test_what_the_kubelet_writes_is_read(held: dict[Any, dict[int, set[str]]]) -> None:
    entries = [
        {
            "PodUID": uid,
            "ContainerName": container,
            "ResourceName": resource,
            "DeviceIDs": {str(numa): list(ids) for numa, ids in nodes.items()},
            "AllocResp": "",
        }
        for (uid, container, resource), nodes in held.items()
    ]
    data = {"Data": {"PodDeviceEntries": entries or None, "RegisteredDevices": {}}, "Checksum": 1}
    checkpoint = decode(json.dumps(data).encode(), STAMP)
    assert {(one.uid, one.container, one.resource): one.ids for one in checkpoint.entries} == {
        key: frozenset().union(*nodes.values()) for key, nodes in held.items()
    }


def test_no_file_is_no_checkpoint(path: Path) -> None:
    reader = CheckpointReader(path.parent)
    assert reader.read() is None
    replace(path, json.dumps(STORED).encode())
    assert reader.read() is not None
    path.unlink()
    assert reader.read() is None
    assert CheckpointReader(path.parent / "no-such-folder").read() is None


def test_an_unreadable_file_is_not_an_empty_checkpoint(path: Path) -> None:
    path.mkdir()
    with pytest.raises(CheckpointError, match="cannot be read: it is no regular file"):
        CheckpointReader(path.parent).read()


def test_a_pipe_in_the_place_of_the_checkpoint_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="cannot be read: it is no regular file"):
        CheckpointReader(path.parent).read()


def test_an_unchanged_file_is_not_read_again(path: Path) -> None:
    replace(path, json.dumps(STORED).encode())
    reader = CheckpointReader(path.parent, clock=lambda: time.time_ns() + 10**9)
    first = reader.read()
    found = path.stat()
    # Other bytes behind the same inode, time and size: only somebody who reads them would notice.
    path.write_bytes(b"x" * found.st_size)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert reader.read() is first


def test_a_replaced_file_is_read_again(path: Path) -> None:
    replace(path, json.dumps(STORED).encode())
    reader = CheckpointReader(path.parent, clock=lambda: time.time_ns() + 10**9)
    first = reader.read()
    found = path.stat()
    replace(path, changed("Data.PodDeviceEntries.0.PodUID", "u2"))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    second = reader.read()
    assert first is not None
    assert second is not None
    assert [entry.uid for entry in (*first.entries, *second.entries)] == ["u1", "u2"]
    assert first.file_version != second.file_version


def test_a_file_as_young_as_a_tick_of_the_clock_is_read_again(path: Path) -> None:
    """Two files of one tick may have one stamp: the inode of the one before the last is free again."""
    now = time.time_ns()
    replace(path, json.dumps(STORED).encode())
    os.utime(path, ns=(now, now))
    reader = CheckpointReader(path.parent, clock=lambda: now + 4_000_000)
    first = reader.read()
    assert reader.read() is first
    path.write_bytes(changed("Data.PodDeviceEntries.0.PodUID", "u2"))
    os.utime(path, ns=(now, now))
    second = reader.read()
    assert first is not None
    assert second is not None
    assert second.file_version == first.file_version
    assert [entry.uid for entry in second.entries] == ["u2"]


def test_after_an_unknown_format_the_next_one_is_read(path: Path) -> None:
    reader = CheckpointReader(path.parent)
    replace(path, json.dumps(STORED).encode())
    before = reader.read()
    replace(path, b"{}")
    for _ in range(2):
        with pytest.raises(CheckpointError):
            reader.read()
    replace(path, json.dumps(STORED).encode())
    after = reader.read()
    assert before is not None
    assert after is not None
    assert after.entries == before.entries


class Follower:
    """Counts what `changes` yields."""

    def __init__(self, reader: CheckpointReader) -> None:
        self.count = 0
        self._changes = reader.watch_changes()
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for _ in self._changes:
            self.count += 1

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._changes.aclose()

    async def more_than(self, count: int) -> int:
        await until(lambda: self.count > count)
        return self.count


async def test_changes_are_told(path: Path) -> None:
    """The first one comes with the watch, others when the file is made, replaced and removed."""
    follower = Follower(CheckpointReader(path.parent))
    count = await follower.more_than(0)
    replace(path, json.dumps(STORED).encode())
    count = await follower.more_than(count)
    replace(path, changed("Checksum", 8))
    count = await follower.more_than(count)
    remove(path)
    count = await follower.more_than(count)
    # Other files in the folder, sockets of plugins say, are none of it; a look comes each second at least.
    path.with_name("other.sock").write_text("")
    await asyncio.sleep(1.5)
    assert follower.count == count
    await follower.close()


async def test_changes_survive_a_folder_that_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "device-plugins"
    follower = Follower(CheckpointReader(folder))
    count = await follower.more_than(0)
    folder.mkdir()
    replace(folder / CHECKPOINT_NAME, json.dumps(STORED).encode())
    count = await follower.more_than(count)
    folder.rename(tmp_path / "old")
    count = await follower.more_than(count)
    folder.mkdir()
    replace(folder / CHECKPOINT_NAME, json.dumps(STORED).encode())
    count = await follower.more_than(count)
    replace(folder / CHECKPOINT_NAME, changed("Checksum", 8))
    await follower.more_than(count)
    await follower.close()


async def test_a_change_between_two_yields_is_not_lost(path: Path) -> None:
    changes = CheckpointReader(path.parent).watch_changes()
    await anext(changes)
    replace(path, json.dumps(STORED).encode())
    await asyncio.wait_for(anext(changes), 20)
    await changes.aclose()
