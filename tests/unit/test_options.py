"""One dataclass says all of a process' options: the command line and the checks come from its fields."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from deviceplugin.mps_settings import MpsSettings
from deviceplugin.settings import Settings
from gpupack.autoscale.settings import AutoscaleSettings
from gpupack.cli.app import cli
from gpupack.cli.settings_options import settings_options
from gpupack.dashboard.settings import Settings as DashboardSettings
from kubeapi.options import find_faults, option, read_option
from scheduler_plugin.queue.controller.settings import QueueSettings
from scheduler_plugin.settings import Settings as SchedulerSettings


def parse_even(text: str) -> frozenset[int]:
    if any(int(part) % 2 for part in text.split(",")):
        raise ValueError(f"{text!r}; allowed: even numbers")
    return frozenset(map(int, text.split(",")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Toys:
    """Settings with a field of each type."""

    name: str = option(env="TOY_NAME", help="Whose.")
    kind: str = option("bear", allowed=("bear", "car"), help="What.")
    size_mib: int = option(1, least=0, most=9, help="How large.")
    after_s: float = option(0.0, least=0, zero_means="never", help="When.")
    box: Path = option(Path("/box"), help="Where.")
    shelves: tuple[Path, ...] = option((Path("/a"), Path("/b")), metavar="LIST", help="Where else.")
    colours: tuple[str, ...] = option(("red",), allowed=("red", "blue"), metavar="LIST", help="Which.")
    even: frozenset[int] = option(frozenset({2}), metavar="LIST", parse=parse_even, help="Numbers.")
    broken: bool = option(False, help="Whether.")
    told: str = "no option"


def run(*arguments: str, env: dict[str, str] | None = None) -> tuple[Any, dict[str, Any]]:
    seen: dict[str, Any] = {}

    @click.command()
    @settings_options(Toys, "name", "broken")
    def toys(**options: Any) -> None:
        seen.update(options)

    return CliRunner().invoke(toys, arguments, env=env or {}), seen


def test_options_have_the_fields_defaults() -> None:
    done, seen = run("--name", "x")
    assert done.exit_code == 0
    assert Toys(**seen) == Toys(name="x")


def test_the_command_line_is_read_by_the_fields_types() -> None:
    _, seen = run(
        *("--kind", "car", "--size-mib", "3", "--after-s", "0.5", "--box", "/c", "--shelves", "/x, /y,/x"),
        *("--colours", "blue,red", "--even", "4,6", "--broken"),
        env={"TOY_NAME": "y"},
    )
    assert Toys(**seen) == Toys(
        name="y",
        kind="car",
        size_mib=3,
        after_s=0.5,
        box=Path("/c"),
        shelves=(Path("/x"), Path("/y")),
        colours=("blue", "red"),
        even=frozenset({4, 6}),
        broken=True,
    )


def test_a_text_that_cannot_be_read_is_a_usage_error_with_what_is_allowed() -> None:
    done, _ = run("--even", "3")
    assert done.exit_code == 2
    assert "'3'; allowed: even numbers" in done.stderr


def test_help_shows_values_and_defaults() -> None:
    done, _ = run("--help")
    assert "--kind bear|car" in done.stdout
    assert "[default: /a,/b]" in done.stdout
    assert "--broken / --no-broken" in done.stdout


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({}, []),
        ({"kind": "doll"}, ["--kind 'doll'; allowed: bear, car"]),
        ({"size_mib": 10}, ["--size-mib 10; allowed: 0 to 9"]),
        ({"size_mib": -1}, ["--size-mib -1; allowed: 0 to 9"]),
        ({"after_s": float("inf")}, ["--after-s inf; allowed: 0 (never) or more"]),
        ({"after_s": float("nan")}, ["--after-s nan; allowed: 0 (never) or more"]),
        ({"colours": ()}, ["--colours ''; allowed: a comma list of red, blue"]),
        ({"colours": ("red", "green")}, ["--colours 'red,green'; allowed: a comma list of red, blue"]),
        (
            {"kind": "doll", "size_mib": 11},
            ["--kind 'doll'; allowed: bear, car", "--size-mib 11; allowed: 0 to 9"],
        ),
    ],
)
def test_each_value_that_is_not_allowed_is_named_with_what_is(
    changes: dict[str, Any], faults: list[str]
) -> None:
    assert find_faults(Toys(**{"name": "x", **changes})) == faults


def test_every_setting_of_the_node_daemon_is_an_option_of_its_command() -> None:
    parameters = {parameter.name for parameter in cli.commands["node"].params}
    assert {each.name for each in fields(Settings)} <= parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Shops:
    """Settings with options of other names, and those that may be repeated."""

    stale_s: float = option(180.0, name="stale-after", least=10.0, help="When.")
    doors: tuple[str, ...] = option((), name="door", repeat=True, metavar="NAME", help="Which.")
    prices: Mapping[str, str] = option({}, name="price", repeat=True, metavar="NAME=VALUE", help="What.")
    whose: str | None = option(None, short="-w", help="Whose.")
    most: int | None = option(None, most=5, least=1, help="How many.")
    many: bool = option(False, negative="single", shown=False, help="Whether.")


def test_options_may_be_named_and_repeated() -> None:
    seen: dict[str, Any] = {}

    @click.command()
    @settings_options(Shops)
    def shops(**options: Any) -> None:
        seen.update(options)

    done = CliRunner().invoke(shops, [])
    assert (done.exit_code, Shops(**seen)) == (0, Shops())
    line = "--stale-after 9 --door a --door b --price x=1 --price y=2 -w me --most 9 --many"
    CliRunner().invoke(shops, line.split())
    made = Shops(**seen)
    assert made == Shops(
        stale_s=9.0, doors=("a", "b"), prices={"x": "1", "y": "2"}, whose="me", most=9, many=True
    )
    assert find_faults(made) == ["--stale-after 9; allowed: 10 or more", "--most 9; allowed: 1 to 5"]
    assert "--many / --single" in CliRunner().invoke(shops, ["--help"]).output
    assert Shops().prices is not Shops().prices


@pytest.mark.parametrize(
    ("command", "settings", "apart"),
    [
        ("scheduler", SchedulerSettings, set()),
        ("queue", QueueSettings, set()),
        ("autoscale", AutoscaleSettings, set()),
        ("mps", MpsSettings, set()),
        ("dashboard", DashboardSettings, {"filename", "port", "browser", "context"}),
    ],
)
def test_every_process_takes_its_options_from_its_settings(
    command: str, settings: type, apart: set[str]
) -> None:
    """So nothing is said twice; `apart` is what only a terminal has."""
    made = {each.name for each in fields(settings) if read_option(each) is not None}
    asked = {each.name for each in cli.commands[command].params} - {"version", "card_policy_parameters"}
    assert asked == made | apart
