"""Pids to pods and pods to containers, in every naming of cgroups."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deviceplugin.host.cgroups import (
    CgroupProbe,
    PodCgroups,
    ProcessOwners,
    ProcessPlace,
    find_process_place,
    parse_pod_uid,
)

UID = "0f3c6a52-1b2d-4c3e-9f00-aabbccddeeff"
SLICE = UID.replace("-", "_")
GONE = "99999999-2222-4333-8444-555555555555"
OTHER = "11111111-2222-4333-8444-555555555555"
STATIC = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        pytest.param(f"0::/kubepods/pod{UID}/4f2a", UID, id="v2 cgroupfs guaranteed"),
        pytest.param(f"0::/kubepods/burstable/pod{UID}/4f2a/init", UID, id="v2 cgroupfs nested"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/cri-a.scope",
            UID,
            id="v2 systemd",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/crio-a.scope", UID, id="systemd guaranteed"
        ),
        pytest.param(f"0::/../../kubepods-burstable-pod{SLICE}.slice/cri-a.scope", UID, id="seen from a pod"),
        pytest.param(f"0::/../pod{UID}/4f2a", UID, id="cgroupfs seen from a pod"),
        pytest.param(f"0::/kubelet.slice/kubelet-kubepods-pod{SLICE}.slice/a", UID, id="kind"),
        pytest.param(
            f"12:cpuset:/\n4:memory:/x/kubepods/besteffort/pod{UID}/4f2a\n1:name=systemd:/\n", UID, id="v1"
        ),
        pytest.param(f"4:cpu,cpuacct:/kubepods/pod{UID}/a:b", UID, id="v1 with a colon in the path"),
        pytest.param(f"0::/kubepods/pod{UID}/4f2a (deleted)", UID, id="deleted container"),
        pytest.param(f"0::/kubepods/pod{UID} (deleted)", UID, id="deleted pod"),
        pytest.param(f"0::/kubepods/burstable/pod{STATIC}/4f2a", STATIC, id="static pod"),
        pytest.param(f"0::/kubepods/pod{OTHER}/aa/kubepods/pod{UID}/bb", UID, id="a cluster inside a pod"),
        pytest.param(f"0::/kubepods/pod{UID.upper()}/a", UID, id="capitals"),
        pytest.param("0::/system.slice/containerd.service", None, id="a service"),
        pytest.param("0::/podruntime.slice/kubelet.service", None, id="a slice that only sounds like a pod"),
        pytest.param("0::/machine.slice/libpod-4f2a.scope", None, id="podman"),
        pytest.param(f"0::/kubepods/pod{UID}x/4f2a", None, id="too long"),
        pytest.param("0::/", None, id="root"),
        pytest.param("", None, id="empty"),
        pytest.param("rubbish\n\n", None, id="rubbish"),
    ],
)
def test_the_pod_of_a_cgroup(text: str, uid: str | None) -> None:
    place = find_process_place(text)
    assert (place.uid if place is not None else None) == uid


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        (f"pod{UID}", UID),
        (f"kubepods-burstable-pod{SLICE}.slice", UID),
        (f"pod{UID.upper()}", UID),
        (f"pod{STATIC}", STATIC),
        ("pod" + "-" * 34, None),
        ("burstable", None),
    ],
)
def test_the_pod_that_a_cgroup_is_named_after_is_that_of_its_processes(name: str, uid: str | None) -> None:
    assert parse_pod_uid(name) == uid


def process(proc: Path, pid: int, text: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(text)


def test_owners_of_processes(tmp_path: Path) -> None:
    process(tmp_path, 1, f"0::/kubepods/pod{UID}/a")
    process(tmp_path, 2, "0::/user.slice")
    lookup = ProcessOwners(tmp_path)
    assert lookup.find_places([1, 2, 3]) == {1: ProcessPlace(UID, ""), 2: None}
    assert lookup.find_places([]) == {}


def test_a_process_that_ended_keeps_its_owner_while_the_driver_lists_it(tmp_path: Path) -> None:
    process(tmp_path, 1, f"0::/kubepods/pod{UID}/a")
    lookup = ProcessOwners(tmp_path)
    lookup.find_places([1])
    (tmp_path / "1" / "cgroup").unlink()
    assert lookup.find_places([1]) == {1: ProcessPlace(UID, "")}
    assert lookup.find_places([1]) == {1: ProcessPlace(UID, "")}
    assert lookup.find_places([]) == {}
    assert lookup.find_places([1]) == {}


def test_a_pid_that_is_used_again_gets_its_new_owner(tmp_path: Path) -> None:
    process(tmp_path, 1, f"0::/kubepods/pod{UID}/a")
    lookup = ProcessOwners(tmp_path)
    lookup.find_places([1])
    (tmp_path / "1" / "cgroup").write_text(f"0::/kubepods/pod{OTHER}/a")
    assert lookup.find_places([1]) == {1: ProcessPlace(OTHER, "")}


def container(root: Path, path: str, procs: str | None = "42\n", events: str | None = None) -> Path:
    folder = root / path
    folder.mkdir(parents=True)
    if procs is not None:
        (folder / "cgroup.procs").write_text(procs)
    if events is not None:
        (folder / "cgroup.events").write_text(events)
    return folder


@pytest.mark.parametrize(
    "path",
    [
        f"kubepods/pod{UID}/c",
        f"kubepods/burstable/pod{UID}/c",
        f"kubepods/besteffort/pod{UID}/c",
        f"kubepods.slice/kubepods-pod{SLICE}.slice/c.scope",
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/c.scope",
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/c.scope",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/c.scope",
        f"deep/er/kubepods/pod{UID}/c",
        f"a/b/c/d/e/f/g/kubepods/burstable/pod{UID}/c",
        f"system.slice/kubelet.service/kubepods/pod{UID}/c",
        f"user.slice/user-1000.slice/user@1000.service/k3s-rootless.scope/kubepods/burstable/pod{UID}/c",
    ],
)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_pod_with_a_container_is_alive(tmp_path: Path, path: str, version: str) -> None:
    if version == "v2":
        (tmp_path / "cgroup.controllers").touch()
        container(tmp_path, path, events="populated 1\nfrozen 0\n")
    else:
        (tmp_path / "cpuset").mkdir()
        container(tmp_path / "memory", path)
    assert PodCgroups(tmp_path).probe([UID, OTHER]).alive == {UID}


@pytest.mark.parametrize("parent", ["kubepods", "x/kubepods"])
def test_a_hierarchy_itself_may_be_the_root(tmp_path: Path, parent: str) -> None:
    container(tmp_path, f"{parent}/pod{UID}/c")
    assert PodCgroups(tmp_path).probe({UID}).alive == {UID}


def test_a_pod_without_containers_is_not(tmp_path: Path) -> None:
    (tmp_path / f"kubepods/pod{UID}").mkdir(parents=True)
    (tmp_path / f"kubepods/pod{UID}/cgroup.procs").write_text("")
    assert PodCgroups(tmp_path).probe([UID]).alive == set()


@pytest.mark.parametrize(
    ("procs", "events", "alive"),
    [
        ("42\n", "populated 1\n", True),
        ("", "frozen 0\npopulated 0\n", False),
        ("42\n", None, True),
        ("", None, False),
        (None, None, True),
    ],
)
def test_an_empty_leftover_does_not_count(
    tmp_path: Path, procs: str | None, events: str | None, alive: bool
) -> None:
    container(tmp_path, f"kubepods/pod{UID}/c", procs, events)
    assert bool(PodCgroups(tmp_path).probe([UID]).alive) == alive


def test_a_process_deeper_in_the_container_counts(tmp_path: Path) -> None:
    container(tmp_path, f"kubepods/pod{UID}/c", procs="")
    container(tmp_path, f"kubepods/pod{UID}/c/docker/inner", procs="7\n")
    (tmp_path / f"kubepods/pod{UID}/c/docker/cgroup.procs").write_text("")
    assert PodCgroups(tmp_path).probe([UID]).alive == {UID}


@pytest.mark.parametrize("name", ["cgroup.events", "cgroup.procs"])
def test_what_cannot_be_read_is_unknown(tmp_path: Path, name: str) -> None:
    (container(tmp_path, f"kubepods/pod{UID}/c", procs=None) / name).mkdir()
    container(tmp_path, f"kubepods/pod{OTHER}/c")
    found = PodCgroups(tmp_path).probe([UID, OTHER, GONE])
    assert (found.alive, found.unknown) == ({OTHER}, {UID})
    assert name in str(found.problem)


def test_without_a_mount_nothing_is_known(tmp_path: Path) -> None:
    """A folder of the host that is not mounted says nothing of what runs there."""
    found = PodCgroups(tmp_path / "absent").probe([UID])
    assert (found.alive, found.unknown) == (set(), {UID})
    assert "absent" in str(found.problem)


def test_who_asks_for_nobody_is_told_nothing(tmp_path: Path) -> None:
    assert PodCgroups(tmp_path / "absent").probe([]) == CgroupProbe()


@pytest.mark.parametrize(
    ("code", "unknown"),
    [
        (errno.ENOENT, False),
        (errno.ENODEV, False),
        (errno.EMFILE, True),
        (errno.ENFILE, True),
        (errno.ENOMEM, True),
        (errno.EACCES, True),
        (errno.EIO, True),
    ],
)
@pytest.mark.parametrize("events", [None, "populated 1\n"])
def test_only_what_the_kernel_calls_gone_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, unknown: bool, events: str | None
) -> None:
    path = container(tmp_path, f"kubepods/pod{UID}/c", events=events)
    for call in ("scandir", "read_text"):
        with failing(monkeypatch, call, code, path.parent if call == "scandir" else path):
            found = PodCgroups(tmp_path).probe([UID])
        if call == "scandir" or unknown:
            assert (UID in found.unknown, found.alive) == (unknown, set())
    assert PodCgroups(tmp_path).probe([UID]) == CgroupProbe(frozenset({UID}))


@pytest.mark.parametrize(
    ("code", "is_ours", "is_known"),
    [
        pytest.param(errno.ENAMETOOLONG, True, True, id="too deep for a path"),
        pytest.param(errno.EACCES, False, True, id="closed by a user"),
        pytest.param(errno.EACCES, True, False, id="closed by the system"),
        pytest.param(errno.EMFILE, False, False, id="no file descriptor left"),
    ],
)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_user_who_closes_his_cgroup_hides_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_ours: bool, is_known: bool, version: str
) -> None:
    if version == "v2":
        (tmp_path / "cgroup.controllers").touch()
    root = tmp_path if version == "v2" else tmp_path / "memory"
    container(root, f"x/kubepods/pod{UID}/c")
    users = root / "user.slice" / "user@1000.service"
    users.mkdir(parents=True)
    if not is_ours:
        monkeypatch.setattr(os, "geteuid", lambda: users.stat().st_uid + 1)
    with failing(monkeypatch, "scandir", code, users):
        found = PodCgroups(tmp_path).probe([UID, OTHER])
    expected = (frozenset({UID}), frozenset()) if is_known else (frozenset(), frozenset({UID, OTHER}))
    assert (found.alive, found.unknown) == expected


def test_a_container_may_nest_its_cgroups_deeper_than_pythons_stack(tmp_path: Path) -> None:
    folders = [container(tmp_path, f"kubepods/pod{UID}/c", procs="")]
    while len(folders) < 1100:
        folders.append(container(folders[-1], "a", procs=""))
    assert PodCgroups(tmp_path).probe([UID]) == CgroupProbe()
    for folder in reversed(folders):  # neither could pytest remove them
        (folder / "cgroup.procs").unlink()
        folder.rmdir()


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, call: str, code: int, where: Path) -> Iterator[None]:
    """Let the system's answer be an error for a path and all below it."""

    def of(real: Callable[..., object]) -> Callable[..., object]:
        def ask(path: object, *more: object) -> object:
            if Path(str(path)).is_relative_to(where):
                raise OSError(code, os.strerror(code), str(path))
            return real(path, *more)

        return ask

    with monkeypatch.context() as patch:
        owner = os if call == "scandir" else Path
        patch.setattr(owner, call, of(getattr(owner, call)))
        yield


