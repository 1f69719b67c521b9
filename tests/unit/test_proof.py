"""`gpupack node --check --prove` on simulated cards, in the moods that NVIDIA's documents allow."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.memory_limits import LimitSupport
from deviceplugin.gpus.api.source import GpuProcess
from deviceplugin.gpus.simulated.profile import parse_profile
from deviceplugin.proof.prover import BUSY, LIMIT_MIB
from deviceplugin.proof.scratch import NAME, ScratchCgroup
from gpupack.cli.node import node
from tests.proof_world import PROFILE, Used, User, found, prove, prover, results, root_of, simulated

READ = {
    "who manages the memory": "measured",
    "used and reserved memory": "measured",
    "an idle card is empty": "proven",
    "news of the card": "proven",
    "MPS": "measured",
    "MIG mode": "measured",
}
TRIED = {
    **READ,
    "backend": "measured",
    "limit never set": "measured",
    "limit set and read": "proven",
    "limit of a cgroup below": "measured",
    "size that a process is told": "proven",
    "limit refuses": "proven",
    "use is counted": "proven",
    "processes": "proven",
    "limit taken back": "proven",
    "more without the limit": "proven",
    "undone": "proven",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return root_of(tmp_path)


def left(root: Path) -> list[str]:
    """Name the cgroups that are there beside the pods'."""
    return sorted(path.name for path in (root / "kubepods").iterdir())


@pytest.mark.parametrize(
    ("unset", "says"),
    [("unlimited", "no limit"), ("not_found", "not_found"), ("not_supported", "not_supported")],
)
@pytest.mark.parametrize("backend", ["misc", "dmem"])
def test_everything_is_proven_in_every_mood(root: Path, unset: str, says: str, backend: str) -> None:
    source = simulated(f"limits: {{unset: {unset}, backend: {backend}}}")
    proofs = prove(source, root)
    assert results(proofs) == TRIED
    assert says in found(proofs, "limit never set")
    inherits = f"{LIMIT_MIB} MiB" in found(proofs, "limit of a cgroup below")
    assert inherits == (backend == "misc")
    assert left(root) == []
    assert source.sample()[0].processes == ()
    assert source.limits.reserved_mib("GPU-a", root) == 0


@pytest.mark.parametrize("has_reserved", [False, True])
def test_whether_used_has_reserved_in_it_is_measured(root: Path, has_reserved: bool) -> None:
    source = simulated()
    memory = f"used_has_reserved: {has_reserved}, reserved_bytes"
    source.become(parse_profile("t", PROFILE.replace("reserved_bytes", memory)))
    proofs = prove(source, root)
    says = "used has reserved in it" if has_reserved else "used is without reserved"
    assert found(proofs, "used and reserved memory").startswith(f"{says}: total 81559.0, reserved 480")
    assert results(proofs) == TRIED


def test_numbers_that_say_nothing_are_not_judged(root: Path) -> None:
    source = simulated()
    source.become(parse_profile("t", PROFILE.replace("reserved_bytes: 503316480", "reserved_bytes: 0")))
    proofs = prove(source, root)
    assert results(proofs)["used and reserved memory"] == "unproven"
    assert "they do not say" in found(proofs, "used and reserved memory")


@pytest.mark.parametrize(
    ("mood", "says"),
    [
        ("set: no_permission", "the driver refuses to limit memory: Insufficient Permissions"),
        ("backend: dmem, files: true", "has no dmem.max: +dmem is missing in cgroup.subtree_control"),
    ],
)
def test_limits_that_cannot_be_set_are_unproven_and_say_why(root: Path, mood: str, says: str) -> None:
    proofs = prove(simulated(f"limits: {{{mood}}}"), root)
    assert results(proofs)["limits"] == "unproven"
    assert says in found(proofs, "limits")
    assert left(root) == []


