"""`gpupack simulate --replay` and `--workload` as a whole: files in, tables and pictures out."""

import json

import pytest

from benchmarks import replay as benchmark
from scheduler_plugin.simulator import plot as plots
from scheduler_plugin.simulator.app import run, simulate
from scheduler_plugin.simulator.options import LEARNED, TRACE, SimulationOptions
from tests.integration.cli_world import in_process


@pytest.fixture
def trace(tmp_path):
    """Eight nodes, and pods that would use two cards at a time."""
    nodes = [f"n{number},32000,65536,4,T4" for number in range(8)]
    shapes = ("1,1000", "1,470", "1,810", "1,320", "2,1000", "0,0")
    pods = [
        f"p{number},1000,2048,{shapes[number % 6]},{60 * number},{60 * number + 150},{60 * number + 10}"
        for number in range(120)
    ]
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(
        "\n".join(["sn,cpu_milli,memory_mib,gpu,model", *nodes]) + "\n"
    )
    (tmp_path / "openb_pod_list_default.csv").write_text("\n".join([head, *pods]) + "\n")
    return str(tmp_path / "openb_node_list_gpu_node.csv"), str(tmp_path / "openb_pod_list_default.csv")


def quiet(*_):
    pass


def test_a_replay_is_of_a_cluster_that_is_as_busy_as_asked_for(trace):
    options = {"policies": ("fragmentation", "best-fit"), "seeds": (1,), "load": 0.9, "max_pods": 400}
    told = simulate(SimulationOptions(*trace, **options, replay=True, jobs=1), quiet, quiet)
    assert list(told["mean"]) == ["fragmentation", "best-fit"]
    for each in told["runs"]:
        assert (each["nodes"], each["gpus"]) == (2, 8)
        assert each["load"] == pytest.approx(0.9, rel=0.1)
        assert 0 < each["allocated_percent"] <= 100
        assert len(each["series"]) > 20


def test_report_json_and_pictures_of_a_replay(trace, tmp_path):
    pytest.importorskip("matplotlib")
    lines = []
    target = tmp_path / "out.json"
    options = SimulationOptions(
        *trace,
        workloads=(LEARNED, TRACE),
        replay=True,
        load=1.1,
        max_pods=400,
        plot=str(tmp_path),
        json=str(target),
    )
    run(options, lines.append, quiet)
    text = "\n".join(lines)
    assert "first come, first served, with backfill" in text
    assert "fragmentation, learned: mean wait for a whole card" in text
    assert "fragmentation, trace" in text
    for name in plots.REPLAY_FILES:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(target.read_text())
    assert [(each["workload"], each["label"]) for each in told["runs"]] == [
        ("learned", "fragmentation, learned"),
        ("trace", "fragmentation, trace"),
    ]


def test_both_workloads_without_a_replay(trace):
    options = SimulationOptions(*trace, ("best-fit", "fragmentation"), workloads=(TRACE, LEARNED))
    told = simulate(options, quiet, quiet)
    labels = ["best-fit", "fragmentation, trace", "fragmentation, learned"]
    assert list(told["mean"]) == labels
    assert [each["workload"] for each in told["runs"]] == [None, "trace", "learned"]
    # As shipped it learns, and then the label needs no more than the name.
    (shipped,) = simulate(SimulationOptions(*trace), quiet, quiet)["runs"]
    learned = told["runs"][2]
    assert (shipped["label"], shipped["workload"]) == ("fragmentation", "learned")
    assert shipped["allocated_percent"] == learned["allocated_percent"]


def test_the_command(trace, tmp_path, monkeypatch, capsys):
    command = in_process(monkeypatch, capsys, "simulate")
    nodes, pods = trace
    status, out, err = command(
        *("--nodes", nodes, "--pods", pods, "--replay", "--load", "0.8", "--max-pods", "200"),
        *("--policy", "fragmentation,balanced", "--workload", "trace,learned", "--jobs", "1"),
    )
    assert (status, err) == (0, "")
    first, second, *_ = out.splitlines()
    assert "times the list, come and end on" in first
    assert "% of the GPUs at a time" in second
    assert [line.split("  ")[0] for line in out.splitlines()[6:9]] == [
        "fragmentation, trace",
        "fragmentation, learned",
        "balanced",
    ]
    bare = tmp_path / "bare.csv"
    bare.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,500\n")
    status, out, err = command("--nodes", nodes, "--pods", str(bare), "--replay")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "bare.csv:1: no column creation_time, deletion_time; needed are name, " in err


def test_the_benchmark_s_last_line(trace, tmp_path, capsys):
    assert trace
    benchmark.main(["--traces", str(tmp_path), "--policy", "best-fit", "--loads", "0.5", "--seeds", "1"])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(last) == ["0.5"]
    assert last["0.5"]["best-fit"]["runs"] == 1
