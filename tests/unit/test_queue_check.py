"""`gpupack queue check`: a configuration by itself or in a ConfigMap; every fault with its path."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpupack.cli.app import cli

MANIFEST = Path(__file__).parents[2] / "manifests/components/queue/queues.yaml"
FAULTY = "queues: [{name: a, nominalQuota: -1}, {name: A}]\nmode: x\nnodePolicy: nix\n"


def check(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["queue", "check", *arguments], input=text)


def test_the_shipped_configuration_has_no_fault() -> None:
    result = check(str(MANIFEST))
    assert result.exit_code == 0
    assert result.output == f"{MANIFEST}: ConfigMap gpupack-queues, queues.yaml: 1 queue, no fault\n"


def test_every_fault_is_told_those_of_policies_too() -> None:
    result = check("-", text=FAULTY)
    assert result.exit_code == 1
    assert result.stdout == ""
    starts = [line.split(";", maxsplit=1)[0] for line in result.stderr.splitlines()]
    assert starts == [
        "-: mode: 'x'",
        "-: queues[0].nominalQuota: -1",
        "-: queues[1].name: 'A'",
        starts[3],
    ]
    assert starts[3].startswith("-: nodePolicy: ")
    assert "nix" in starts[3]


def test_one_file_with_a_fault_beside_others(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("queues: [{name: a}, {name: b}]")
    bad.write_text(FAULTY)
    result = check(str(good), str(bad), "-o", "json")
    assert result.exit_code == 1
    first, second = json.loads(result.stdout)
    assert first == {"name": str(good), "queues": 2, "faults": []}
    assert (second["name"], second["queues"], len(second["faults"])) == (str(bad), 0, 4)


def test_the_config_maps_of_a_list() -> None:
    inner = {"queues.yaml": "queues: []"}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}, "data": inner}
    listed = {"apiVersion": "v1", "kind": "List", "items": [config_map]}
    result = check("-", text=json.dumps(listed))
    assert result.exit_code == 1
    assert result.stderr.startswith("-: ConfigMap mine, queues.yaml: queues: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("apiVersion: v1\nkind: Service\n", "-: no ConfigMap in it has the key queues.yaml"),
        ("x" * ((1 << 20) + 1), "-: more than 1048576 bytes, which the queue refuses"),
    ],
)
def test_what_is_no_configuration(text: str, said: str) -> None:
    result = check("-", text=text)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = check(str(tmp_path / "none"))
    assert result.exit_code == 2
    assert "none: cannot be read: No such file or directory" in result.stderr


def test_what_is_not_yaml() -> None:
    result = check("-", text="queues: [")
    assert result.exit_code == 1
    assert result.stderr.startswith("-: not YAML: ")


def test_the_overlay_of_the_documents(tmp_path: Path) -> None:
    """Who has written the first page of docs/queue.md checks that file."""
    page = (Path(__file__).parents[2] / "docs/queue.md").read_text()
    (overlay,) = re.findall(r"```yaml\n(# kustomization.yaml\n.*?)```", page, re.DOTALL)
    done = check("-", text=overlay)
    assert (done.exit_code, done.output) == (
        0,
        "-: ConfigMap gpupack-queues, queues.yaml: 2 queues, no fault\n",
    )
    done = check(str(tmp_path))
    assert (done.exit_code, done.stderr) == (2, f"gpupack: {tmp_path}: a folder without kustomization.yaml\n")
    for name in ("Kustomization", "kustomization.yaml"):
        (tmp_path / name).write_text(overlay)
        done = check(str(tmp_path))
        assert (done.exit_code, done.output) == (
            0,
            f"{tmp_path}: ConfigMap gpupack-queues, queues.yaml: 2 queues, no fault\n",
        )
    done = check("-", text=overlay.replace("nominalQuota: 640", "nominalQuota: -1"))
    assert done.exit_code == 1
    assert "queues[1].nominalQuota" in done.output


@pytest.mark.parametrize(
    "text", ["resources: [../base]\n", "kind: Kustomization\napiVersion: v1\npatches: [{path: p.yaml}]\n"]
)
def test_an_overlay_without_the_queues_says_what_to_check(text: str) -> None:
    done = check("-", text=text)
    assert done.exit_code == 2
    assert (
        "no ConfigMap in it has the key queues.yaml; allowed too: the output of `kubectl kustomize DIR`"
        in done.output
    )