WITHOUT_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from deviceplugin.host.cgroups import PodCgroups

root, uid, gone = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
cgroups, taken = PodCgroups(root), []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
# From none left to as many as are needed, one more each time.
while taken:
    found = cgroups.probe([uid, gone])
    assert uid in found.alive | found.unknown, (len(taken), found)
    os.close(taken.pop())
found = cgroups.probe([uid, gone])
assert (found.alive, found.unknown) == ({uid}, set()), found
"""


@pytest.mark.parametrize("deep", [False, True])
def test_a_daemon_without_a_file_descriptor_calls_no_pod_gone(tmp_path: Path, deep: bool) -> None:
    """The limit of open files is the process's: a real one, in a process of its own."""
    (tmp_path / "cgroup.controllers").touch()
    path = f"kubepods.slice/kubepods-pod{SLICE}.slice/c.scope"
    container(tmp_path, path, events=None if deep else "populated 1\n", procs="" if deep else "42\n")
    if deep:
        container(tmp_path, f"{path}/inner", procs="7\n")
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS, str(tmp_path), UID, GONE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_links_are_not_searched(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    container(tmp_path / "real", f"b.service/pod{OTHER}/c")
    (tmp_path / "kubepods").symlink_to(tmp_path / "real" / "b.service")
    assert PodCgroups(tmp_path).probe([OTHER]).alive == set()


def test_a_pod_that_ends_is_gone_at_the_next_look(tmp_path: Path) -> None:
    folder = container(tmp_path, f"kubepods/pod{UID}/c")
    cgroups = PodCgroups(tmp_path)
    assert cgroups.probe([UID]).alive == {UID}
    (folder / "cgroup.procs").unlink()
    folder.rmdir()
    assert cgroups.probe([UID]).alive == set()


@pytest.mark.parametrize("files", [(), ("cgroup.controllers", "cgroup.events")], ids=["nothing", "its own"])
def test_without_the_hosts_cgroups_nothing_is_known(tmp_path: Path, files: tuple[str, ...]) -> None:
    """A container that the host's are not mounted in sees an empty folder, or its own cgroup, and no pods."""
    for file in files:
        (tmp_path / file).write_text("")
    found = PodCgroups(tmp_path).probe({UID})
    assert (found.alive, found.unknown) == (frozenset(), {UID})
    assert found.problem == f"{tmp_path} has no kubepods folder and is not the host's: mount that there"


@pytest.mark.parametrize("files", [("cgroup.controllers",), ("cgroup.controllers", "cgroup.events")])
def test_pods_may_be_below_another_cgroup(tmp_path: Path, files: tuple[str, ...]) -> None:
    """A node that is a container itself, as kind's, has its pods there; the first one may have none."""
    for file in files:
        (tmp_path / file).write_text("")
    if "cgroup.events" in files:
        container = (
            tmp_path / "kubelet.slice" / "kubelet-kubepods.slice" / f"kubelet-kubepods-pod{SLICE}.slice"
        )
        (container / "a").mkdir(parents=True)
        (container / "a" / "cgroup.events").write_text("populated 1\n")
    probe = PodCgroups(tmp_path).probe({UID, OTHER})
    alive = {UID} if "cgroup.events" in files else set()
    assert (probe.alive, probe.unknown, probe.problem) == (alive, frozenset(), None)
