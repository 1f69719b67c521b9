"""Options and ends of the commands that ask a cluster, from an API server or a file."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from allocator.names import MAX_UNIT_MIB
from gpupack.cli.common import (
    FAILED,
    cluster_options,
    exit_on_faults,
    exit_with_faults,
    file_option,
    join_options,
    print_lines,
    refuse_beside_file,
)

if TYPE_CHECKING:
    import msgspec

    from gpupack.whatif.fetching import ClusterSource
    from kubeapi.errors import Forbidden, KubeApiError

T = TypeVar("T")
Answer = TypeVar("Answer", bound="msgspec.Struct")
_FOR_MEMBERS: Final = (
    "`why`, `fit` and `dashboard` answer members of a namespace without that right: docs/teams.md"
)


source_options = join_options(
    file_option("Output of `kubectl get nodes,pods -A -o json`. Default: ask the cluster."),
    cluster_options,
    click.option(
        "--unit-mib",
        type=click.IntRange(1, MAX_UNIT_MIB),
        metavar="MIB",
        help="MiB of a unit. Default: of the pod asked about, else what most nodes publish.",
    ),
)
"""Which cluster is asked, or which file."""

compute_option = click.option(
    "--compute",
    type=click.IntRange(0, 100),
    default=0,
    metavar="PERCENT",
    help="Of the compute of each card, as gpupack.io/gpu-compute-percent.",
)


def read_source(options: dict[str, Any]) -> Any:
    """Read the options of `source_options`."""
    from gpupack.whatif.fetching import ClusterSource

    refuse_beside_file(options, "context", "kubeconfig")
    return ClusterSource(options["filename"], options["kubeconfig"], options["context"], options["unit_mib"])


async def ask_where_forbidden(
    refusal: "Forbidden",
    source: "ClusterSource",
    namespace: str | None,
    question: str,
    query: dict[str, str | int],
    kind: type[Answer],
) -> tuple[Answer, str]:
    """Ask as a member of a namespace, after the API server refused to list nodes or all pods.

    Raises:
        InputError: something is wrong with the question.
        KubeApiError: nobody answers members, or not these.
    """
    import msgspec

    from gpupack.errors import InputError
    from gpupack.inventory.fetching import connect
    from gpupack.teams.asking import ask_as_member, explain_missing_rights, make_member_token
    from gpupack.whatif.fetching import DEFAULT
    from kubeapi.errors import UNREADABLE, Forbidden, NotFound

    async with await connect(source.kubeconfig, source.context) as client:
        namespace = namespace or client.namespace or DEFAULT
        try:
            token = await make_member_token(client, namespace)
        except (Forbidden, NotFound) as error:
            refusal.add_note(explain_missing_rights(namespace, error))
            raise refusal from error
        raw = await ask_as_member(client, token, namespace, question, query)
    try:
        answer = msgspec.json.decode(raw, type=kind)
    except UNREADABLE as error:
        raise InputError(f"the answer is not that of this version of gpupack: {error}") from error
    print_lines(
        f"gpupack: you may not list nodes: answered by gpupack in the cluster, for namespace {namespace}",
        err=True,
    )
    return answer, namespace


def run_question(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Ask; what is wrong becomes one line and an exit status."""
    # The process ends with the answer. Meanwhile the collector would walk every node and pod again and again.
    gc.disable()
    with exit_on_faults(exit_with_refusal):
        return asyncio.run(work())


def exit_with_refusal(error: "KubeApiError") -> NoReturn:
    """Say what the API server refused, and what members can ask who may not list nodes; exit."""
    hints = "\n".join(getattr(error, "__notes__", ())).splitlines()
    if not hints and (error.status, error.resource) == (HTTPStatus.FORBIDDEN, "nodes"):
        hints = [_FOR_MEMBERS]
    exit_with_faults(error, FAILED, *hints)
