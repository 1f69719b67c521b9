"""The queue's configuration: one YAML document, checked as a whole, with the names that Kueue uses. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import fields

from kubeapi.bounded_yaml import load_yaml
from kubeapi.names import LABEL_KEY, is_label_key
from kubeapi.selectors import Expression, LabelSelector
from scheduler_plugin.errors import QueueConfigError
from scheduler_plugin.queue.config.quota import Quota
from scheduler_plugin.queue.config.reading import format_value, list_sound_values, read_form

_DURATION: Final = re.compile(r"(?=[0-9])(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_MOST_UNITS: Final = 1 << 40

MOST_FAULTS: Final = 100
"""Faults that an error lists at most: each of 10 000 queues may have several."""

MOST_NAMES: Final = 20
"""Names that a fault lists."""

_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_A_LABEL: Final = "lower-case letters, digits and '-', 1 to 63, with a letter or digit at both ends"
_DURATIONS: Final = "1s to 720h, such as 90s, 10m or 1h30m"

Name = Annotated[str, Meta(pattern=rf"\A{_LABEL}\Z", description=_A_LABEL)]
Cohort = Annotated[str, Meta(pattern=rf"\A({_LABEL})?\Z", description=f"{_A_LABEL}; or nothing")]
Duration = Annotated[str, Meta(description=_DURATIONS)]
Units = Annotated[int, Meta(ge=0, le=_MOST_UNITS)]
Strategy = Literal["BestEffortFIFO", "StrictFIFO"]
Stop = Literal["None", "Hold", "HoldAndDrain"]


class _Form(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part of the document; unknown keys are faults, not ignored."""


