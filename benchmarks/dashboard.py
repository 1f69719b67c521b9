"""The dashboard in a real browser: first paint, updates, memory; and the pictures of docs/dashboard.

`python -m benchmarks.dashboard --nodes N`: the shipped command follows N nodes of eight cards, with four
pods a node. The stand-in of the API server is in this process. Debian's Chromium opens the page. Then a
node's words change every 50 ms for some seconds. The last line is JSON:

- `first_paint_ms`: from the navigation's start to the first cards on the screen;
- `update_*_ms`: from a message's arrival in the browser to the frame that shows it;
- `update_cpu_ms`: processor time of the page's main thread for an update;
- `seen_*_ms`: from the change in the API server to the frame.

`python -m benchmarks.dashboard --screenshots FOLDER` writes the pictures instead.
"""

import asyncio
import json
import math
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from allocator.names import QUEUE_GATE
from benchmarks.browser import Tab, chromium
from benchmarks.fleet import TEAMS, Fleet
from benchmarks.machine import machine, make_parser, percentile, resident_mib
from deviceplugin.gpus.api.source import GpuCard, GpuProcess, GpuSample
from deviceplugin.gpus.simulated.telemetry import simulate_telemetry
from deviceplugin.monitoring.sampling import SAMPLE_S
from deviceplugin.monitoring.telemetry import HISTORY_S, TelemetryHistory
from gpupack.dashboard.app import Dashboard, start_listening
from gpupack.dashboard.board import ClusterBoard
from gpupack.dashboard.handlers import DashboardHandlers
from gpupack.dashboard.member import MemberDashboard, MemberPages
from gpupack.dashboard.records import CardDetail
from gpupack.dashboard.settings import Settings
from gpupack.dashboard.telemetry import NodeCourse, explain_no_telemetry
from gpupack.dashboard.trend import TrendPoint
from gpupack.whatif.questions import WorkBudget
from kubeapi.objects import Node, Pod, PodGroup
from scheduler_plugin.cache.gang_names import GROUP_LABELS
from scheduler_plugin.queue.controller.status import WaitExplanation
from standins.apiserver.server import ApiServer

View = tuple[str, str, tuple[int, int], bool]
"""Name of a picture, fragment of the URL, size, whether it is dark."""

CHANGES: Final = 100
GAP_S: Final = 0.05
WIDE: Final = (1440, 900)
PHONE: Final = (390, 844)


def main() -> None:
    """Run the benchmark, or write the pictures, as the command line says."""
    parser = make_parser("dashboard", __doc__, nodes=(5000, "nodes of eight cards"))
    parser.add_argument("--screenshots", metavar="FOLDER", help="write the pictures of the documents there")
    options = parser.parse_args()
    if options.screenshots is not None:
        Path(options.screenshots).mkdir(parents=True, exist_ok=True)
        asyncio.run(screenshots(Path(options.screenshots)))
        return
    print(machine())
    print(json.dumps(asyncio.run(measure(options.nodes))))


@asynccontextmanager
async def shown(
    fleet: Fleet,
    trend: Iterable[TrendPoint] = (),
    address: str = "127.0.0.1:0",
    allowed_hosts: tuple[str, ...] = (),
    telemetry: Callable[[ClusterBoard, str], Awaitable[NodeCourse]] | None = None,
) -> AsyncIterator[tuple[Dashboard, str]]:
    """Serve the page of a made-up cluster from this process; gives the dashboard and the page's URL."""
    settings = Settings(http=address)
    async with AsyncExitStack() as stack:
        dashboard = Dashboard("https://api.example.com:6443")
        stack.callback(dashboard.questions.close)
        for point in trend:
            dashboard.hub.trend.add(point)
        fill_board(dashboard.board, fleet)
        dashboard.flush_changes()
        with dashboard.hub.open_page():
            await dashboard.refresh_advice()
        pages = dashboard.make_handlers(
            partial(telemetry, dashboard.board)
            if telemetry is not None
            else explain_no_telemetry("the cluster is made up"),
            allowed_hosts,
        )
        yield dashboard, await start_listening(pages, settings, stack)


def fill_board(board: ClusterBoard, fleet: Fleet) -> None:
    """Give a board all nodes and pods of a fleet."""
    board.replace_nodes([node(fleet.node_object(each)) for each in fleet.nodes])
    pods = (*fleet.pod_objects(), *fleet.pending_objects())
    board.replace_pods([msgspec.convert(pod, Pod) for pod in pods])


