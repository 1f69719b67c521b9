"""Steps: how device IDs are chosen, reused, refused and freed."""

from collections.abc import Awaitable, Callable

from deviceplugin.errors import AllocationRefusedError
from tests.kubelet_world import cards_of
from tests.scripts.kubelet_play import Answer, Play, ScriptPod, Step


def admitted(pod: ScriptPod, *without: str) -> Callable[[Play], Awaitable[Answer]]:
    """A step that admits one pod; `without` are relations left to chance."""

    async def step(here: Play) -> Answer:
        return (await here.admit(pod)).facts(*without)

    return step


async def registers(here: Play) -> Answer:
    return {"calls": here.plugin.calls[:2], "amounts": await here.amounts()}


async def exact_answer(here: Play) -> Answer:
    one = await here.admit(ScriptPod("exact", (3,)))
    two = await here.admit(ScriptPod("exact-2", (3,)))
    return {"first": one.facts(), "second": two.facts()}


async def short_answer(here: Play) -> Answer:
    here.plugin.answer = lambda available, _must, _size: available[:1]
    one = await here.admit(ScriptPod("short", (8,)))
    answered = min(one.preferred[0][0])
    return one.facts() | {"answer is in": answered in one.allocated[0]}


async def empty_answer(here: Play) -> Answer:
    here.plugin.answer = lambda *_: []
    return (await here.admit(ScriptPod("empty", (8,)))).facts()


async def oversize_answer(here: Play) -> Answer:
    here.plugin.answer = lambda available, _must, _size: available[:8]
    one = await here.admit(ScriptPod("oversize", (3,)))
    answered = set(sorted(one.preferred[0][0])[:8])
    return one.facts() | {"within the answer": one.allocated[0] <= answered}


async def answer_of_used_and_unknown_ids(here: Play) -> Answer:
    used = (await here.admit(ScriptPod("used", (4,)))).allocated[0]
    here.plugin.answer = lambda *_: [*sorted(used), "GPU-9::0"]
    one = await here.admit(ScriptPod("foreign", (8,)))
    return one.facts() | {"none of them": not one.allocated[0] & used}


async def held_by_init_is_not_offered(here: Play) -> Answer:
    await here.admit(ScriptPod("holder", (1,), init=(6,)))
    return (await here.admit(ScriptPod("after-holder", (1,)))).facts()


async def allocate_refused(here: Play) -> Answer:
    here.allocator.refuse = AllocationRefusedError("spans-cards", "IDs of 2 cards")
    one = await here.admit(ScriptPod("refused", (3,)))
    here.allocator.refuse = None
    return {"refused": one.facts(), "next": (await here.admit(ScriptPod("after-refused", (3,)))).facts()}


async def second_container_refused(here: Play) -> Answer:
    one = await here.admit(ScriptPod("second-refused", (3, 9)))
    return {"refused": one.facts(), "next": (await here.admit(ScriptPod("after-second", (8,)))).facts()}


async def asked_for_the_last(here: Play) -> Answer:
    """Eight units of two cards are left: a pod that wants all of them, and those that want a card's each."""
    for name, units in (("full", 8), ("full-2", 8), ("part", 4), ("part-2", 4)):
        await here.admit(ScriptPod(name, (units,)))
    answer = {"on two cards": (await here.admit(ScriptPod("all-left", (8,)))).facts()}
    for name in ("last-but-one", "last"):
        answer[name] = (await here.admit(ScriptPod(name, (4,)))).facts()
    return answer


async def unhealthy(here: Play) -> Answer:
    one = await here.admit(ScriptPod("on-bad-card", (3,)))
    bad = cards_of(one.allocated[0]).pop()
    for identifier in here.allocator.health:
        here.allocator.health[identifier] = not identifier.startswith(bad)
    here.plugin.send_devices()
    amounts = await here.becomes(32, 24)
    two = await here.admit(ScriptPod("beside-bad-card", (3,)))
    status = await here.phase("on-bad-card", {"Running", "Failed"})
    return {
        "amounts": amounts,
        "first": status["phase"],
        "second": two.facts(),
        "apart": bad not in cards_of(two.allocated[0]),
    }