class ExpressionForm(Expression, frozen=True, forbid_unknown_fields=True):
    """A condition of a `SelectorForm`; an operator that Kubernetes does not have is a fault."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]


class SelectorForm(LabelSelector, frozen=True, forbid_unknown_fields=True):
    """A label selector of the document."""

    match_expressions: tuple[ExpressionForm, ...] | None = None


class QueueForm(_Form, frozen=True):
    """A queue as the configuration has it.

    Attributes:
        cohort: Queues of the same cohort lend to each other; empty for none.
        nominal_quota: Units of GPU memory that are its own; None: no limit.
        borrowing_limit: Units beyond them at most; None: what others lend.
        lending_limit: Units of its own that others may have; None: all.
        queueing_strategy: `StrictFIFO`: a pod that does not fit holds up the younger ones of its queue.
        stop_policy: Whether pods are admitted; `HoldAndDrain` evicts the admitted ones too.
    """

    name: Name
    cohort: Cohort = ""
    weight: Annotated[float, Meta(ge=1e-6, le=1e6)] = 1.0
    nominal_quota: Units | None = None
    borrowing_limit: Units | None = None
    lending_limit: Units | None = None
    namespace_selector: SelectorForm | None = None
    queueing_strategy: Strategy = "BestEffortFIFO"
    stop_policy: Stop = "None"

    @property
    def is_strict(self) -> bool:
        return self.queueing_strategy == "StrictFIFO"

    @property
    def quota(self) -> Quota:
        return Quota(self.nominal_quota, self.borrowing_limit, self.lending_limit)


class CohortForm(_Form, frozen=True):
    """A cohort inside another one."""

    name: Name
    parent: Cohort = ""


class SlotForm(_Form, frozen=True):
    """Number of slots of a type on a node.

    Attributes:
        count: On each node, or on each card, see `SlotsForm.per`.
        node_selector: Nodes that have them; None: all.
        share_of_cards: Part of a node's cards that has them, in percent; with `per: card` only.
    """

    count: Annotated[int, Meta(ge=0, le=1024)] = 1
    node_selector: SelectorForm | None = None
    share_of_cards: Annotated[int, Meta(ge=1, le=100)] = 100


class SlotsForm(_Form, frozen=True):
    """Slots of two types."""

    per: Literal["node", "card"] = "card"
    local: SlotForm = SlotForm()
    free: SlotForm = SlotForm()


class LocalityForm(_Form, frozen=True):
    """Labels that tell where data is.

    Attributes:
        label_prefix: A node has the data named D when it has the label `<prefix>D`.
        rack_label: Nodes with the same value of it are in one rack.
    """

    enabled: bool = True
    label_prefix: Annotated[str, Meta(min_length=1, max_length=253)] = "data.gpupack.io/"
    rack_label: str = "topology.kubernetes.io/rack"


class _QueueDocument(_Form, frozen=True):
    queues: Annotated[list[Any], Meta(min_length=1, max_length=10_000)]
    cohorts: Annotated[list[Any], Meta(max_length=10_000)] = []
    slots: Any = None
    locality: Any = None
    mode: Literal["gate", "batch"] = "gate"
    node_policy: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    node_policy_parameters: dict[str, dict[str, Any]] = {}
    fair_sharing: Literal["units", "dominant"] = "units"
    reclaim: Literal["wait", "evict"] = "wait"
    launch_order: Literal["free-first", "fifo"] = "free-first"
    keep_room_after: Duration = "10m"
    keep_room_at_latest: Duration = "720h"
    bind_within: Duration = "2m"
    gang_within: Duration = "5m"
    batch_headroom: Annotated[int, Meta(ge=0, le=90)] = 0


class QueueConfig(Struct, frozen=True):
    """A configuration without faults.

    Attributes:
        slots: None: a pod is admitted wherever a card can take it.
        mode: `gate` removes the gate and names the node only if slots or data decide it, otherwise
            kube-scheduler chooses; `batch` always names the node.
        node_policy: Policy for pods that name none of their own; None: that of the command line.
        node_policy_parameters: Parameters by policy, also for policies that pods name; they replace the
            command line's.
        fair_sharing: Queues are ordered by units of GPU memory (pods, with slots) or by their dominant share.
        reclaim: Whether pods on borrowed quota are evicted when its lender has pods waiting.
        plain_launch: Pods that start on the same node start in order of age only.
        keep_room_after_s: Shortest wait before a pod that does not fit gets a reservation, see
            `reservation_delay`.
        keep_room_at_latest_s: Longest such wait, unless `keep_room_after_s` is longer.
        bind_within_s: An admitted pod that is not bound by then is requeued.
        gang_within_s: A gang that is not bound whole by then is requeued.
        batch_headroom: Part of a node's cpu and memory that batch mode leaves free, 0 to 0.9.
    """

    queues: dict[str, QueueForm]
    parents: dict[str, str]
    slots: SlotsForm | None = None
    locality: LocalityForm = LocalityForm()
    mode: Literal["gate", "batch"] = "gate"
    node_policy: str | None = None
    node_policy_parameters: dict[str, dict[str, str]] = {}
    fair_sharing: Literal["units", "dominant"] = "units"
    reclaim: Literal["wait", "evict"] = "wait"
    plain_launch: bool = False
    keep_room_after_s: float = 600.0
    keep_room_at_latest_s: float = 2_592_000.0
    bind_within_s: float = 120.0
    gang_within_s: float = 300.0
    batch_headroom: float = 0.0


Form = TypeVar("Form", bound=Struct)


PolicyCheck = Callable[[str | None, Mapping[str, Mapping[str, str]]], Sequence[str]]
"""Finds the faults of a node policy, None for the process's own, and of the parameters of each policy."""