def fill(api: ApiServer, fleet: Fleet) -> None:
    """Create all nodes and pods of a fleet; those that run first, for nodes name their UIDs."""
    for pod in fleet.pod_objects():
        fleet.uids[pod["metadata"]["name"]] = api.add_pod(pod)["metadata"]["uid"]
    for each in fleet.nodes:
        value = fleet.node_object(each)
        meta = value["metadata"]
        api.add_node(each.name, meta["labels"], value["status"]["capacity"], meta["annotations"])


def node(value: dict[str, Any]) -> Node:
    """Read a node."""
    return msgspec.convert(value, Node)


async def first_paint_ms(tab: Tab, url: str) -> float:
    """Open the page; milliseconds from the navigation's start to the first cards on the screen."""
    await tab.open(url)
    await tab.until("globalThis.gpupackTimings?.length && document.querySelector('.card')")
    took = await tab.run("gpupackTimings[0].began + gpupackTimings[0].took")
    return float(took)


async def measure(nodes: int) -> dict[str, float]:
    """Measure the shipped command on a stand-in of the API server."""
    fleet = Fleet(nodes, uniform=True)
    with tempfile.TemporaryDirectory() as folder:
        async with ApiServer() as api, chromium() as browser, browser.tab() as tab:
            fill(api, fleet)
            began = time.perf_counter()
            command = [sys.executable, "-m", "gpupack", "dashboard", "--no-browser", "--port", "0"]
            process = await asyncio.create_subprocess_exec(
                *command,
                "--kubeconfig",
                api.kubeconfig(Path(folder) / "config"),
                stdout=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            url = (await process.stdout.readline()).decode().split()[2]
            await tab.size(*WIDE)
            paints = []
            await tab.open(url)
            await tab.until(f"document.querySelector('.count')?.textContent === '{nodes:,} nodes'", 120)
            ready_s = time.perf_counter() - began
            for _ in range(5):
                await tab.open("about:blank")
                paints.append(await first_paint_ms(tab, url))
            await tab.send("Performance.enable", timeDomain="threadTicks")
            before = await _busy_ms(tab)
            seen, updates = await _updates(tab, api, fleet)
            busy_ms = await _busy_ms(tab) - before
            figures = {
                "nodes": nodes,
                "pods": sum(len(each.pods) for each in fleet.nodes),
                "ready_s": round(ready_s, 2),
                "first_paint_ms": round(percentile(paints, 50)),
                "first_paint_worst_ms": round(max(paints)),
                "update_p50_ms": round(percentile(updates, 50), 1),
                "update_p99_ms": round(percentile(updates, 99), 1),
                "update_cpu_ms": round(busy_ms / max(1, len(updates)), 1),
                "seen_p50_ms": round(percentile(seen, 50)),
                "seen_p99_ms": round(percentile(seen, 99)),
                "scroll_worst_frame_ms": round(await _scroll(tab), 1),
                "heap_mib": round(float(await tab.run("performance.memory.usedJSHeapSize")) / 2**20, 1),
                "rss_mib": round(resident_mib(process.pid), 1),
            }
            process.terminate()
            await process.wait()
    return figures


async def _updates(tab: Tab, api: ApiServer, fleet: Fleet) -> tuple[list[float], list[float]]:
    """Change nodes; milliseconds until each is to be seen, and what each message took in the browser."""
    await tab.run("gpupackTimings.splice(0)")
    seen = []
    first = min(fleet.nodes, key=lambda each: each.name)
    for number in range(CHANGES):
        each = first if number % 5 == 0 else fleet.random.choice(fleet.nodes)
        for name in list(each.pods):
            del each.pods[name]
            break
        each.revision += 1
        value = fleet.node_object(each)
        amounts = value["status"]["capacity"]
        began = time.perf_counter()
        api.patch_node(each.name, {"metadata": {"annotations": value["metadata"]["annotations"]}})
        api.patch_node(each.name, {"status": {"capacity": amounts, "allocatable": amounts}})
        if each is first and each.pods:
            gib = sum(each.promised(card) for card in range(len(each.sizes)))
            await tab.until(f"document.querySelector('.sub').textContent.trim().startsWith('{gib:,}/')")
            seen.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(GAP_S)
    return seen, [each["took"] for each in await tab.run("gpupackTimings")]


async def _busy_ms(tab: Tab) -> float:
    """Processor time of the page's main thread so far, in milliseconds."""
    metrics = (await tab.send("Performance.getMetrics"))["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration")) * 1000


