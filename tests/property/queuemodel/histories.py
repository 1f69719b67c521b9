"""Kinds of histories: what cluster, queues and pods a seed stands for, and what troubles them."""

import re
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from .world import DATA, RACK, Spec

FOREVER: Final = float("inf")

GANG_WITHIN_S: Final = 30
BIND_WITHIN_S: Final = 20
KEEP_AFTER_S: Final = 30

INNER: Final = "inner"
"""A cohort inside the cohort `all`."""

TROUBLES: Final = (
    "restart",
    "die",
    "reload",
    "lose_writes",
    "refuse_writes",
    "slow_writes",
    "late_news",
    "relist",
    "block",
    "budget",
    "evict",
    "silent_node",
    "cordon",
    "slow_binding",
    "api_clock",
    "ungate",
    "forbid",
)


OF_KUBE_SCHEDULER: Final = ("block", "slow_binding", "ungate")
"""Troubles of pods that kube-scheduler binds."""

OF_SCHEDULER: Final = ("restart_scheduler", "kill_scheduler", "lose_commits", "late_scheduler")
"""Troubles of the process that binds pods of batch mode."""

OF_TENANTS: Final = ("escape", "relabel", "mark")
"""What whoever may patch pods does where no policy is in force."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One history before it begins.

    Attributes:
        kind: Its kind.
        nodes: Units of the cards, by node.
        templates: What pods are made of.
        queues: By name what is configured beside the name, as YAML's flow style writes it.
        head: Further keys of the configuration.
        policy: Node policy.
        rate: Pods that come each second while there is trouble.
        calm_rate: Those that come each second afterwards.
        most: Pods that may wait at once.
        troubles: Names of `trouble.Trouble`'s methods, without the underscore.
        wrong_clocks: Nodes whose clock is wrong.
        steps: Steps with trouble.
        calm_s: Seconds without.
        late: Come once, when trouble ends, in this order.
        early: Comes once, a moment before; kube-scheduler refuses it until then.
        models: Card model of nodes that have another one.
        binds: Batch mode binds the pods.
        labels: Of nodes that have any.
        slots: Places for pods on each node; 0: any number.
        is_advised: Somebody moves pods on advice once there is no trouble.
        stopped: A queue that is stopped then, empty for none.
        namespace_queue: The queue that the label of the pods' namespace names; empty: it has none.
    """

    kind: str
    nodes: dict[str, tuple[int, ...]]
    templates: tuple[Spec, ...]
    queues: dict[str, str]
    head: str
    policy: str
    rate: float = 0.2
    calm_rate: float = 0.0
    most: int = 8
    troubles: tuple[str, ...] = ()
    wrong_clocks: tuple[str, ...] = ()
    steps: int = 120
    calm_s: float = 900.0
    late: tuple[Spec, ...] = ()
    early: Spec | None = None
    models: dict[str, str] = field(default_factory=dict)
    binds: bool = False
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    slots: int = 0
    is_advised: bool = False
    stopped: str = ""
    namespace_queue: str = ""

    @property
    def runs_s(self) -> float:
        """For how long pods run at most."""
        return max(spec.runs_s for spec in self.templates)


def _nodes(random: Random, most: int = 3) -> dict[str, tuple[int, ...]]:
    sizes = random.choice(((16, 16), (16,), (16, 16, 16)))
    return {f"n{number}": sizes for number in range(random.randint(1, most))}


def _total(nodes: dict[str, tuple[int, ...]]) -> int:
    return sum(sum(cards) for cards in nodes.values())