def test_a_driver_without_the_call(root: Path) -> None:
    source = simulated()
    source.limits.say(LimitSupport(False, "driver 580.65 has no call for memory limits", "driver 615"))
    proofs = prove(source, root)
    assert results(proofs) == {**READ, "limits": "unproven"}
    assert "driver 580.65 has no call for memory limits; it takes driver 615" in found(proofs, "limits")


def test_a_driver_that_rounds_limits_is_found_out(root: Path) -> None:
    source = simulated("limits: {step_mib: 64}")
    proofs = prove(source, root)
    assert results(proofs)["limit set and read"] == "refuted"
    assert f"{LIMIT_MIB} MiB set in " in found(proofs, "limit set and read")
    assert "2048 MiB, soft 0 MiB, used 0 read" in found(proofs, "limit set and read")
    assert "limit refuses" not in results(proofs)
    assert results(proofs)["limit taken back"] == results(proofs)["undone"] == "proven"


def test_a_limit_that_refuses_nothing_is_found_out(root: Path) -> None:
    source = simulated()
    user = User(lambda _: True, told_mib=81079)
    proofs = prove(source, root, Used(source, user))
    assert results(proofs)["limit refuses"] == "refuted"
    assert "2176 MiB were given, with a limit of 2047" in found(proofs, "limit refuses")
    assert results(proofs)["size that a process is told"] == "refuted"
    assert "more without the limit" not in results(proofs)
    assert user.ended == 1


def test_a_card_that_refuses_with_and_without_a_limit_proves_nothing(root: Path) -> None:
    """What refused was not the limit."""
    source = simulated()
    proofs = prove(source, root, Used(source, User(lambda mib: mib <= 1000)))
    assert results(proofs)["limit refuses"] == "proven"
    assert results(proofs)["more without the limit"] == "refuted"
    assert results(proofs)["use is counted"] == "refuted"
    assert found(proofs, "processes").startswith("0 are listed, ours is not")


def test_without_cuda_the_rest_is_proven(root: Path) -> None:
    source = simulated()
    proofs = prove(source, root, Used(source, "libcuda.so.1: cannot open shared object file"))
    assert results(proofs)["limit refuses"] == "unproven"
    assert "libcuda.so.1: cannot open" in found(proofs, "limit refuses")
    assert results(proofs)["limit set and read"] == results(proofs)["limit taken back"] == "proven"


def test_a_card_in_use_is_left_alone_unless_that_is_asked_for(root: Path) -> None:
    source = simulated()
    source.set_used("GPU-a", 5000, [GpuProcess(9, 5000)])
    proofs = prove(source, root)
    expected = {name: result for name, result in READ.items() if name != "an idle card is empty"}
    assert results(proofs) == {**expected, "limits": "unproven"}
    assert found(proofs, "limits") == f"1 processes use the card | {BUSY}"
    source.set_used("GPU-a", 5000)
    proofs = prove(source, root)
    assert found(proofs, "limits") == f"5000 MiB of the card are used | {BUSY}"
    proofs = prove(source, root, busy=True)
    assert results(proofs)["more without the limit"] == "proven"
    source.set_used("GPU-a", 78_000)
    proofs = prove(source, root, busy=True)
    assert found(proofs, "limit refuses") == "3079 MiB are free | 4094 are needed"


def test_pages_that_the_operating_system_keeps_are_nobodys_use(root: Path) -> None:
    source = simulated()
    memory = "numa_node: 4, residue_bytes: 41943040000, reserved_bytes"
    source.become(parse_profile("t", PROFILE.replace("reserved_bytes", memory)))
    proofs = prove(source, root)
    says = "the operating system, as NUMA node 4: 40000 MiB in use | pages stay after their process has ended"
    assert found(proofs, "who manages the memory") == says
    assert results(proofs)["limit refuses"] == "proven"
    assert "an idle card is empty" not in results(proofs)