async def device_removed(here: Play) -> Answer:
    one = await here.admit(ScriptPod("on-lost-card", (3,)))
    lost = cards_of(one.allocated[0]).pop()
    whole = dict(here.allocator.health)
    here.allocator.health = {each: True for each in whole if not each.startswith(lost)}
    here.plugin.send_devices()
    amounts = await here.becomes(24, 24)
    answer = await here.list()
    assert answer is not None
    still = here.listed(answer, "on-lost-card") == one.listed
    phase = (await here.phase("on-lost-card", {"Running", "Failed"}))["phase"]
    here.allocator.health = whole
    here.plugin.send_devices()
    return {"amounts": amounts, "phase": phase, "still listed": still}


def deletion_frees(how: str) -> Callable[[Play], Awaitable[Answer]]:
    async def step(here: Play) -> Answer:
        await here.admit(ScriptPod(how, (8,)))
        await here.remove(how, force=how == "forced")
        return (await here.admit(ScriptPod(f"after-{how}", (8,)))).facts()

    return step


async def end_frees(here: Play) -> Answer:
    one = await here.admit(ScriptPod("ends", (8,), ends=True))
    await here.left_the_list("ends")
    facts = one.facts()
    del facts["listed"]  # it may be asked before or after the end
    return {"ended": facts, "next": (await here.admit(ScriptPod("after-ends", (8,)))).facts()}


async def name_used_again(here: Play) -> Answer:
    await here.admit(ScriptPod("again", (3,)))
    await here.remove("again", force=True)
    return (await here.admit(ScriptPod("again", (5,)))).facts()


DEVICE_STEPS = (
    Step("options are asked before the devices", registers),
    Step("an exact answer is taken, and not offered again", exact_answer),
    Step("a short answer is topped up at random", short_answer),
    Step("an empty answer is topped up at random", empty_answer),
    Step("of an oversize answer a random part is taken", oversize_answer),
    Step("an answer of used and unknown IDs counts for nothing", answer_of_used_and_unknown_ids),
    Step(
        "main reuses a part of a larger init container's IDs, nobody is asked",
        admitted(ScriptPod("init-larger", (2,), init=(6,))),
    ),
    Step(
        "main must include a smaller init container's IDs",
        admitted(ScriptPod("init-smaller", (5,), init=(2,))),
    ),
    Step(
        "main reuses all of an equal init container's IDs", admitted(ScriptPod("init-same", (4,), init=(4,)))
    ),
    Step(
        "init containers share, mains take apart",
        admitted(ScriptPod("two-two", (2, 2), init=(3, 4)), "0 2", "0 3"),
    ),
    Step("a sidecar keeps its own", admitted(ScriptPod("sidecar", (3,), init=((2,),)))),
    Step(
        "a sidecar takes from an init container for good",
        admitted(ScriptPod("init-sidecar", (2,), init=(4, (3,)))),
    ),
    Step("what an init container held is not offered", held_by_init_is_not_offered),
    Step("two containers, two sets", admitted(ScriptPod("two", (3, 4)))),
    Step("a refused Allocate fails the pod and frees its IDs", allocate_refused),
    Step("a refused GetPreferredAllocation fails the pod", admitted(ScriptPod("no-room", (9,)))),
    Step("a second container's failure frees the first one's IDs", second_container_refused),
    Step("more than there are is refused without asking", admitted(ScriptPod("too-many", (33,)))),
    Step("who wants all that is left is asked about too", asked_for_the_last),
    Step("unhealthy IDs are not offered, their containers run on", unhealthy),
    Step("vanished IDs leave the capacity, their containers run on", device_removed),
    Step("a forced deletion frees", deletion_frees("forced")),
    Step("a graceful deletion frees", deletion_frees("graceful")),
    Step("the end of a pod frees, and takes it from the list", end_frees),
    Step("a name used again is a new pod", name_used_again),
)
