"""A node of 16 cards with 7 MIG instances each and 1 000 pods, while its hardware does its worst.

`python -m benchmarks.hardware [--seconds S] [--pods N]`: the real command `gpupack node` with simulated cards
runs in a process of its own, as does the stand-in for the API server. The stand-in for the kubelet runs in
this one. All pods are bound and admitted. Then for a while one pod after the other ends, and another one
takes its place once the node's words show it free. Meanwhile the script of the profile lets

- numbered errors of the driver come at 10 000 a second, of all instances in turn,
- one call of the driver hang for a minute (a fifth of a shorter time).

Measured are

- Allocate from the kubelet's call to its answer, called from a process that does nothing else
  (`benchmarks.caller` says why);
- right after each, the same call of a plugin that does nothing, which is what this machine takes for it;
- GetPreferredAllocation, which comes before, in the same way;
- pods that were refused, and device IDs given out twice;
- containers that were told another card than the one they were bound to;
- resident memory of the daemon before and after.

The last line is JSON.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml
from aiohttp import ClientSession

from allocator.packing import read_node
from benchmarks.machine import at_least, machine, make_parser, percentile, resident_mib, spread
from benchmarks.node import (
    NODE,
    PODS_PATH,
    RESOURCE,
    RunningDaemon,
    bind_pod,
    handled,
    run_daemon,
    until,
)
from deviceplugin.gpus.simulated.profile import load_profile, parse_profile

CARDS = 16
INSTANCES = 7
EVENTS_PER_S = 10_000
PARTS = 5
WARM_S = 20.0
LOOK_S = 0.02


def main() -> None:
    """Run the benchmark as its command line says."""
    parser = make_parser("hardware", __doc__)
    parser.add_argument(
        "--seconds",
        type=at_least(float(PARTS)),
        default=300,
        help="seconds of coming and going (default 300)",
    )
    parser.add_argument("--pods", type=int, default=1000, help="pods on the node, 1 to 1008 (default 1000)")
    options = parser.parse_args()
    if not 1 <= options.pods <= 1008:
        parser.error(f"--pods {options.pods}; allowed: 1 to 1008")
    print(machine())
    print(json.dumps(asyncio.run(measure(options.seconds, options.pods))))


def profile_text(script: list[dict[str, Any]]) -> str:
    """Write the profile: H100 with 7 of 1g.10gb each, 9 units an instance."""
    shipped = load_profile("8xh100-80").cards[0].card
    devices = [
        {"index": at, "uuid": f"GPU-{at:08x}-0000-4000-8000-000000000000", "mig": ["1g.10gb"] * INSTANCES}
        for at in range(CARDS)
    ]
    memory = {"total_bytes": shipped.total_mib << 20, "reserved_bytes": shipped.reserved_mib << 20}
    defaults = {"name": shipped.model, "memory": memory}
    return yaml.safe_dump(
        {"version": "1.0", "device_defaults": defaults, "devices": devices, "script": script}
    )


class World:
    """The kubelet, a client of the API server and the daemon's process.

    Attributes:
        wrong: containers that were told another card than theirs.
        twice: device IDs that two running containers had at once.
        refused: pods that the kubelet refused.
    """

    def __init__(self, daemon: RunningDaemon, profile: Path, cards: Sequence[str]) -> None:
        self._client, self.kubelet, self.pid, self.port, self.caller = daemon
        self._cards = cards
        self.wrong = self.twice = self.refused = 0
        self._profile = profile
        self._made = 0
        self._pods: dict[str, tuple[str, str, str]] = {}

    async def run(self, card: str) -> None:
        """Bind a pod of one unit to a card and wait until it runs, or is refused."""
        self._made += 1
        name = f"pod-{self._made:06d}"
        uid = await bind_pod(self._client, name, card, 1)
        await until(lambda: self.kubelet.admission(uid) is not None, f"{name} is admitted")
        if self._was_refused(uid):
            self.refused += 1
            return
        told = self.kubelet.containers[uid, "main"].envs["NVIDIA_VISIBLE_DEVICES"]
        self.wrong += told != card
        self._pods[name] = (uid, card, told)

    async def end_oldest(self) -> str:
        """Delete the pod that has run longest; returns its card."""
        name = next(iter(self._pods))
        uid, card, _ = self._pods.pop(name)
        await self._client.delete(f"{PODS_PATH}/{name}", {"gracePeriodSeconds": 0})
        await until(lambda: self.kubelet.admission(uid) is None, f"{name} ends")
        return card

    async def offered(self, card: str) -> None:
        """Wait until the node's words show room on a card, as the scheduler would before it binds there."""
        at = self._cards.index(card)
        while True:
            node = msgspec.json.decode(await self._client.get(f"/api/v1/nodes/{NODE}"))
            words = read_node(node["status"]["capacity"])
            if words is not None and words.used[at] < words.sizes[at]:
                return
            await asyncio.sleep(LOOK_S)

    def count_twice(self) -> None:
        """Look for device IDs that two of the running pods have."""
        seen: set[str] = set()
        for uid, _, _ in self._pods.values():
            for ids in self.kubelet.held(uid, "main").values():
                self.twice += len(seen & ids)
                seen |= ids

    async def storm(self, seconds: float) -> None:
        """Write the script of the next `seconds` into the profile, which the daemon watches."""
        hang_s = min(60.0, seconds / PARTS)
        script = [
            {"at_s": 0, "xid": 31, "times": int(EVENTS_PER_S * seconds), "over_s": seconds},
            {"at_s": hang_s, "hang_s": hang_s},
        ]
        draft = self._profile.with_suffix(".new")
        draft.write_text(profile_text(script))
        draft.rename(self._profile)

    async def metric(self, name: str) -> float:
        """Sum up a metric of the daemon; only its own lines are read, for there are thousands."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        async with ClientSession() as session, session.get(url) as answer:
            lines = (await answer.text()).splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))
        )

    def _was_refused(self, uid: str) -> bool:
        admission = self.kubelet.admission(uid)
        return admission is not None and not admission.admitted


async def measure(seconds: float, pods: int) -> dict[str, float]:
    """Run everything and print figures for people."""
    async with start() as (world, cards):
        began = time.perf_counter()
        for number in range(pods):
            await world.run(cards[number % len(cards)])
        filled_s = time.perf_counter() - began
        filled_ms = list(world.caller.allocate_ms)
        print(f"{pods} pods admitted in {filled_s:.0f} s, Allocate {spread(filled_ms)} ms", flush=True)
        await churn(world, min(WARM_S, seconds))
        before_mib = resident_mib(world.pid)
        world.caller.forget()
        await world.storm(seconds)
        hang_s, replaced = await churn(world, seconds)
        world.count_twice()
        after_mib, faults = resident_mib(world.pid), await world.metric("gpupack_card_xid_errors_total")
        churned_ms = world.caller.allocate_ms
        print(f"{replaced} pods replaced in {seconds:g} s, Allocate {spread(churned_ms)} ms", flush=True)
        print(f"handled in the daemon: {await handled(world.port)}", flush=True)
        print(f"of an empty plugin: {spread(world.caller.empty_ms)} ms", flush=True)
        print(f"GetPreferredAllocation: {spread(world.caller.preferred_ms)} ms", flush=True)
        print(
            f"{faults / seconds:.0f} errors a second counted, the driver hung for {hang_s:.0f} s at the most"
        )
        print(f"wrong cards {world.wrong}, IDs twice {world.twice}, pods refused {world.refused}")
        print(f"resident {before_mib:.1f} MiB before, {after_mib:.1f} MiB after", flush=True)
        return figures(churned_ms, faults / seconds, hang_s, world, before_mib, after_mib)


def figures(
    churned_ms: list[float],
    errors_per_s: float,
    hang_s: float,
    world: Any,
    before_mib: float,
    after_mib: float,
) -> dict[str, float]:
    """What the last line says; people script against its keys."""
    return {
        "instances": CARDS * INSTANCES,
        "allocates": len(churned_ms),
        "allocate_p50_ms": round(percentile(churned_ms, 50), 3),
        "allocate_p99_ms": round(percentile(churned_ms, 99), 3),
        "empty_plugin_p99_ms": round(percentile(world.caller.empty_ms, 99), 3),
        "errors_per_s": round(errors_per_s),
        "driver_hung_s": round(hang_s, 1),
        "wrong_cards": world.wrong,
        "ids_twice": world.twice,
        "refused": world.refused,
        "rss_before_mib": round(before_mib, 1),
        "rss_after_mib": round(after_mib, 1),
    }


async def churn(world: World, seconds: float) -> tuple[float, int]:
    """Replace pods for so long; returns the longest hang that the daemon reported, and how many pods."""
    end, hang_s, replaced, looked = time.perf_counter() + seconds, 0.0, 0, 0.0
    while time.perf_counter() < end:
        card = await world.end_oldest()
        await world.offered(card)
        await world.run(card)
        replaced += 1
        if time.perf_counter() - looked > 1.0:
            looked = time.perf_counter()
            hang_s = max(hang_s, await world.metric("gpupack_node_driver_hangs_seconds"))
    return hang_s, replaced


@asynccontextmanager
async def start() -> AsyncIterator[tuple[World, list[str]]]:
    """Start everything, and wait until the daemon serves the kubelet."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "node.yaml"
        profile.write_text(profile_text([]))
        instances = [
            instance.uuid
            for each in parse_profile("bench", profile.read_text()).cards
            for instance in each.instances or ()
        ]
        async with run_daemon(profile) as daemon:
            units, allocatable = 9 * len(instances), daemon.kubelet.allocatable
            await until(lambda: allocatable().get(RESOURCE, 0) == units, "it registers")
            yield World(daemon, profile, instances), instances


if __name__ == "__main__":
    main()
