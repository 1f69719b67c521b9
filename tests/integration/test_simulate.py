"""`gpupack simulate` as a whole: files in, files out, processes."""

import json

import pytest
from click.testing import CliRunner

from gpupack.cli.app import cli
from scheduler_plugin.errors import SettingsError, TraceError
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from scheduler_plugin.simulator import plot as plots
from scheduler_plugin.simulator.app import run, simulate
from scheduler_plugin.simulator.options import (
    SimulationOptions,
    count_default_jobs,
    parse_load,
    parse_names,
    parse_parameters,
    parse_seeds,
)


@pytest.fixture
def trace(tmp_path):
    nodes = ["sn,cpu_milli,memory_mib,gpu,model"]
    nodes += [
        f"n{number},32000,65536,{2 + number % 3},{'T4' if number % 2 else 'A10'}" for number in range(12)
    ]
    pods = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"]
    shapes = ("1,1000,", "1,470,", "1,810,T4", "1,320,", "2,1000,", "0,0,")
    pods += [f"p{number},{1000 + number % 4 * 1000},2048,{shapes[number % 6]}" for number in range(40)]
    (tmp_path / "nodes.csv").write_text("\n".join(nodes) + "\n")
    (tmp_path / "pods.csv").write_text("\n".join(pods) + "\n")
    return str(tmp_path / "nodes.csv"), str(tmp_path / "pods.csv")


def without_time(result):
    return json.loads(json.dumps(result, default=str).replace("wall_s", "wall")) | {
        "runs": [{key: value for key, value in each.items() if key != "wall_s"} for each in result["runs"]],
        "mean": {
            policy: {key: value for key, value in mean.items() if key != "wall_s"}
            for policy, mean in result["mean"].items()
        },
    }


def test_results_do_not_depend_on_the_number_of_processes(trace):
    policies = ("best-fit", "fragmentation")
    results = [
        simulate(
            SimulationOptions(*trace, policies, seeds=(42, 43), jobs=jobs), lambda _: None, lambda *_: None
        )
        for jobs in (1, 2)
    ]
    assert without_time(results[0]) == without_time(results[1])
    runs = results[0]["runs"]
    assert [(each["policy"], each["seed"]) for each in runs] == [
        ("best-fit", 42),
        ("best-fit", 43),
        ("fragmentation", 42),
        ("fragmentation", 43),
    ]
    assert [each["card_policy"] for each in runs] == ["fragmentation"] * 4
    for each in runs:
        assert set(each["allocated_percent"]) == {"100", "130"}
        assert each["pods"] == each["placed"] + sum(each["failed"].values())
        assert each["unavoidable_percent"] <= each["free_percent"] + 1e-6
        assert each["free_percent"] == pytest.approx(100 - each["allocated_percent"]["130"], abs=1e-5)
    mean = results[0]["mean"]["fragmentation"]
    assert mean["allocated_percent"]["130"] == pytest.approx(
        sum(each["allocated_percent"]["130"] for each in runs[2:]) / 2
    )


def test_json_and_report(trace, tmp_path, capsys):
    path = tmp_path / "out.json"
    lines = []
    seen = []
    options = SimulationOptions(*trace, ("least-requested",), "least-used", json=str(path))
    run(options, lines.append, lambda done, total: seen.append((done, total)))
    assert seen == [(0, 1), (1, 1)]
    told = json.loads(path.read_text())
    assert told["runs"][0]["card_policy"] == "least-used"
    assert lines[0].startswith("GPUs allocated, %")
    assert any("could be used by no placement of the same pods" in line for line in lines)
    assert any(line.startswith("  cards whole when half of the GPUs had been asked for: ") for line in lines)
    run(SimulationOptions(*trace, ("least-requested",), json="-"), progress=lambda *_: None)
    out, err = capsys.readouterr()
    assert json.loads(out)["mean"]["least-requested"]["runs"] == 1
    assert "least-requested" in err


