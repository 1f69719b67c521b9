"""Policies of the commands that take some as options: loaded when a command starts, listed in its help."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from allocator.policies import CARD_POLICIES
from allocator.registry import Entry, Registry
from gpupack.errors import InputError


def card_policies() -> tuple[Registry[Any], ...]:
    """List the registries that the node daemon chooses from, without the scheduler's numpy."""
    return (CARD_POLICIES,)


def all_policies() -> tuple[Registry[Any], ...]:
    """List the registries that the scheduler chooses from."""
    from scheduler_plugin.scheduling.policies import NODE_POLICIES  # noqa: PLC0415 - it loads numpy

    return (NODE_POLICIES, CARD_POLICIES)


def load_policies(
    registries: tuple[Registry[Any], ...], card_policy: str = "", parameters: Mapping[str, str] | None = None
) -> None:
    """Look for the policies of other packages, and make the card policy with its parameters.

    Raises:
        InputError: some cannot be used, a line each.
    """
    faults = [fault for registry in registries for fault in registry.load_packages()]
    if faults:
        raise InputError("\n".join(faults))
    try:
        if parameters:
            CARD_POLICIES.configure(card_policy, parameters)
    except CARD_POLICIES.error as error:
        raise InputError(str(error)) from error


class PolicyCommand(click.Command):
    """A command whose help lists policies, those of other packages too."""

    def __init__(self, *args: Any, lists: Callable[[], tuple[Registry[Any], ...]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._lists = lists

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        for registry in self._lists():
            title = f"{registry.kind[:1].upper()}{registry.kind[1:-1]}ies"
            with formatter.section(title):
                for fault in registry.load_packages():
                    formatter.write_text(fault)
                formatter.write_dl([(entry.name, _describe_policy(entry)) for entry in registry.entries()])


class PolicyGroup(PolicyCommand, click.Group):
    """A PolicyCommand with subcommands."""


def _describe_policy(entry: Entry[Any]) -> str:
    parts = [entry.summary or "no description"]
    if entry.parameters:
        parts.append(f"parameters: {', '.join(entry.parameters)}")
    if entry.package:
        parts.append(f"from {entry.package}")
    return "; ".join(parts)
