"""The benchmarks end with one JSON line; others script against its keys."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from benchmarks import ask, autoscale, hardware, node, queue, sharing, throughput
from deviceplugin.gpus.nvidia.mps.folder import CardFolder
from deviceplugin.gpus.simulated.profile import parse_profile
from gpupack.cli.app import cli
from tests.cluster.harness import workload

ROOT = Path(__file__).resolve().parents[2]


def last_line(*command: str) -> Any:
    """What a benchmark's last line says."""
    whole = [sys.executable, "-m", *command]
    done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout.splitlines()[-1])


def test_the_extender_s_last_line() -> None:
    figures = last_line("benchmarks.extender", "--nodes", "20", "--calls", "5")
    named = {"nodes", "filter_p50_ms", "filter_p99_ms", "both_p50_ms", "both_p99_ms", "rss_mib"}
    assert set(figures) == named | {"compute_filter_ratio", "compute_both_ratio", "list_s", "list_cpu_s"}
    assert figures.pop("nodes") == 20
    assert figures.pop("list_cpu_s") >= 0, "the kernel counts in hundredths of a second"
    assert all(figure > 0 for figure in figures.values())


def test_the_last_line_beside_others_has_gpupack_alone_without_their_programs() -> None:
    figures = last_line("benchmarks.peers", "--nodes", "20", "--calls", "5")
    assert set(figures) == {"nodes", "gpupack_p50_ms", "gpupack_p99_ms"}
    assert all(figure > 0 for figure in figures.values())


@pytest.mark.parametrize("slots", [[], ["--slots"]], ids=["pool", "slots"])
def test_the_queue_s_last_line(slots: list[str]) -> None:
    figures = last_line("benchmarks.queue", "--queues", "5", "--waiting", "300", "--nodes", "20", *slots)
    assert (figures.pop("queues"), figures.pop("waiting")) == (5, 300)
    assert set(figures) == {"decision_p50_ms", "decision_p99_ms", "given_on_worst_ms", "rss_mib"}
    assert all(figure > 0 for figure in figures.values())


def test_the_queue_s_options(capsys: pytest.CaptureFixture[str]) -> None:
    for option, told in (("--queues", "1"), ("--waiting", "300")):
        with pytest.raises(SystemExit):
            queue.main([option, "0"])
        assert f"{option}: 0; allowed: {told} or more" in capsys.readouterr().err


def test_throughput_s_last_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    def measure(*options: Any, profile: str | None) -> dict[str, list[throughput.Round]]:
        asked.append((*options, profile))
        return {
            "none": [throughput.Round(rate, {"etcd": 1.5}) for rate in (60, 62.04, 90)],
            "extender": [
                throughput.Round(rate, {"etcd": 2.0, "kube-scheduler": 4.0, "extender": cpu_ms})
                for rate, cpu_ms in ((80, 1.2), (70, 1.304), (75, 1.4))
            ],
        }

    monkeypatch.setattr(throughput, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["throughput", "--nodes", "5000", "--pods", "400"])
    throughput.main()
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1]) == {
        "nodes": 5000,
        "pods_per_s": {"none": 62.0, "extender": 75},
        "cpu_ms_per_pod": {
            "none": {"etcd": 1.5},
            "extender": {"etcd": 2.0, "kube-scheduler": 4.0, "extender": 1.3},
        },
        "computed_pods_per_s_of_one_core": {"extender": 250},
    }
    assert "processor ms a pod, extender: etcd 2.00, kube-scheduler 4.00, extender 1.30" in lines
    assert "computed, not measured, extender: kube-scheduler on one core allows 250 pods/s" in lines
    assert [options[:2] for options in asked] == [(5000, 400)]


def test_the_node_s_last_line() -> None:
    assert node.figures([1, 3], [1, 2], [0.1, 0.2], [0.5, 0.4], 82.04, 0.1234) == {
        "allocate_p99_ms": 3,
        "empty_plugin_p99_ms": 2,
        "times_empty_p50": 1.0,
        "times_empty_p99": 1.5,
        "registered_again_s": 0.2,
        "delete_to_published_s": 0.5,
        "rss_mib": 82.0,
        "idle_cpu_percent": 0.123,
    }


def test_the_hardware_s_last_line() -> None:
    world = SimpleNamespace(caller=SimpleNamespace(empty_ms=[0.5, 1.0]), wrong=0, twice=0, refused=1)
    assert hardware.figures([1, 3], 9999.6, 55.04, world, 82.04, 83) == {
        "instances": 112,
        "allocates": 2,
        "allocate_p50_ms": 1,
        "allocate_p99_ms": 3,
        "empty_plugin_p99_ms": 1.0,
        "errors_per_s": 10000,
        "driver_hung_s": 55.0,
        "wrong_cards": 0,
        "ids_twice": 0,
        "refused": 1,
        "rss_before_mib": 82.0,
        "rss_after_mib": 83,
    }