async def _scroll(tab: Tab) -> float:
    """Scroll through all nodes; the longest time between two frames, in milliseconds."""
    worst = await tab.run(
        "new Promise((done) => { let worst = 0, last = performance.now(), at = 0;"
        " const step = (now) => { worst = Math.max(worst, now - last); last = now; at += 1; scrollBy(0, 400);"
        " if (at < 120) requestAnimationFrame(step); else { scrollTo(0, 0); done(worst); } };"
        " requestAnimationFrame(step); })"
    )
    return float(worst)


def made_up_trend() -> list[TrendPoint]:
    """A day of a cluster that fills in the morning and empties at night."""
    points = []
    size = 14264 * 1024
    for step in range(288):
        hour = step / 12
        load = 0.58 + 0.26 * math.sin((hour - 9) / 24 * 2 * math.pi) + 0.01 * math.sin(step * 0.5)
        free = size * (1 - load)
        whole_free = free * (0.9 - 0.5 * load + 0.03 * math.sin(step * 0.23))
        points.append(
            TrendPoint(
                at=int(time.time()) - (288 - step) * 300,
                size=size,
                allocated=int(size * load),
                overuse=int(size * 0.01 * (1 + math.sin(step / 9))),
                free=int(free),
                whole_free=int(whole_free),
                whole=int(whole_free / (60 * 1024)),
                largest=(79 if load < 0.8 else 44) * 1024,
                pending=max(0, round(40 * (load - 0.7))),
            )
        )
    return points


_ARCHITECTURES: Final = {"H100": "hopper", "A100": "ampere", "L40S": "ada_lovelace", "T4": "turing"}


async def make_up_course(board: ClusterBoard, node_name: str) -> NodeCourse:
    """Let the cards of a node do what simulated ones with a process for each pod do."""
    detail = board.make_detail(node_name)
    assert detail is not None
    courses = [_make_up_card(card, number) for number, card in enumerate(detail.cards)]
    return msgspec.convert({"cards": courses}, NodeCourse)


def _make_up_card(card: CardDetail, number: int) -> dict[str, Any]:
    now_s = 0.0
    history = TelemetryHistory(SAMPLE_S, lambda: now_s)
    listed = GpuCard(card.index, card.uuid or "", card.model or "", 0, 0, None, "", 0)
    architecture = next((name for mark, name in _ARCHITECTURES.items() if mark in listed.model), "")
    pods = [GpuProcess(100 * number + at, 1) for at in range(len(card.pods[:2]))]
    for step in range(int(HISTORY_S / SAMPLE_S)):
        now_s = step * SAMPLE_S
        began = now_s > HISTORY_S / 4 or number % 2
        telemetry = simulate_telemetry(architecture, pods if began else (), now_s)
        history.add([listed], [GpuSample(listed.uuid, 0, (), telemetry=telemetry)])
    (course,) = history.explain(history=True)["cards"]
    return dict(course)


async def screenshots(folder: Path) -> None:
    """Write the pictures."""
    fleet = Fleet(40)
    crowded = next(each for each in fleet.nodes if each.beyond and each.pods and not each.corrupt)
    (card,) = crowded.beyond
    views = (
        ("cards", "#/cards?group=model", (1320, 800), False),
        (
            "drawer",
            f"#/cards?group=label:example.com/pool&node={crowded.name}&card={card}",
            (1320, 800),
            True,
        ),
        ("pending", "#/pending", (1200, 700), False),
        ("fits", "#/fits", (1200, 700), False),
        ("trends", "#/trends?span=24h", (1200, 700), True),
        ("queues", "#/queues", (1200, 700), False),
        ("phone", "#/cards?sort=free", PHONE, False),
    )
    async with (
        shown(fleet, made_up_trend(), telemetry=make_up_course) as (dashboard, url),
        chromium() as browser,
        browser.tab() as tab,
    ):
        dashboard.hub.set_part("queues", QUEUES)
        dashboard.board.set_queued(msgspec.convert(QUEUES["pods"], list[WaitExplanation]))
        queued = {each["name"] for each in QUEUES["pods"]}
        for pod in fleet.pending_objects():
            if pod["metadata"]["name"] in queued:
                pod["spec"]["schedulingGates"] = [{"name": QUEUE_GATE}]
            else:
                pod["metadata"]["labels"][GROUP_LABELS[0]] = "finetune"
            dashboard.board.put_pod(msgspec.convert(pod, Pod))
        for team in TEAMS:
            group = {"metadata": {"name": "finetune", "namespace": team}, "spec": {"minMember": 4}}
            dashboard.board.coscheduling_groups.put_group(msgspec.convert(group, PodGroup))
        with dashboard.hub.open_page():
            await dashboard.refresh_advice()
        await picture_views(tab, url, views, folder)
        async with shown_to_member(dashboard.board, TEAMS[0]) as member_url:
            shared = _find_shared_card(dashboard.board, TEAMS[0])
            view = ("team", f"#/cards?group=model&{shared}", (1320, 800), False)
            await picture_views(tab, member_url, [view], folder)
        if tab.faults:
            raise SystemExit("\n".join(tab.faults))