def test_a_lost_card_is_a_line_and_another_is_proven(root: Path) -> None:
    source = simulated("  - {index: 1, uuid: GPU-b}")
    source.fail("GPU-a")
    proofs = prove(source, root)
    of_a = [proof for proof in proofs if proof.card == "GPU-a"]
    assert found(of_a, "limits").startswith("GPU is lost")
    assert results([proof for proof in proofs if proof.card == "GPU-b"]) == TRIED


def test_instances_are_read_and_one_comes_and_goes_where_that_is_asked_for(root: Path) -> None:
    source = simulated()
    source.partition("GPU-a", ["3g.40gb", "1g.10gb"])
    before = source.cards()
    proofs = prove(source, root)
    assert [proof.found for proof in proofs if proof.what == "limits"] == ["a MIG instance"] * 2
    assert found(proofs, "MIG mode").startswith("on; 2 instances")
    proofs = prove(source, root, instances=True)
    assert results(proofs)["instance that comes and goes"] == "proven"
    assert "of 10134 MiB" in found(proofs, "instance that comes and goes")
    assert results(proofs)["undone"] == "proven"
    assert source.cards() == before


@pytest.mark.parametrize(
    ("profiles", "used_mib", "says"),
    [
        (None, 0, "MIG mode is off"),
        (["7g.80gb"], 0, "have no room"),
        (["3g.40gb"], 900, f"900 MiB of the card are used | {BUSY}"),
    ],
)
def test_an_instance_that_cannot_be_created(
    root: Path, profiles: list[str] | None, used_mib: int, says: str
) -> None:
    source = simulated()
    source.partition("GPU-a", profiles)
    source.set_used(source.cards()[0].uuid, used_mib)
    before = source.cards()
    proofs = prove(source, root, instances=True, busy=False)
    unproven = [f"{proof.found} | {proof.means}" for proof in proofs if proof.result == "unproven"]
    assert any(says in line for line in unproven), unproven
    assert source.cards() == before


def test_cgroup_v1_has_no_limits(root: Path) -> None:
    (root / "cgroup.controllers").unlink()
    proofs = prove(simulated(), root)
    assert found(proofs, "limits").startswith(f"cgroup v1 at {root} | the driver takes limits on")


def test_what_cannot_be_undone_is_told(root: Path) -> None:
    class Stuck(ScratchCgroup):
        def remove(self) -> None:
            raise PermissionError(1, "Operation not permitted", str(self.path))

    proofs = prove(simulated(), root, scratch=Stuck(root / "kubepods"))
    assert results(proofs)["undone"] == "refuted"
    assert f"cgroup {root}/kubepods/{NAME}: [Errno 1]" in found(proofs, "undone")


def test_a_run_that_was_killed_leaves_nothing_to_the_next_and_one_that_runs_is_left_alone(root: Path) -> None:
    scratch = ScratchCgroup(root / "kubepods", lambda _: None)
    scratch.make()
    proofs = prove(simulated(), root)
    assert results(proofs) == TRIED
    scratch.make()
    (scratch.path / "its process").touch()
    proofs = prove(simulated(), root)
    assert "Directory not empty" in found(proofs, "limits")
    assert "limit set and read" not in results(proofs)


@pytest.mark.parametrize("error", [KeyboardInterrupt, GpuError, ValueError])
def test_whatever_happens_everything_is_undone(root: Path, error: type[BaseException]) -> None:
    def give(_: int) -> bool:
        raise error("the driver hangs")

    source = simulated()
    user = User(give)
    trying = prover(source, root, Used(source, user))
    if error is GpuError:
        trying.run()
        assert "the driver hangs" in found(trying.proofs, "limit refuses")
    else:
        with pytest.raises(error):
            trying.run()
    assert results(trying.proofs)["undone"] == "proven"
    assert (left(root), user.ended) == ([], 1)
    assert source.limits.read("GPU-a", root / "kubepods").hard_mib is None


# --- the command ----------------------------------------------------------------------------------------