def parse_config(
    name: str, text: str, check_policies: PolicyCheck = lambda _policy, _given: ()
) -> QueueConfig:
    """Read a configuration.

    Raises:
        QueueConfigError: every fault, with its path.
    """
    try:
        raw, faults = load_yaml(text)
    except ValueError as error:
        raise QueueConfigError(name, [str(error)]) from error
    # With faults of its own the document is still looked into, so that all faults are told at once.
    whole = read_form(raw, _QueueDocument, "", faults)
    document = whole or _QueueDocument(**{"queues": [], **list_sound_values(raw, _QueueDocument)})
    queues = _read_list(document.queues, QueueForm, "queues", faults)
    cohorts = _read_list(document.cohorts, CohortForm, "cohorts", faults)
    slots = read_form(document.slots, SlotsForm, "slots", faults) if document.slots is not None else None
    locality = read_form(
        {} if document.locality is None else document.locality, LocalityForm, "locality", faults
    )
    seconds = {
        field.name: _read_seconds(getattr(document, field.name), field.encode_name, faults)
        for field in fields(_QueueDocument)
        if field.type == Duration
    }
    parameters = {
        policy: {
            name: _format_parameter(value, f"nodePolicyParameters.{policy}.{name}", faults)
            for name, value in each.items()
        }
        for policy, each in document.node_policy_parameters.items()
    }
    faults += check_policies(document.node_policy, parameters)
    faults += _find_conflicts(document, queues, cohorts, slots)
    if locality is not None:
        faults += _find_key_faults("locality.rackLabel", locality.rack_label)
    if faults or locality is None:
        more = [f"{len(faults) - MOST_FAULTS} faults more"] if len(faults) > MOST_FAULTS else []
        raise QueueConfigError(name, faults[:MOST_FAULTS] + more)
    return QueueConfig(
        queues={queue.name: queue for queue in queues.values()},
        parents={cohort.name: cohort.parent for cohort in cohorts.values() if cohort.parent},
        slots=slots,
        locality=locality,
        mode=document.mode,
        node_policy=document.node_policy,
        node_policy_parameters=parameters,
        fair_sharing=document.fair_sharing,
        reclaim=document.reclaim,
        plain_launch=document.launch_order == "fifo",
        keep_room_after_s=seconds["keep_room_after"],
        keep_room_at_latest_s=seconds["keep_room_at_latest"],
        bind_within_s=seconds["bind_within"],
        gang_within_s=seconds["gang_within"],
        batch_headroom=document.batch_headroom / 100,
    )


def explain_overcommit(config: QueueConfig, cluster_units: int) -> str:
    """Say that the quotas promise more than the cluster has; empty if they do not."""
    promised = sum(queue.nominal_quota or 0 for queue in config.queues.values())
    if promised <= cluster_units:
        return ""
    return f"nominal quotas sum up to {promised} units and the cluster's cards have {cluster_units}"


def _find_conflicts(
    document: _QueueDocument,
    queues: Mapping[int, QueueForm],
    cohorts: Mapping[int, CohortForm],
    slots: SlotsForm | None,
) -> Iterable[str]:
    """Find contradictions between parts, also those that have faults of their own."""
    cohort_names = _list_texts(document.cohorts, cohorts, CohortForm, "name")
    queue_names = _list_texts(document.queues, queues, QueueForm, "name")
    yield from _find_repeated_names("queues.name", queue_names)
    yield from _find_repeated_names("cohorts.name", cohort_names)
    for at, queue in queues.items():
        yield from _find_quota_faults(at, queue)
        yield from _find_selector_faults(f"queues[{at}].namespaceSelector", queue.namespace_selector)
    names = {*cohort_names, *_list_texts(document.queues, queues, QueueForm, "cohort")}
    allowed = _list_some(sorted(names), ", ")
    for at, cohort in cohorts.items():
        # The cohorts of queues are not known where none of them can be read.
        if document.queues and cohort.parent and cohort.parent not in names:
            yield f"cohorts[{at}].parent: {cohort.parent}; allowed: the cohorts {allowed}"
    yield from _find_cohort_circles(
        {cohort.name: cohort.parent for cohort in cohorts.values() if cohort.parent}
    )
    if slots is not None:
        yield from _find_selector_faults("slots.local.nodeSelector", slots.local.node_selector)
        yield from _find_selector_faults("slots.free.nodeSelector", slots.free.node_selector)
        if slots.local.count == 0 and slots.free.count == 0:
            yield "slots: both counts are 0; allowed: one type with slots at least"
        if slots.per == "node" and (slots.local.share_of_cards, slots.free.share_of_cards) != (100, 100):
            yield "slots: shareOfCards; allowed with per: card only"


