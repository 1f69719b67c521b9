"""docs/: every page is linked from the index, every link works, the reference says what the code does."""

import ast
import builtins
import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest.mock import MagicMock

import click
import pytest
import yaml
from click.testing import CliRunner

from allocator import names
from allocator.request import parse_pod
from deviceplugin.gpus.nvidia.vendor import NVIDIA
from deviceplugin.status import DaemonStatus
from gpupack.cli.app import cli
from tests.cluster.harness.manifests import build
from tests.manifest_objects import BUILDS, objects
from tests.scripts import reference
from tests.yaml_text import read_yaml, read_yaml_documents

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SHIPPED = ("allocator", "deviceplugin", "gpupack", "kubeapi", "scheduler_plugin")
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
RECORDERS = {"event", "_event", "_record", "_send_event", "_tell"}
# Words that readers asked about, and what is written instead.
UNCLEAR = re.compile(
    r"\bmade anew\b|\bnobody (here )?know|\btold (in one|of)\b|\bmortal\b|\bin earnest\b|\bstrangers?\b",
    re.IGNORECASE,
)


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Relative links of a page: the file and the heading, empty for none."""
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, heading = target.partition("#")
            yield (page.parent / path).resolve() if path else page, heading


def headings(page: Path) -> set[str]:
    """Anchors of a page, as GitHub makes them from its headings."""
    found: dict[str, int] = {}
    anchors = set()
    for line in FENCE.sub("", page.read_text(encoding="utf-8")).splitlines():
        if line.startswith("#"):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()).lower()
            anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            count = found[anchor] = found.get(anchor, -1) + 1
            anchors.add(f"{anchor}-{count}" if count else anchor)
    return anchors


class Source(NamedTuple):
    """A shipped module; `nodes`: all of its tree."""

    path: Path
    text: str
    tree: ast.Module
    nodes: list[ast.AST]


@cache
def sources() -> list[Source]:
    found = []
    for package in SHIPPED:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
            found.append(Source(path, text, tree, list(ast.walk(tree))))
    return found


@pytest.fixture(scope="module")
def page() -> str:
    return "".join(each.read_text(encoding="utf-8") for each in reference.REFERENCE)


def test_a_page_that_turns_a_component_on_says_how_to_turn_it_off() -> None:
    ways = re.compile(r"(?:components|overlays)/(?!mine\b|MINE\b)[a-z]|--component ")
    pages = [page for page in DOCS.rglob("*.md") if ways.search(page.read_text(encoding="utf-8"))]
    decisions = [page for page in pages if page.parent.name == "adr"]
    silent = {
        page.name
        for page in pages
        if (DOCS / "install" / "manifests.md", "taking-a-component-out") not in links(page)
    }
    assert silent - {page.name for page in decisions} == {"commands.md"}


def test_the_example_of_the_simulator_runs_as_it_is_written(tmp_path: Path) -> None:
    """A reader without a trace copies it from the page into a shell."""
    text = (DOCS / "policies" / "choosing.md").read_text(encoding="utf-8")
    example = next(block for block in FENCE.findall(text) if "cat > nodes.csv" in block)
    script = "set -e\n" + example.strip().removeprefix("```console").removesuffix("```")
    assert "--seeds 42-51" in script
    # Ten seeds take five times as long, and so do processes that each load all of it for one of them.
    script = script.replace("--seeds 42-51", "--seeds 42-43 --jobs 1")
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall("^least-requested  ", done.stdout, re.MULTILINE)) == script.count(
        "gpupack simulate"
    )


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if ">>> " in page.read_text(encoding="utf-8")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_examples_of_python_print_what_the_page_shows(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    dead = [
        f"{path.relative_to(ROOT)}#{heading}" if path.is_relative_to(ROOT) else str(path)
        for path, heading in links(page)
        if not path.exists() or (heading and path.suffix == ".md" and heading not in headings(path))
    ]
    assert dead == []


def test_every_page_is_linked_from_the_index() -> None:
    linked = {path for path, _ in links(DOCS / "README.md")} | {DOCS / "README.md"}
    assert [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if path not in linked] == []
    assert DOCS / "README.md" in {path for path, _ in links(ROOT / "README.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_in_plain_english(page: Path) -> None:
    assert UNCLEAR.findall(page.read_text(encoding="utf-8")) == []


def test_code_speaks_plain_english() -> None:
    """Messages, docstrings and comments."""
    assert [(path.name, found) for path, text, *_ in sources() if (found := UNCLEAR.findall(text))] == []


@cache
def remarks() -> list[tuple[Path, str]]:
    """What maintainers read: comments, and docstrings of modules, classes and functions."""
    found = []
    for path, text, _, nodes in sources():
        found += [(path, line) for line in text.splitlines() if "#" in line]
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((path, ast.get_docstring(node) or ""))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                found.append((path, str(node.value.value)))
    return found


@cache
def identifiers() -> dict[Path, set[str]]:
    """Names that the code of each module has; those of its strings are left out."""
    found = {}
    for path, _, _, nodes in sources():
        values = {
            getattr(node, field, None) for node in nodes for field in ("name", "asname", "id", "attr", "arg")
        }
        found[path] = {name for value in values if isinstance(value, str) for name in value.split(".")}
    return found


def test_docstrings_name_errors_and_members_that_exist() -> None:
    """A rename does not reach Raises, the trees of errors.py and `Class.member` by itself."""
    known = set(dir(builtins)).union(*identifiers().values())
    owners = {each.name for source in sources() for each in source.nodes if isinstance(each, ast.ClassDef)}
    owners |= {source.path.stem for source in sources()}
    dead = []
    for path, text in remarks():
        raised = re.search(r"^ *Raises:\n(.*?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
        errors = re.findall(r"^ +([A-Z]\w+(?:, [A-Z]\w+)*):", raised[1], re.MULTILINE) if raised else []
        errors += re.findall(r"^[│ ]*[├└]── ([A-Z]\w+)", text, re.MULTILINE)
        members = [
            name for owner, name in re.findall(r"`(\w+)\.([a-z0-9_]+|[A-Z]\w+)`", text) if owner in owners
        ]
        names = {name for each in errors for name in each.split(", ")} | set(members)
        dead += [(path.name, name) for name in sorted(names - known)]
    assert dead == []


def test_packages_name_their_modules() -> None:
    """The first thing that a newcomer reads of a package says which module does what."""
    dead = []
    for source in sources():
        path = source.path
        if path.name == "__init__.py":
            known = {*SHIPPED, "kubernetes", *(each.stem for each in path.parent.iterdir())}
            known.update(
                *(names for inside, names in identifiers().items() if inside.is_relative_to(path.parent))
            )
            named = re.findall(r"`([a-z_]+)`", ast.get_docstring(source.tree) or "")
            dead += [(str(path.relative_to(ROOT)), name) for name in named if name not in known]
    assert dead == []


def test_pages_that_the_code_names_exist() -> None:
    """Helps, messages and comments send readers there."""
    named = {
        (source.path.relative_to(ROOT).as_posix(), name)
        for source in sources()
        for name in re.findall(r"\bdocs/[a-z0-9/_-]+\.md", source.text)
    }
    assert len(named) > 5
    assert not [(path, name) for path, name in named if not (ROOT / name).exists()]


def test_helps_are_in_plain_english() -> None:
    assert [name for name, each in cli.commands.items() if UNCLEAR.search(each.help or "")] == []


def test_the_tables_are_those_of_the_code(page: str) -> None:
    pages = [each.read_text(encoding="utf-8") for each in reference.PAGES]
    assert [reference.generated(each) for each in pages] == pages, "run `make reference`"
    assert set(reference.BLOCKS) == {name for each in pages for _, name, _ in reference.BLOCK.findall(each)}
    for name in cli.commands:
        assert f"### `gpupack {name}" in page


def test_every_name_has_its_line(page: str) -> None:
    ours = {
        value
        for key, value in vars(names).items()
        if key.isupper() and isinstance(value, str) and value.startswith(names.OWN_PREFIX)
    } - {names.OWN_PREFIX}
    prefixes = {value for value in ours if value.endswith("-")}
    said = {*reference.names_of(page, "Resources"), *reference.names_of(page, "Annotations and labels")}
    assert ours - prefixes - said == set()
    assert [each for each in prefixes if not any(name.startswith(each) for name in said)] == []
    assert {name for name in said if name not in ours and not name.startswith(tuple(prefixes))} == set()


def test_security_says_who_writes_each_name() -> None:
    """And each policy that it names exists."""
    security = (DOCS.parent / "SECURITY.md").read_text(encoding="utf-8")
    ours = {
        value
        for key, value in vars(names).items()
        if key.isupper() and isinstance(value, str) and "/" in value and "gpupack" in value
    } - {names.OWN_PREFIX}
    assert set(reference.names_of(security, "Who writes what")) == ours
    policies = {name for build in BUILDS for kind, name in objects(build) if kind.endswith("AdmissionPolicy")}
    (section,) = re.findall(r"\n## Who writes what\n(.*?)\n## ", security, re.DOTALL)
    named = set(re.findall(r"`(gpupack-[a-z-]+)`", section))
    assert named - policies == {"gpupack-queues", "gpupack-admission", "gpupack-queue"}


def event_reasons() -> set[str]:
    """Reasons of all Events: words in CamelCase that are given to what records them."""
    found = set()
    for path, _, tree, nodes in sources():
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for call in nodes:
            if path.parts[-2] == "kubeapi" or not isinstance(call, ast.Call):
                continue
            if isinstance(call.func, ast.Attribute) and call.func.attr in RECORDERS:
                for argument in call.args:
                    value = constants.get(argument.id) if isinstance(argument, ast.Name) else None
                    value = argument.value if isinstance(argument, ast.Constant) else value
                    if isinstance(value, str) and re.fullmatch(r"(?:[A-Z]+[a-z]+)+", value):
                        found.add(value)
    return found - {"Normal", "Warning"} | {NVIDIA.fault_event}


def test_every_event_has_its_line(page: str) -> None:
    assert set(reference.names_of(page, "Events")) == event_reasons()
    assert {"CardsAssigned", "GPUXidError", "Admitted"} <= event_reasons()


def test_every_environment_variable_has_its_line(page: str) -> None:
    used = {"NVIDIA_VISIBLE_DEVICES"}
    for path, _, _, nodes in sources():
        if path.parts[-2] in {"migration", "commands"}:
            continue  # what others set, and what messages name
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                used |= set(
                    re.findall(r"^(?:(?:GPUPACK|CUDA_MPS|TF|XLA)_[A-Z_]+|(?:HTTPS?|NO)_PROXY)$", node.value)
                )
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"os.environ.get", "os.getenv"}:
                used.add(ast.literal_eval(node.args[0]))
    chart = ROOT / "manifests" / "helm"  # leads to the same files
    for path in (one for one in (ROOT / "manifests").rglob("*.yaml") if not one.is_relative_to(chart)):
        for document in read_yaml_documents(path.read_text(encoding="utf-8")):
            used |= set(variables(document))
    # What NVIDIA's container toolkit reads in the daemon's own container, and MPS in its own.
    assert set(reference.names_of(page, "Environment")) == used - {
        "NVIDIA_DRIVER_CAPABILITIES",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_MPS_PROTOCOL_VERSION",
    }


def variables(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (one["name"] for one in value.get("env") or ())
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from variables(each)


def test_every_key_of_explain_has_its_line(page: str) -> None:
    status = MagicMock(neighbours=MagicMock(found={}))
    assert list(reference.names_of(page, "Explain")) == list(DaemonStatus.explain(status))


def test_every_path_has_its_line(page: str) -> None:
    served = {
        ast.literal_eval(call.args[0]).partition("{")[0]
        if isinstance(call.args[0], ast.Constant)
        else "/status"
        for source in sources()
        for call in source.nodes
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in {"web.get", "serve_shared"}
        # What passes a path on serves none by itself.
        and ast.unparse(call.args[0]) != "path"
    }
    assert set(reference.names_of(page, "HTTP")) == served


BLOCKS = re.compile(r"^ *```[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
HEREDOC = re.compile(r"<<'EOF'\n(.*?)^EOF$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_is_shown_exists(page: Path) -> None:
    blocks = "".join(BLOCKS.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    for shown in re.findall(r"(?:^|\| |kubectl )gpupack ([a-z][^|#>\n]*)", blocks, re.MULTILINE):
        words = shown.split()
        command: click.Command = cli.commands[words[0]]
        if isinstance(command, click.Group) and words[1:2] and words[1] in command.commands:
            command = command.commands[words[1]]
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        given = {word.split("=")[0] for word in words if word.startswith("-") and word != "-"}
        assert given <= known, shown


def test_the_first_overlay_and_the_first_pod_are_right(tmp_path: Path) -> None:
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    overlay, runtime, pod = (read_yaml(text) for text in HEREDOC.findall(page)[:3])
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    folder = tmp_path / "manifests/overlays/mine"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    built = build(folder)
    daemon = next(one for one in built if one["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    assert (runtime["kind"], runtime["metadata"]["name"]) == ("RuntimeClass", daemon["runtimeClassName"])
    images = {
        container["image"].split(":")[0]
        for one in built
        if one["kind"] in {"DaemonSet", "Deployment"}
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"REGISTRY/gpupack", "registry.k8s.io/kube-scheduler"}
    assert pod["spec"]["schedulerName"] == names.SCHEDULER_NAME
    request = parse_pod({}, [], pod["spec"]["containers"], names.resource_name(names.MIB_PER_GIB))
    assert request is not None
    assert request.effective_units == 4


MIGRATED = re.compile(
    r"```console\n\$ gpupack migrate ([^\n]*?) ?-f - <<'EOF'\n(.*?)^EOF\n(.*?)```", re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize("project", ["gpushare", "hami", "kai", "nvidia"])
def test_the_example_of_a_migration_prints_what_its_page_shows(project: str) -> None:
    (example,) = MIGRATED.findall((DOCS / "migration" / f"{project}.md").read_text(encoding="utf-8"))
    result = CliRunner().invoke(cli, ["migrate", *example[0].split(), "-f", "-"], input=example[1])
    assert (result.exit_code, result.stdout) == (0, example[2])


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name != "adr"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_page_begins_with_its_purpose_and_has_an_example(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    heading, _, rest = text.partition("\n\n")
    assert heading.startswith("# ")
    if page not in {DOCS / "README.md", DOCS / "glossary.md", DOCS / "comparison.md"}:  # tables only
        assert FENCE.search(text)
        assert re.match(r"[\w*`\[]", rest)
