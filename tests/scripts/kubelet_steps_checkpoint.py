"""Steps: what the kubelet's own checkpoint holds, and when it is written."""

import asyncio
import json
from collections.abc import Awaitable, Callable

from deviceplugin.errors import AllocationRefusedError
from tests.scripts.kubelet_play import ALL, Answer, Play, ScriptPod, Step, relation
from tests.waiting import until


async def written_between_containers(here: Play) -> Answer:
    """Look at the checkpoint from inside each Allocate: what was allocated before must be there."""
    checkpoints = []
    here.plugin.on_allocate = lambda: checkpoints.append(here.checkpoint.read())
    one = await here.admit(ScriptPod("many", (3, 2), init=(1, (2,))))
    looks = [sorted(here.written("many", checkpoint)) for checkpoint in checkpoints]
    return {"in the checkpoint at each Allocate": looks, "after": one.facts("0 1", "0 2", "0 3")}


async def init_stands_beside_main(here: Play) -> Answer:
    await here.admit(ScriptPod("init-main", (2,), init=(6,)))
    written = here.written("init-main")
    return {"init to main": relation(written["i0"], written["m0"]), "main": len(written["m0"])}


async def _end(here: Play, how: str) -> str:
    """Run a pod that holds all there is, and end it; PodResources is not asked. Returns its name."""
    here.plugin.answer = lambda available, _must, size: available[:size]
    name = f"pod-{how}"
    await here.create(ScriptPod(name, (ALL,), ends=how == "succeeds"))
    status = await here.phase(name, {"Succeeded" if how == "succeeds" else "Running", "Failed"})
    assert status["phase"] != "Failed", status
    if how != "succeeds":
        await here.delete(name, force=how == "forced")
    return name


def ended_pods_stay(how: str) -> Callable[[Play], Awaitable[Answer]]:
    async def step(here: Play) -> Answer:
        name = await _end(here, how)
        kept = {container: len(ids) for container, ids in here.written(name).items()}
        here.plugin.answer = None
        after = (await here.admit(ScriptPod(f"after-{how}", (8,)))).facts()
        return {"kept": kept, "after the next allocation": here.written(name), "next": after}

    return step


async def list_and_message(here: Play) -> Answer:
    """What makes the kubelet clean its checkpoint when nobody asks for devices."""
    name = await _end(here, "forced")

    def there() -> bool:
        return bool(here.written(name))

    seen = {"at first": there()}
    await here.another_list()
    seen["after a ListAndWatch message"] = there()
    await here.left_the_list(name)
    seen["after PodResources List"] = there()
    await here.another_list()
    seen["after List, then a message"] = there()
    return seen


async def restart_before_cleaning(here: Play) -> Answer:
    await _end(here, "forced")
    return await _bound_while_away(here)


async def restart_after_cleaning(here: Play) -> Answer:
    await here.left_the_list(await _end(here, "forced"))
    await here.another_list()
    return await _bound_while_away(here)


async def _bound_while_away(here: Play) -> Answer:
    """Kill the kubelet, bind a pod that needs everything, start the kubelet."""
    before = here.checkpoint_path.read_bytes()
    await here.driver.kill()
    await here.create(ScriptPod("bound", (ALL,)))
    same = here.checkpoint_path.read_bytes() == before
    await here.driver.start()
    status = await here.phase("bound", {"Running", "Failed"})
    reasons = {key: status[key] for key in ("reason", "message") if status.get(key)}
    await here.registered()
    return {
        "same file": same,
        "phase": status["phase"],
        "in the checkpoint": sorted(here.written("bound")),
        **reasons,
    }


async def restart_keeps_the_checkpoint(here: Play) -> Answer:
    await here.admit(ScriptPod("kept", (2,), init=(6,)))
    before, data, listed = here.written("kept"), here.checkpoint_path.read_bytes(), await here.list()
    assert listed is not None
    await here.driver.kill()
    there = here.checkpoint_path.read_bytes() == data
    await here.driver.start()
    await here.listed_again(listed)
    await here.registered()
    return {"while away": there, "registered": here.written("kept") == before}


async def refusals(here: Play) -> Answer:
    seen: Answer = {}
    here.allocator.refuse = AllocationRefusedError("spans-cards", "IDs of 2 cards")
    seen["Allocate refused"] = sorted((await here.admit(ScriptPod("refused", (3,)))).written)
    here.allocator.refuse = None
    seen["second container refused"] = sorted((await here.admit(ScriptPod("second", (3, 9)))).written)
    seen["too many"] = sorted((await here.admit(ScriptPod("too-many", (ALL + 1,)))).written)
    seen["the refused pod, later"] = sorted(here.written("second"))
    await here.admit(ScriptPod("next", (1,)))
    seen["after the next allocation"] = sorted(here.written("second"))
    return seen


def _lost(here: Play) -> None:
    here.checkpoint_path.unlink()