def _quotas(random: Random, total: int, names: str) -> dict[str, str]:
    """Shares of the cluster's units."""
    left, found = total, dict[str, str]()
    for name in names:
        share = left if name == names[-1] else random.randint(left // 4, left * 3 // 4)
        left -= share
        limits = random.choice(
            ("", "", "", f", borrowingLimit: {share // 2}", f", lendingLimit: {share // 2}")
        )
        found[name] = f"cohort: all, nominalQuota: {share}{limits}"
    if random.random() < 0.2:
        found[names[-1]] = found[names[-1]].replace("cohort: all", f"cohort: {INNER}")
    return found


def _head(random: Random, reclaim: str, mode: str = "") -> str:
    mode = mode or random.choice(("gate", "gate", "batch"))
    return (
        f"mode: {mode}\nreclaim: {reclaim}\nbindWithin: {BIND_WITHIN_S}s\ngangWithin: {GANG_WITHIN_S}s\n"
        f"keepRoomAfter: {KEEP_AFTER_S}s\ncohorts: [{{name: {INNER}, parent: all}}, {{name: all}}]\n"
    )


def _policy(random: Random) -> str:
    return random.choice(("least-requested", "best-fit", "fragmentation"))


def _owner(random: Random, number: int, bare: float = 0.3) -> str:
    return "" if random.random() < bare else f"owner{number}"


def reclaim(random: Random) -> Plan:
    """Pods that run for ever have borrowed; then their lender's pods come."""
    nodes = _nodes(random)
    total = int(_total(nodes) * random.choice((1, 1, 0.7)))
    names = random.choice(("ab", "ab", "abc"))
    queues = _quotas(random, total, names)
    borrowers = [
        Spec(
            random.choice(names[1:]),
            random.choice((3, 3, 4, 5, 8, 8, 12)),
            owner=_owner(random, number),
            priority=random.choice((0, 0, 0, 1)),
            runs_s=FOREVER,
        )
        for number in range(3)
    ]
    lender = [
        Spec("a", random.choice((2, 4, 5, 8, 10, 16)), owner=f"late{number}", priority=1, runs_s=FOREVER)
        for number in range(random.randint(1, 3))
    ]
    if random.random() < 0.3:
        lender.append(Spec("a", random.choice((4, 8)), "g", 2, owner="late9", priority=1, runs_s=FOREVER))
        lender.reverse()
    if random.random() < 0.3:
        # Can never run, and is older than the others.
        lender.insert(0, Spec("a", 2, owner="never", model="none"))
    return Plan(
        "reclaim",
        nodes,
        tuple(borrowers),
        queues,
        _head(random, "evict") + "keepRoomAtLatest: 720h\n",
        _policy(random),
        rate=0.5,
        most=4,
        late=tuple(lender),
        troubles=random.choice(((), ("restart", "relist"), ("lose_writes", "late_news", "budget"))),
        steps=60,
    )


def refused(random: Random) -> Plan:
    """kube-scheduler refuses some pods for reasons that the queue cannot see."""
    nodes = _nodes(random)
    queues = _quotas(random, _total(nodes), "ab")
    evict = random.choice(("evict", "wait"))

    def spec(owner: str) -> Spec:
        runs_s = FOREVER if evict == "evict" else random.choice((30.0, 120.0))
        return Spec(random.choice("ab"), random.choice((2, 4, 8)), owner=owner, runs_s=runs_s)

    templates = tuple(spec(f"owner{number}") for number in range(4))
    # They come while what was refused is refused still, and have all that it does not use.
    late = tuple(spec(f"late{number}") for number in range(random.choice((0, 2, 4))))
    return Plan(
        "refused",
        nodes,
        templates,
        queues,
        _head(random, evict),
        _policy(random),
        late=late,
        troubles=("block", "block", "restart", "late_news"),
        calm_s=1500.0,
    )


def gangs(random: Random) -> Plan:
    """Gangs, with and without somebody who makes their pods again, and writes that are refused."""
    nodes = _nodes(random)
    queues = (
        _quotas(random, _total(nodes), "ab")
        if random.random() < 0.5
        else {"a": "weight: 1", "b": "weight: 2"}
    )
    size, runs_s = random.choice((2, 3, 4)), random.choice((60.0, 200.0, FOREVER))
    templates = [
        Spec("a", random.choice((4, 8)), "g", size, _owner(random, 0, 0.5), runs_s=runs_s),
        Spec("b", random.choice((4, 8)), "h", 2, _owner(random, 1, 0.5), runs_s=runs_s),
        Spec(random.choice("ab"), 4, owner=_owner(random, 2), runs_s=random.choice((60.0, FOREVER))),
    ]
    return Plan(
        "gangs",
        nodes,
        tuple(templates),
        queues,
        _head(random, "wait"),
        _policy(random),
        troubles=(
            "forbid",
            "refuse_writes",
            "lose_writes",
            "restart",
            "die",
            "die",
            "slow_writes",
            "evict",
        ),
        rate=0.3,
        # Others want the room that the rest of a gang needs.
        calm_rate=random.choice((0.0, 0.2)),
    )


def grouped(random: Random) -> Plan:
    """Gangs that PodGroups of Kubernetes make, all of whose gates have to go together."""
    plan = random.choice((gangs, lent))(random)
    templates = tuple(replace(spec, grouped=bool(spec.gang)) for spec in plan.templates)
    return replace(plan, kind="grouped", templates=templates)


def load(random: Random) -> Plan:
    """Small pods keep coming, more than fit, and a large one comes."""
    nodes = _nodes(random, 2)
    queues = {"a": "weight: 1", "b": "weight: 1"}
    if random.random() < 0.4:
        own = random.randint(16, _total(nodes))
        queues = {
            "a": f"cohort: all, nominalQuota: {own}",
            "b": f"cohort: all, nominalQuota: {_total(nodes) - own}",
        }
    small = [
        Spec(random.choice("ab"), random.choice((2, 3, 4)), owner=_owner(random, number), runs_s=40.0)
        for number in range(3)
    ]
    trouble = random.choice(("refuse", "clock", "slow"))
    large = Spec("a", 16, owner="large", runs_s=40.0)
    if trouble != "refuse" and _total(nodes) >= 32 and random.random() < 0.4:
        large = Spec("a", 8, "g", 2, owner="large", runs_s=40.0)
    plan = Plan(
        "load",
        nodes,
        tuple(small),
        queues,
        _head(random, "wait", "gate") + "keepRoomAtLatest: 48h\n",
        _policy(random),
        rate=1.5,
        calm_rate=1.5,
        most=6,
        steps=40,
        calm_s=500.0,
        troubles={"clock": ("restart",), "slow": ("slow_binding",)}.get(trouble, ()),
        wrong_clocks=tuple(sorted(nodes)[:1]) if trouble == "clock" else (),
        late=(large,) if trouble != "refuse" else (),
        early=large if trouble == "refuse" else None,
    )
    return _with_slots_on_some(plan, random) if len(nodes) > 1 and random.random() < 0.5 else plan


def _with_slots_on_some(plan: Plan, random: Random) -> Plan:
    """Give slots to one node only: whatever is free elsewhere, pods of queues run there."""
    name, count = random.choice(sorted(plan.nodes)), random.choice((4, 8))
    form = f"{{count: {count}, nodeSelector: {{matchLabels: {{pool: slots}}}}}}"
    return replace(
        plan,
        head=f"{plan.head}slots: {{per: node, local: {{count: 0}}, free: {form}}}\n",
        labels={each: {"pool": "slots"} if each == name else {} for each in plan.nodes},
    )


def mixed(random: Random) -> Plan:
    nodes = _nodes(random)
    plain = {"a": "weight: 1", "b": random.choice(("weight: 2", "weight: 1, queueingStrategy: StrictFIFO"))}
    queues = random.choice(
        (plain, _quotas(random, _total(nodes), "ab"), _quotas(random, _total(nodes), "abc"))
    )
    names = sorted(queues)
    templates = [
        Spec(
            random.choice(names),
            random.choice((2, 4, 8, 16)),
            owner=_owner(random, number),
            priority=random.choice((0, 0, 5)),
            runs_s=random.choice((20.0, 60.0, 120.0)),
        )
        for number in range(4)
    ]
    templates.append(
        Spec(names[0], random.choice((4, 8)), "g", random.choice((2, 3)), _owner(random, 8), runs_s=60.0)
    )
    templates += [
        Spec(names[0], 2, runs_s=20.0, notes=notes) for notes in random.choice(ODD_NOTES) for _ in range(2)
    ]
    if random.random() < 0.3:
        templates.append(Spec(random.choice(names), 4, owner=_owner(random, 7), runs_s=60.0, gated=False))
    some = tuple(random.sample(TROUBLES, random.randint(1, 6)))
    return Plan(
        "mixed",
        nodes,
        tuple(templates),
        queues,
        _head(random, random.choice(("wait", "evict")))
        + f"keepRoomAtLatest: {random.choice(('1h', '40s'))}\n",
        _policy(random),
        troubles=some,
        rate=random.choice((0.1, 0.4)),
        wrong_clocks=("n0",) if random.random() < 0.3 else (),
    )


def batch(random: Random) -> Plan:
    """Batch mode binds the pods of another kind's history; its process and its calls fail, too."""
    plan = random.choice((mixed, mixed, reclaim, gangs))(random)
    specs = [replace(spec, batch=True, gated=True) for spec in (*plan.templates, *plan.late)]
    troubles = [name for name in plan.troubles if name not in OF_KUBE_SCHEDULER]
    troubles += random.sample(OF_SCHEDULER, random.randint(0, len(OF_SCHEDULER)))
    count = len(plan.templates)
    return replace(
        plan,
        kind="batch",
        templates=tuple(specs[:count]),
        late=tuple(specs[count:]),
        troubles=tuple(troubles),
        head=re.sub("mode: .*", f"mode: {random.choice(('batch', 'gate'))}", plan.head),
        binds=True,
    )


def together(random: Random) -> Plan:
    """Of one queue some pods are batch mode's and others kube-scheduler's, also of one gang."""
    plan = random.choice((mixed, reclaim, gangs))(random)
    specs = [_of_either(spec, random) for spec in (*plan.templates, *plan.late)]
    troubles = [name for name in plan.troubles if name not in ("slow_binding", "ungate")]
    troubles += random.sample((*OF_SCHEDULER, "switch_mode"), random.randint(0, len(OF_SCHEDULER)))
    count = len(plan.templates)
    return replace(
        plan,
        kind="together",
        templates=tuple(specs[:count]),
        late=tuple(specs[count:]),
        troubles=tuple(troubles),
        binds=True,
    )


def _of_either(spec: Spec, random: Random) -> Spec:
    """Let one scheduler or the other bind a pod; of a gang perhaps both, in turns."""
    halves = bool(spec.gang) and random.random() < 0.4
    return replace(spec, batch=random.random() < 0.5, gated=True, halves=halves)


def slotted(random: Random) -> Plan:
    """Nodes have few places for pods, and data; pods of both schedulers read it."""
    plan = together(random)
    templates = [
        replace(spec, data=random.choice(("", "x", "x,y"))) if not spec.notes else spec
        for spec in plan.templates
    ]
    local, free = random.choice(((1, 1), (2, 1), (1, 2)))
    slots = f"slots: {{per: node, local: {{count: {local}}}, free: {{count: {free}}}}}\n"
    with_slots = random.random() < 0.7
    return replace(
        plan,
        kind="slotted",
        templates=tuple(templates),
        head=plan.head + (slots if with_slots else ""),
        labels={
            name: {f"{DATA}{each}": "" for each in "xy" if random.random() < 0.5}
            | {RACK: random.choice("rs")}
            for name in plan.nodes
        },
        slots=local + free if with_slots else 0,
    )


def lent(random: Random) -> Plan:
    """Gangs have borrowed, also such as nobody makes again; then their lender's pods come."""
    plan = reclaim(random)
    names = sorted(plan.queues)[1:]
    gang = [
        Spec(
            random.choice(names),
            random.choice((3, 4, 5, 8)),
            "h",
            random.choice((2, 2, 3, 4)),
            _owner(random, 10 + number),
            random.choice((0, 0, 1)),
            FOREVER,
        )
        for number in range(2)
    ]
    troubles = random.choice(
        ((), ("evict",), ("evict", "restart", "die"), ("evict", "budget", "lose_writes"))
    )
    return replace(plan, kind="lent", templates=(*gang, plan.templates[0]), troubles=troubles)


def staged(random: Random) -> Plan:
    """Jobs have two stages, and no Job makes their pods: some are evicted, by others or for a lender."""
    plan = random.choice((mixed, reclaim))(random)
    names = sorted(plan.queues)
    jobs = [
        Spec(
            random.choice(names),
            random.choice((2, 4, 8)),
            owner=_owner(random, 30 + number, 0.5),
            runs_s=random.choice((20.0, 60.0)),
            firsts=random.choice((1, 1, 2)),
        )
        for number in range(2)
    ]
    labels = {name: {RACK: "r"} for name in plan.nodes}
    troubles = random.choice(((), ("evict",), ("evict", "late_news"), ("evict", "restart")))
    return replace(
        plan, kind="staged", templates=(*jobs, *plan.templates[:2]), labels=labels, troubles=troubles
    )


def claimed(random: Random) -> Plan:
    """Some pods of the queues ask by claims: the queue holds nobody of them back, and counts them."""
    plan = random.choice((mixed, reclaim))(random)
    names = sorted(plan.queues)
    others = [
        Spec(
            random.choice(names),
            random.choice((2, 4, 8, 16)),
            owner=_owner(random, 20 + number),
            runs_s=random.choice((20.0, 60.0, plan.runs_s)),
            gated=False,
            claims=True,
        )
        for number in range(random.choice((1, 2)))
    ]
    return replace(plan, kind="claimed", templates=(*plan.templates, *others))


def tenants(random: Random) -> Plan:
    """Members of the namespace patch labels, gates and the mark of requeued pods, to be counted nowhere."""
    plan = random.choice((mixed, reclaim, gangs, batch, claimed))(random)
    return replace(
        plan,
        kind="tenants",
        # Each more often than all else that there may be.
        troubles=(*plan.troubles, *OF_TENANTS * 3),
        namespace_queue="a",
    )


def advised(random: Random) -> Plan:
    """Pods run for ever, older ones wait, and somebody moves pods on advice; a queue may be stopped."""
    nodes = _nodes(random)
    queues = _quotas(random, max(8, int(_total(nodes) * random.choice((1, 0.7, 0.5)))), "ab")
    templates = [
        Spec(random.choice("ab"), random.choice((2, 3, 4, 5)), owner=_owner(random, number, 0.1))
        for number in range(4)
    ]
    if random.random() < 0.3:
        templates.append(Spec(random.choice("ab"), random.choice((2, 4)), "g", 2, "owner8"))
    if random.random() < 0.3:
        queues["b"] += ", queueingStrategy: StrictFIFO"
    stopped = random.choice(("", "", *queues))
    return Plan(
        "advised",
        nodes,
        tuple(templates),
        queues,
        _head(random, "wait") + "keepRoomAtLatest: 720h\n",
        _policy(random),
        most=random.choice((1, 2, 3)),
        late=tuple(random.choice(templates) for _ in range(random.choice((0, 0, 1, 3)))),
        rate=0.4,
        steps=40,
        calm_s=400.0,
        is_advised=True,
        stopped=stopped,
    )


_GANG: Final = (("gpupack.io/gang", "odd"), ("gpupack.io/gang-size", "2"))
ODD_NOTES: Final[tuple[tuple[tuple[tuple[str, str], ...], ...], ...]] = (
    ((("gpupack.io/job", "\x1b[2Jjob"),),),
    ((("gpupack.io/gang", "\x1b]0;gang\x07"), ("gpupack.io/gang-size", "2")),),
    ((("gpupack.io/gang", "g" * 200_000), ("gpupack.io/gang-size", "2")),),
    ((("gpupack.io/gang", "odd"), ("gpupack.io/gang-size", "\x1b[31m" * 1000)),),
    tuple((*_GANG, ("gpupack.io/job", job)) for job in ("\x1b[31mred", "plain", "j" * 200_000)),
    (),
)
"""Annotations that people may write, by history and template. Of one gang the pods disagree on the job."""

KINDS: Final = {
    kind.__name__: kind
    for kind in (
        mixed,
        reclaim,
        refused,
        gangs,
        grouped,
        load,
        batch,
        together,
        slotted,
        claimed,
        tenants,
        lent,
        staged,
        advised,
    )
}