def _find_quota_faults(at: int, queue: QueueForm) -> Iterable[str]:
    for field, value in (("borrowingLimit", queue.borrowing_limit), ("lendingLimit", queue.lending_limit)):
        if value is not None and queue.nominal_quota is None:
            yield f"queues[{at}].{field}: {value}; allowed beside a nominalQuota only"
        elif value is not None and not queue.cohort:
            yield f"queues[{at}].{field}: {value}; allowed in a cohort only"
    if queue.nominal_quota is None:
        return
    if queue.lending_limit is not None and queue.lending_limit > queue.nominal_quota:
        yield (
            f"queues[{at}].lendingLimit: {queue.lending_limit}; "
            f"allowed: 0 to the nominalQuota, {queue.nominal_quota}"
        )


def _find_selector_faults(path: str, selector: SelectorForm | None) -> Iterable[str]:
    """Check keys, that `In` and `NotIn` have values, and that `Exists` and `DoesNotExist` have none."""
    for key in (selector.match_labels if selector is not None else None) or ():
        yield from _find_key_faults(f"{path}.matchLabels", key)
    for at, each in enumerate((selector.match_expressions if selector is not None else None) or ()):
        yield from _find_key_faults(f"{path}.matchExpressions[{at}].key", each.key)
        listed = each.operator in {"In", "NotIn"}
        if listed != bool(each.values):
            allowed = "one or more" if listed else "none"
            values = f"{path}.matchExpressions[{at}].values: {list(each.values or ())}"
            yield f"{values}; allowed: {allowed} with {each.operator}"


def _find_key_faults(path: str, key: str) -> Iterable[str]:
    if not is_label_key(key):
        yield f"{path}: {format_value(key)}; allowed: {LABEL_KEY}"


def _find_cohort_circles(parents: Mapping[str, str]) -> Iterable[str]:
    """Find cycles: follow each cohort upwards to the first one already visited, in linear time."""
    seen: set[str] = set()
    for name in parents:
        path: dict[str, None] = {}
        at: str | None = name
        while at is not None and at not in seen:
            seen.add(at)
            path[at] = None
            at = parents.get(at)
        if at is not None and at in path:
            names = list(path)
            circle = _list_some([*names[names.index(at) :], at], " > ")
            yield f"cohorts: {circle} is a circle; allowed: a tree"


def _list_some(names: Sequence[str], separator: str) -> str:
    """List names; of many, only the first ones and the last one."""
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES - 1], f"... {len(names) - MOST_NAMES} more ...", names[-1]]
    return separator.join(names)


def _read_list(items: list[Any], form: type[Form], path: str, faults: list[str]) -> dict[int, Form]:
    found = ((at, read_form(item, form, f"{path}[{at}]", faults)) for at, item in enumerate(items))
    return {at: part for at, part in found if part is not None}


def _list_texts(items: list[Any], parts: Mapping[int, Form], form: type[Form], field: str) -> list[str]:
    """List a text field of all items, also of faulty ones if this field itself is sound."""
    found = (
        getattr(parts[at], field) if at in parts else list_sound_values(item, form).get(field, "")
        for at, item in enumerate(items)
    )
    return [text for text in found if text]


def _read_seconds(text: str, path: str, faults: list[str]) -> float:
    """Read a duration such as 90s, 10m or 1h30m."""
    match = _DURATION.fullmatch(text)
    seconds = 0.0
    if match is not None:
        hours, minutes, rest = (int(part or 0) for part in match.groups())
        seconds = float(hours * 3600 + minutes * 60 + rest)
    if not 1 <= seconds <= 30 * 86400:
        faults.append(f"{path}: {text[:64]}; allowed: {_DURATIONS}")
    return seconds


def _format_parameter(value: Any, path: str, faults: list[str]) -> str:
    """Read a parameter as the command line has it."""
    if isinstance(value, bool):
        return "yes" if value else "no"  # what YAML makes of these words
    if not isinstance(value, str | int | float):
        faults.append(f"{path}: {format_value(value)}; allowed: a text or a number")
    return str(value)


def _find_repeated_names(what: str, values: list[str]) -> Iterable[str]:
    return (
        f"{what}: {value} stands twice; allowed: once"
        for value, count in sorted(Counter(values).items())
        if count > 1
    )