def test_the_hardware_s_profile_is_one() -> None:
    profile = parse_profile("bench", hardware.profile_text([{"at_s": 1, "hang_s": 60}]))
    assert sum(len(card.instances or ()) for card in profile.cards) == 112


def test_the_last_line_of_the_ways_to_share_says_what_is_missing() -> None:
    told = last_line(
        "benchmarks.sharing", "--framework", "python", "--framework", "torch", "--seconds", "0.1"
    )
    assert told["frameworks"]["python"].keys() >= {"alone", "time-sliced"}
    for row in told["frameworks"]["python"].values():
        assert row["inference_p50_ms"] <= row["inference_p95_ms"] <= row["inference_p99_ms"]
    assert any(each.startswith("torch") for each in told["missing"])


def test_ways_to_share_are_compared_with_a_card_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def work(
        _python: str, _framework: str, programs: Sequence[tuple[str, Mapping[str, str]]], _seconds: float
    ) -> list[sharing.Run]:
        asked.append(programs)
        alone = len(programs) == 1
        return [
            sharing.Run(
                {"train": 200, "infer": 150}[kind] if alone else 50 + 10 * at, (1.0 + at, 2.0 + at, 3.0 + at)
            )
            for at, (kind, _) in enumerate(programs)
        ]

    monkeypatch.setattr(sharing, "work_together", work)
    limit = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=40G"}
    rows = sharing.measure_framework("python", "torch", {"time-sliced": {}, "MPS": limit}, 20)
    assert sharing.table("torch", rows)[2:] == [
        "| alone | 100 | 100 | 1.00 | 2.00 | 3.00 | - |",
        "| time-sliced | 25 and 30 | 55 | 2.00 | 3.00 | 4.00 | 25 |",
        "| MPS | 25 and 30 | 55 | 2.00 | 3.00 | 4.00 | 25 |",
    ]
    assert [[kind for kind, _ in programs] for programs in asked] == [
        ["train"],
        ["infer"],
        *[["train", "train"], ["train", "infer"]] * 2,
    ]
    assert [variables for programs in asked[-2:] for _, variables in programs] == [limit] * 4


def test_a_framework_that_cannot_work_is_told_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card = parse_profile("bench", hardware.profile_text([])).cards[0].card
    monkeypatch.setattr(sharing, "find_card", lambda: card)
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "python"
    refusal = 'case "$2" in torch) echo "No module named torch" >&2; exit 1;; esac'
    program.write_text(f'#!/bin/sh\n{refusal}\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    measured, missing = sharing.measure(str(program), ["torch", "python"], 0.1)
    assert list(measured) == ["python"]
    assert missing == [
        "MPS: there is no nvidia-cuda-mps-control",
        f"torch in {program}: No module named torch",
    ]


def test_clients_of_mps_have_what_two_halves_of_a_card_are_given(tmp_path: Path) -> None:
    card = parse_profile("card", yaml.safe_dump(workload.cards(80 << 10))).cards[0].card
    folder = CardFolder(tmp_path, card.uuid)
    plain = {
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / card.uuid / "pipe"),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=40G",
    }
    assert sharing.mps_variables(folder, tmp_path, card, threads=False) == plain
    threads = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
    assert sharing.mps_variables(folder, tmp_path, card, threads=True) == plain | threads


def test_the_last_line_of_the_questions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command answers on the cluster that is made up, in this process."""
    waits = []

    def run(arguments: list[str]) -> tuple[float, float]:
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 0, result.output
        waits.append(result.output)
        return 1.5, 1.0

    monkeypatch.setattr(ask, "seconds", run)
    monkeypatch.setattr(sys, "argv", ["ask", "--nodes", "12", "--pods", "90", "--runs", "1"])
    ask.main()

    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["seconds"] == dict.fromkeys(ask.COMMANDS, 1.5)
    assert figures["processor_s"] == dict.fromkeys(ask.COMMANDS, 1.0)
    assert "waits: 0 of 12 nodes take 79 GiB" in waits[0]


def test_the_last_line_of_autoscale(capsys: pytest.CaptureFixture[str]) -> None:
    autoscale.main(["--nodes", "30", "--pods", "300", "--waiting", "20", "--kinds", "5", "--passes", "2"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["nodes"], figures["waiting"]) == (30, 20)
    assert set(figures) == {"nodes", "waiting", "pass_s", "keep_s", "read_per_pass"}
    with pytest.raises(SystemExit):
        autoscale.main(["--kinds", "0"])
    assert "--kinds: 0; allowed: 1 or more" in capsys.readouterr().err