def command(root: Path, *more: str) -> list[str]:
    (root.parent / "profile.yaml").write_text(PROFILE)
    profile = f"--profile={root.parent}/profile.yaml"
    return ["--check", "--gpus=simulated", profile, f"--cgroup-root={root}", *more]


def test_the_command_prints_tables_and_what_to_send(root: Path) -> None:
    done = CliRunner().invoke(node, command(root, "--prove"))
    assert done.exit_code == 0
    *table, last = done.output.splitlines()
    assert "NVIDIA H100 80GB HBM3 GPU-a" in table
    assert "10 proven, 7 measured, 0 unproven, 0 refuted. Please send us" in done.output
    sent = json.loads(last)
    assert (sent["driver"], sent["simulated"], sent["interrupted"]) == ("simulated", True, False)
    assert {each["what"]: each["result"] for each in sent["proofs"]} == TRIED
    assert {"driver", "cgroups"} <= {each["what"] for each in sent["findings"]}
    assert sent["cards"] == [
        {
            "uuid": "GPU-a",
            "model": "NVIDIA H100 80GB HBM3",
            "total_mib": 81559,
            "reserved_mib": 480,
            "parent": None,
        }
    ]
    alone = CliRunner().invoke(node, command(root, "--prove", "-o", "json"))
    assert json.loads(alone.output)["proofs"]


def test_what_is_not_as_documented_is_a_failure(root: Path) -> None:
    arguments = command(root, "--prove")
    (root.parent / "profile.yaml").write_text(PROFILE + "limits: {step_mib: 64}")
    assert CliRunner().invoke(node, arguments).exit_code == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--prove", "--gpus=simulated", "--profile=2xt4"], "--prove: allowed with --check only"),
        (["--check", "--prove-busy"], "--prove-busy, --prove-mig: allowed with --prove only"),
        (["--check", "--prove-mig"], "--prove-busy, --prove-mig: allowed with --prove only"),
        (["--check", "--prove", "--gpus=simulated", "--profile=9xt4"], "profile 9xt4: cannot be read"),
    ],
)
def test_what_the_user_got_wrong(options: list[str], says: str) -> None:
    done = CliRunner().invoke(node, options)
    assert (done.exit_code, says in done.output) == (2, True)


def test_somebody_who_is_not_root_proves_no_real_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupack.cli.node.os.geteuid", lambda: 1000)
    done = CliRunner().invoke(node, ["--check", "--prove"])
    assert (done.exit_code, "--prove: allowed to root only, this is user 1000" in done.output) == (2, True)


def test_a_node_without_a_gpu_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupack.cli.node.os.geteuid", lambda: 0)

    def fails(_: object) -> None:
        raise GpuError("NVML cannot start: not found; install the NVIDIA driver")

    monkeypatch.setattr("deviceplugin.gpus.nvidia.source.NvmlGpus.open", fails)
    done = CliRunner().invoke(node, ["--check", "--prove"])
    assert (done.exit_code, done.stdout) == (1, "")
    line = "gpupack: nothing to prove: NVML cannot start: not found; install the NVIDIA driver\n"
    assert done.stderr == line


def test_the_page_has_every_line_of_the_tables() -> None:
    page = (Path(__file__).parents[2] / "docs" / "hardware" / "proving.md").read_text(encoding="utf-8")
    lines = {*TRIED, "device nodes", "instance that comes and goes"}
    assert {line for line in lines if f"`{line}`" not in page} == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_undoes_what_it_did_and_prints_what_it_has(root: Path, number: signal.Signals) -> None:
    """The driver hangs as soon as the cgroup is there."""
    arguments = command(root, "--prove", "-o", "json")
    script = "import sys, tests.proof_hanging as hanging; hanging.main(sys.argv[1:])"
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not left(root):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    while not (root / "hangs").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    report = json.loads(said)
    assert (process.returncode, report["interrupted"]) == (130, True)
    assert {each["what"]: each["result"] for each in report["proofs"]}["undone"] == "proven"
    assert left(root) == []