def _torn(here: Play) -> None:
    whole = here.checkpoint_path.read_bytes()
    here.checkpoint_path.write_bytes(whole[: len(whole) // 2])


def _changed(here: Play) -> None:
    changed = json.loads(here.checkpoint_path.read_bytes())
    changed["Checksum"] += 1
    here.checkpoint_path.write_text(json.dumps(changed))


def spoilt(how: Callable[[Play], None], name: str) -> Callable[[Play], Awaitable[Answer]]:
    """Spoil the checkpoint while the kubelet is away; see when it writes another, and what is in it."""

    async def step(here: Play) -> Answer:
        await here.admit(ScriptPod(f"before-{name}", (3,)))
        await here.stop_plugin()
        await here.driver.kill()
        how(here)
        left = here.checkpoint_path.read_bytes() if here.checkpoint_path.exists() else None
        await here.driver.start()

        async def known() -> bool:
            answer = await here.list()
            return answer is not None and ("default", f"before-{name}") in answer.pods

        def now() -> bytes | None:
            return here.checkpoint_path.read_bytes() if here.checkpoint_path.exists() else None

        async def written() -> bool:
            return now() != left

        await until(known, "the kubelet knows its pods")
        untouched = now() == left
        here.start_plugin()
        await here.registered()
        # The node's status may come before the file.
        await until(written, "the kubelet writes its checkpoint")
        first = sorted(here.written(f"before-{name}"))
        two = await here.admit(ScriptPod(f"after-{name}", (3,)))
        here.plugin.answer = lambda available, _must, size: available[:size]
        refused = (await here.admit(ScriptPod(f"above-{name}", (27,)))).facts()
        return {
            "untouched without a plugin": untouched,
            "at the first message": first,
            "old": (await here.phase(f"before-{name}", {"Running", "Failed"}))["phase"],
            "new": two.facts()["in the checkpoint"],
            "refused for the sum": {key: refused[key] for key in ("reason", "in the checkpoint")},
        }

    return step


async def lost_while_running(here: Play) -> Answer:
    await here.admit(ScriptPod("whole", (3,)))
    before = here.written("whole")
    here.checkpoint_path.unlink()
    assert here.checkpoint.read() is None
    await here.another_list()
    return {"back with the next message": here.written("whole") == before}


async def _listed(here: Play) -> set[str]:
    answer = await here.list()
    assert answer is not None
    return {name for _, name in answer.pods}


async def listed_in_a_batch(here: Play) -> Answer:
    """Ask PodResources while the plugin is asked: a kubelet that starts finds three pods to admit."""
    names = {1: "first", 2: "second", 3: "third"}
    asked: list[str] = []
    looks: list[bool] = []

    async def look(size: int) -> None:
        asked.append(names[size])
        looks.append(await _listed(here) == set(asked))

    here.plugin.on_question = look
    await here.driver.kill()
    for size, name in names.items():
        await here.create(ScriptPod(name, (size,)))
    await here.driver.start()
    phases = [(await here.phase(name, {"Running", "Failed"}))["phase"] for name in names.values()]
    await here.registered()
    return {"listed are those that asked so far, and the one that asks": looks, "phases": phases}


async def listed_while_asked(here: Play) -> Answer:
    """Keep the kubelet waiting for an answer, and see what it takes up meanwhile."""
    seen: Answer = {}

    async def look(_size: int) -> None:
        if not seen:
            seen["at first"] = sorted(await _listed(here))
            await here.create(ScriptPod("later", (1,)))
            await here.delete("asks", force=True)
            await asyncio.sleep(here.driver.pace)
            seen["with another one bound, and this one deleted"] = sorted(await _listed(here))

    here.plugin.on_question = look
    await here.create(ScriptPod("asks", (2,)))

    async def admitted() -> bool:
        status = await here.driver.status("later")
        return status is not None and status.get("phase") in {"Running", "Failed"}

    await until(admitted, "the pod that came later is admitted")
    return seen


CHECKPOINT_STEPS = (
    Step("the checkpoint holds a container before the next one asks", written_between_containers),
    Step("the checkpoint: an init container's IDs stand again under main", init_stands_beside_main),
    Step("the checkpoint keeps a pod deleted by force until the next allocation", ended_pods_stay("forced")),
    Step(
        "the checkpoint keeps a pod deleted with grace until the next allocation", ended_pods_stay("graceful")
    ),
    Step("the checkpoint keeps a pod that succeeded until the next allocation", ended_pods_stay("succeeds")),
    Step("the checkpoint is cleaned by PodResources List and a message, in this order", list_and_message),
    Step("the checkpoint of refused pods", refusals),
    Step("PodResources lists a batch pod by pod, as each asks", listed_in_a_batch),
    Step("PodResources lists the same as long as the plugin is asked", listed_while_asked),
    Step("restart: the checkpoint stays", restart_keeps_the_checkpoint),
    Step("restart: a pod bound meanwhile is refused for an ended pod's entry", restart_before_cleaning),
    Step("restart: a pod bound meanwhile runs where the checkpoint was cleaned", restart_after_cleaning),
    Step("restart with the checkpoint lost: the next one", spoilt(_lost, "lost")),
    Step("restart with the checkpoint torn", spoilt(_torn, "torn")),
    Step("restart with a checkpoint that fails its checksum", spoilt(_changed, "changed")),
    Step("a checkpoint that is deleted comes back whole with the next message", lost_while_running),
)