def _find_shared_card(board: ClusterBoard, namespace: str) -> str:
    """Find a card with pods of a namespace beside others; as in the page's URL."""
    for name in sorted(board.tiles):
        detail = board.make_detail(name)
        for number, card in enumerate(detail.cards if detail is not None else ()):
            if {pod.namespace == namespace for pod in card.pods} == {True, False}:
                return f"node={name}&card={number}"
    raise LookupError(f"no card has pods of {namespace} beside others")


@asynccontextmanager
async def shown_to_member(board: ClusterBoard, namespace: str) -> AsyncIterator[str]:
    """Serve the page of a member of a namespace; gives its URL."""
    pages = MemberPages(board)

    async def ask(question: str, query: dict[str, str | int]) -> bytes:
        answer = pages.answer_page if question == "page" else pages.answer_node
        texts = {key: str(value) for key, value in query.items()}
        return msgspec.json.encode(answer(board.get_cluster(), namespace, texts, WorkBudget()))

    member = MemberDashboard("https://api.example.com:6443", namespace, ask)
    await member.refresh()
    no_telemetry = explain_no_telemetry("it is told to those who may list nodes")
    handlers = DashboardHandlers(member, member.hub, member.refresh, lambda: True, None, no_telemetry, ())
    async with AsyncExitStack() as stack:
        yield await start_listening(handlers, Settings(http="127.0.0.1:0"), stack)


async def picture_views(tab: Tab, url: str, views: Iterable[View], folder: Path) -> None:
    """Write a picture of each view of a page."""
    for name, view, size, dark in views:
        await tab.size(*size, phone=size is PHONE)
        await tab.dark(dark=dark)
        await tab.open("about:blank")
        await tab.open(url + view)
        await tab.until("document.querySelector('.sums') && document.fonts.status === 'loaded'")
        if "node=" in view:
            await tab.until("document.querySelector('.pods')")
        if name == "drawer":
            await tab.until("document.querySelector('.spark')")
        await tab.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        picture = await tab.picture()
        (folder / f"{name}.png").write_bytes(picture)
        print(f"{name}.png: {len(picture) / 1024:.0f} KiB")


def _tenant(name: str, nominal: int, used: int, running: int, waiting: int) -> dict[str, Any]:
    return {
        "name": name,
        "cohort": "research",
        "weight": nominal / 400,
        "nominal": nominal,
        "used": used,
        "borrowed": max(0, used - nominal),
        "lent": max(0, nominal - used),
        "running": running,
        "waiting": waiting,
        "oldestWaitS": 95.0 * waiting,
        "stop": "None",
    }


QUEUES: Final[dict[str, Any]] = {
    "there": True,
    "text": "",
    "queues": [
        _tenant("ads", 1600, 1480, 61, 0),
        _tenant("research", 4000, 4190, 212, 0),
        _tenant("search", 2400, 2330, 83, 1),
        _tenant("speech", 1200, 1200, 40, 0),
    ],
    "pods": [
        {
            "namespace": "search",
            "name": "train-90002",
            "queue": "search",
            "position": 1,
            "reason": "Quota",
            "message": "it needs 79 units; queue search uses 2330 of its 2400, and its cohort has 0 more",
            "waitsS": 190.0,
        },
    ],
    "trouble": "",
    "fault": "",
    "warning": "",
}


if __name__ == "__main__":
    main()