def test_plots(trace, tmp_path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "plots"
    lines = []
    run(
        SimulationOptions(*trace, ("best-fit", "fragmentation"), plot=str(folder)),
        lines.append,
        lambda *_: None,
    )
    for name in plots.FILES:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert sum(line.startswith("wrote ") for line in lines) == 2


def test_plots_need_matplotlib(trace, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(SettingsError, match="plots need matplotlib"):
        run(SimulationOptions(*trace, plot=str(tmp_path)), print, lambda *_: None)


def test_curves_are_means_over_shared_percents():
    runs = [
        {"label": "a", "curve": [[1.0, 2.0, None], [2.0, 4.0, None], [2.5, 4.0, None]]},
        {"label": "a", "curve": [[1.0, 4.0, None]]},
    ]
    assert plots.average_curves(runs, 1) == {"a": [(1.0, 3.0)]}


def test_files_that_cannot_be_written(trace, tmp_path):
    """It is told before the first run: those of a large trace take hours."""
    nowhere, folder, file = str(tmp_path / "nowhere" / "out.json"), str(tmp_path), trace[0]
    for place, said in (
        ({"json": nowhere}, r"JSON file '.*nowhere/out\.json'; allowed: a file in a folder that exists"),
        ({"json": folder}, r"JSON file '.*'; allowed: a file in a folder that exists"),
        ({"plot": file}, r"plot '.*nodes\.csv': .*nodes\.csv is a file; allowed: a folder"),
        ({"plot": f"{file}/curves"}, r"plot '.*curves': .*nodes\.csv is a file; allowed: a folder"),
    ):
        with pytest.raises(SettingsError, match=said):
            simulate(SimulationOptions(*trace, **place), pytest.fail, pytest.fail)


def test_a_place_that_nobody_may_write(trace, tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.write_text", lambda *_args, **_more: (tmp_path / "no" / "x").touch())
    with pytest.raises(SettingsError, match=r"JSON file .*out\.json: No such file or directory"):
        run(SimulationOptions(*trace, json=str(tmp_path / "out.json")), lambda _: None, lambda *_: None)


def test_options_that_would_be_ignored_are_refused(trace):
    nodes, pods = trace
    for arguments, said in (
        (["--load", "2"], "--load: allowed with --replay only"),
        (["--max-pods", "2"], "--max-pods: allowed with --replay only"),
        (["--replay", "--inflation", "2"], "--inflation: allowed without --replay only"),
    ):
        result = CliRunner().invoke(cli, ["simulate", "--nodes", nodes, "--pods", pods, *arguments])
        assert (result.exit_code, said in result.output) == (2, True)


def test_odd_rows_are_told_and_the_run_goes_on(trace, tmp_path, capsys):
    path = tmp_path / "odd.csv"
    path.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,0,0\nq,-1,1,0,0\n")
    run(SimulationOptions(trace[0], str(path)), lambda _: None, lambda *_: None)
    err = capsys.readouterr().err.splitlines()
    assert "odd.csv:3: cpu_milli is '-1'" in err[0]
    assert "no pod asks for a GPU" in err[1]


def test_a_useless_trace_stops(trace):
    with pytest.raises(TraceError, match="no column"):
        run(SimulationOptions(trace[1], trace[1]), print, lambda *_: None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": ()}, f"no policy; allowed: {NODE_POLICIES.allowed}"),
        ({"policies": ("x",)}, 'node policy "x"; allowed:'),
        ({"card_policy": "x"}, "card policy"),
        ({"inflation": 0.0}, "inflation 0; allowed: more than 0"),
        ({"seeds": ()}, "0 seeds"),
        ({"jobs": 0}, "jobs 0"),
        ({"card_units": 0}, "card units 0"),
        ({"workloads": ()}, "workload ''; allowed: learned, trace, or both"),
        ({"workloads": ("learned", "x")}, "workload 'learned,x'; allowed: learned, trace"),
        ({"load": 0.0}, "load 0; allowed: more than 0 up to 100, or trace"),
        ({"load": float("nan")}, "load nan; allowed: more than 0"),
        ({"max_pods": 0}, "max pods 0; allowed: 1 to"),
        ({"parameters": {"balanced": {}}}, "parameters for policy 'balanced', which is not run"),
        ({"policies": ("best-fit",), "parameters": {"best-fit": {"mode": "x"}}}, "mode is 'x'"),
    ],
)
def test_bad_options(changes, message):
    with pytest.raises(SettingsError, match=message):
        SimulationOptions("n", "p", **changes).check()


def test_all_faults_at_once():
    with pytest.raises(SettingsError) as caught:
        SimulationOptions("n", "p", ("x", "y"), jobs=0).check()
    assert len(str(caught.value).splitlines()) == 3


DISK = "ephemeral-storage"


@pytest.fixture
def disks(tmp_path):
    """Two nodes that are alike but for the disk; pods that each take a third of a's, and one too many."""
    head = "sn,cpu_milli,memory_mib,gpu,model"
    nodes = [f"{head},{DISK},example.com/nic", "a,8000,8000,4,T4,300Gi,", "b,8000,8000,4,T4,100Gi,1"]
    pods = [f"name,cpu_milli,memory_mib,num_gpu,gpu_milli,{DISK},example.com/nic"]
    pods += [f"p{number},100,100,1,500,100Gi," for number in range(5)]
    (tmp_path / "nodes.csv").write_text("\n".join(nodes) + "\n")
    (tmp_path / "pods.csv").write_text("\n".join(pods) + "\n")
    return tmp_path


def on_disks(folder, parameters=None, **more):
    names = str(folder / "nodes.csv"), str(folder / "pods.csv")
    chosen = {} if parameters is None else {"least-requested": parameters}
    return SimulationOptions(*names, ("least-requested",), inflation=0.1, parameters=chosen, **more)


def test_further_resources_fill_up_where_a_parameter_names_them(disks):
    """Without it nobody counts them, and their columns are not read."""
    for parameters, failed in (
        ({}, {}),
        ({"resources": DISK}, {f"not enough {DISK} beside the rest": 1}),
        ({"resources": f"example.com/nic,{DISK}"}, {f"not enough {DISK} beside the rest": 1}),
    ):
        (result,) = simulate(on_disks(disks, parameters), lambda _: None, lambda *_: None)["runs"]
        assert result["failed"] == failed


@pytest.mark.parametrize(
    ("file", "before", "after", "warning"),
    [
        (
            "nodes.csv",
            "a,8000,8000,4,T4,300Gi,",
            "a,8000,8000,4,T4,much,",
            "is 'much'; allowed: a quantity",
        ),
        (
            "pods.csv",
            "p0,100,100,1,500,100Gi,",
            "p0,100,100,1,500,-1,",
            "is '-1'; allowed: a quantity from 0",
        ),
        (
            "pods.csv",
            "p0,100,100,1,500,100Gi,",
            "p0,100,100,1,500,1Ti,",
            f"1099511627776 {DISK} fit on no node",
        ),
    ],
)
def test_amounts_of_further_resources_that_make_no_sense(disks, file, before, after, warning):
    text = (disks / file).read_text()
    assert before in text
    (disks / file).write_text(text.replace(before, after))
    said = []
    simulate(on_disks(disks, {"resources": DISK}), said.append, lambda *_: None)
    assert any(warning in line for line in said)


def test_containers_that_find_no_cards_together_lack_cards(disks):
    (disks / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model,card_units\na,8000,8000,1,T4,16\n")
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_units"
    (disks / "pods.csv").write_text(f"{head}\np,100,100,2,1000,8|10\nq,100,100,1,1000,8\n")
    (result,) = simulate(on_disks(disks), lambda _: None, lambda *_: None)["runs"]
    assert result["failed"] == {"not enough cards free": 1}


def test_a_list_without_the_resource_is_refused(disks):
    with pytest.raises(TraceError, match=r"nodes.csv:1: no column example.com/fpga; needed are sn, "):
        simulate(on_disks(disks, {"resources": "example.com/fpga"}), lambda _: None, lambda *_: None)


def test_seeds_policies_and_parameters():
    assert parse_seeds("42") == (42,)
    assert parse_seeds("1, 42-44,43") == (1, 42, 43, 44)
    assert parse_names("a, b,a,") == ("a", "b")
    assert parse_parameters(["a.b=c=d", "a.e=f"]) == {"a": {"b": "c=d", "e": "f"}}
    assert count_default_jobs() >= 1
    assert (parse_load("0.9"), parse_load(" trace ")) == (0.9, None)
    with pytest.raises(SettingsError, match=r"load .high.; allowed: a number"):
        parse_load("high")


@pytest.mark.parametrize("text", ["", "a", "5-", "-5", "9-1", "1-100000", "9" * 30])
def test_bad_seeds(text):
    with pytest.raises(SettingsError, match="seeds"):
        parse_seeds(text)


@pytest.mark.parametrize("text", ["a", "a.b", "a=b", ".b=c", "a.=c"])
def test_bad_parameters(text):
    with pytest.raises(SettingsError, match=r"POLICY\.NAME=VALUE"):
        parse_parameters([text])
