"""The dashboard's page in a real browser: Debian's Chromium, driven over its DevTools protocol."""

import os
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import msgspec
import pytest
import pytest_asyncio

from allocator.names import NODE_CARDS
from allocator.records import dump_cards, load_cards
from benchmarks.browser import chromium, program
from benchmarks.dashboard import make_up_course, node, shown
from benchmarks.fleet import Fleet
from gpupack.dashboard.app import serve_cluster
from gpupack.dashboard.settings import Settings
from gpupack.embedded import EmbeddedCluster
from tests.running import served

REQUIRED = os.environ.get("GPUPACK_BROWSER_REQUIRED") == "1"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(
        program() is None and not REQUIRED, reason="no browser on this machine: apt-get install chromium"
    ),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    async with chromium() as started:
        yield started


@asynccontextmanager
async def opened(browser, url, view="", *, width=1440, height=900, phone=False, dark=False):
    """A page whose stream has brought everything; at its end nothing may have gone wrong in it."""
    async with browser.tab() as tab:
        await tab.size(width, height, phone=phone)
        await tab.dark(dark=dark)
        await tab.open(url + view)
        await tab.until("document.querySelector('.sums')")
        yield tab
        assert tab.faults == []
        ours = urlsplit(url).netloc
        assert {urlsplit(each).netloc for each in tab.requested if not each.startswith("about:")} == {ours}


@asynccontextmanager
async def dashboard(kubeconfig, **options):
    settings = Settings(kubeconfig=kubeconfig, http="127.0.0.1:0", **options)
    async with served(serve_cluster, settings) as (url,):
        yield url


def text(selector):
    return f"document.querySelector({selector!r})?.textContent"


async def test_a_pod_is_seen_on_its_card_and_a_pod_without_room_with_its_reason(browser):
    async with (
        EmbeddedCluster({"node-l40s": "4xl40s", "node-t4": "2xt4"}) as cluster,
        dashboard(cluster.kubeconfig) as url,
        opened(browser, url) as tab,
    ):
        await tab.until("document.querySelectorAll('.card').length === 6")
        assert await tab.run("document.querySelectorAll('.promised[style]').length") == 0
        await cluster.schedule(cluster.create(cluster.make_pod_manifest("placed", units=[12])))
        await tab.until(
            "[...document.querySelectorAll('.figures')].some((each) => /^12[/]/.test(each.innerText))"
        )
        await tab.run("document.querySelector('.card:has(.promised)').click()")
        await tab.until("document.querySelector('.drawer .pods')?.textContent.includes('default/placed')")
        assert (await tab.run("location.hash")).startswith("#/cards?node=node-")

        cluster.create(cluster.make_pod_manifest("large", units=[45]))
        await tab.until("document.querySelector('.side .pending')?.textContent.includes('default/large')")
        held = cluster.make_pod_manifest("held", units=[1])
        held["spec"]["schedulingGates"] = [
            {"name": f"example.com/approval-{number}-that-somebody-has-to-give"} for number in range(6)
        ]
        cluster.create(held)
        line = (
            "[...document.querySelectorAll('.side .pending p')].find((p) => p.textContent.includes('gate'))"
        )
        await tab.run("location.hash = '#/cards'")
        await tab.until(f"({line})?.clientHeight")
        assert await tab.run(f"(({line}).scrollHeight - ({line}).clientHeight)") == 0, "the reason is cut off"
        cluster.api.delete_pod("default", "held")
        await tab.until(f"!({line})")
        await tab.run("location.hash = '#/pending'")
        reason = await tab.until(text("main .why"))
        assert "44 GiB, asked 45 GiB" in reason
        await tab.run("document.querySelector('details.ways summary').click()")
        assert "a request of 44 GiB in place of 45 GiB" in await tab.until(text("details.ways li"))

        cluster.api.delete_pod("default", "placed")
        await tab.run("location.hash = '#/cards'")
        await tab.until(
            "document.querySelectorAll('.card').length === 6 && !document.querySelector('.card .promised')"
        )


async def test_filter_group_drawer_keyboard_and_back(browser):
    fleet = Fleet(40)
    async with shown(fleet) as (_, url), opened(browser, url, "#/cards?q=l40s&group=model") as tab:
        wanted = sum(each.name.startswith("gpu-l40s") for each in fleet.nodes)
        await tab.until(f"{text('.count')} === '{wanted} of 40 nodes'")
        assert await tab.run("document.querySelector('input').value") == "l40s"
        assert "NVIDIA L40S" in await tab.run("document.querySelector('.list').innerText")

        # The filter follows what is typed, and the URL with it.
        await tab.press("/", text="/")
        assert await tab.run("document.activeElement.type") == "search"
        await tab.type(" !zone=zone-x -")
        await tab.until("decodeURIComponent(location.hash).includes('!zone=zone-x')")
        await tab.run("location.hash = '#/cards'")
        await tab.until(f"{text('.count')} === '40 nodes'")

        # Pods are found too.
        pod = next(iter(fleet.nodes[7].pods))
        await tab.run(f"location.hash = '#/cards?q={pod}'")
        await tab.until(
            f"{text('.count')} === '1 of 40 nodes' && {text('.name')} === '{fleet.nodes[7].name}'"
        )
        await tab.run("location.hash = '#/cards'")
        await tab.until(f"{text('.count')} === '40 nodes'")

        # The arrow keys go over cards, also to nodes that were not in the document; Enter opens.
        await tab.run("document.querySelector('.card[tabindex=\"0\"]').focus()")
        first = await tab.run("document.activeElement.id")
        await tab.press("ArrowRight")
        await tab.until(f"document.activeElement.id === '{first[:-1]}1'")
        await tab.press("End")
        last = max(each.name for each in fleet.nodes)
        await tab.until(f"document.activeElement.id.startsWith('card-{last}-')")
        focused = await tab.run("document.activeElement.id")
        await tab.press("Enter")
        await tab.until(f"{text('.drawer h2')} === '{last}'")
        await tab.until("document.activeElement.id === 'drawer-title'")
        await tab.press("Escape")
        await tab.until(f"!document.querySelector('.drawer') && document.activeElement.id === '{focused}'")
        await tab.run("history.back()")
        await tab.until(f"{text('.drawer h2')} === '{last}'")

        # What a picture says, words say too.
        unhealthy = next(each for each in fleet.nodes if each.unhealthy)
        await tab.open(f"{url}#/cards?q={unhealthy.name}")
        await tab.until(f"{text('.count')} === '1 of 40 nodes'")
        labels = await tab.run("[...document.querySelectorAll('.card')].map((each) => each.ariaLabel)")
        assert "unhealthy" in labels[next(iter(unhealthy.unhealthy))]
        await tab.open(f"{url}#/cards?as=table&q={unhealthy.name}")
        await tab.until("document.querySelector('tbody')?.textContent.includes('unhealthy')")
        unnamed = await tab.run(
            "[...document.querySelectorAll('button, a, input, select')].filter((each) =>"
            " !(each.ariaLabel || each.textContent.trim() || each.labels?.[0]?.textContent.trim())).length"
        )
        assert unnamed == 0


async def test_bars_are_as_long_as_cards_are_large_and_sizes_of_ones_own_are_counted(browser):
    async with (
        EmbeddedCluster({"node-l40s": "4xl40s", "node-t4": "2xt4"}) as cluster,
        dashboard(cluster.kubeconfig) as url,
        opened(browser, url) as tab,
    ):
        await tab.until("document.querySelectorAll('.card').length === 6")
        widths = await tab.run(
            "['node-l40s', 'node-t4'].map((name) => document.querySelector(`#card-${name}-0 .bar`)"
            ".getBoundingClientRect().width)"
        )
        sizes = [44, 14]
        assert widths[1] / widths[0] == pytest.approx(sizes[1] / sizes[0], abs=0.03)

        # Fields for a size of one's own, counted as gpupack fit does.
        await tab.run("location.hash = '#/fits'")
        await tab.until("document.querySelector('.own')")
        await tab.run(
            "{ const form = document.querySelector('.own'); form.amount.value = 20; form.requestSubmit(); }"
        )
        await tab.until(f"{text('.own output')}.startsWith('8 pods of 20 GiB fit now, on 1 node')")
        await tab.run(
            "{ const form = document.querySelector('.own'); form.amount.value = 100;"
            " form.what.value = 'percent'; form.cards.value = 2; form.requestSubmit(); }"
        )
        await tab.until(f"{text('.own output')}.includes('x 50 percent fit now, on 2 nodes')")


async def test_a_node_of_several_models_names_them_all(browser):
    fleet = Fleet(1, uniform=True)
    async with shown(fleet) as (dashboard, url), opened(browser, url) as tab:
        await tab.until("document.querySelectorAll('.card').length === 8")
        made = fleet.node_object(fleet.nodes[0])
        annotations = made["metadata"]["annotations"]
        cards = load_cards(annotations[NODE_CARDS])
        changed = [
            msgspec.structs.replace(card, model="NVIDIA T4") if card.index < 2 else card for card in cards
        ]
        annotations[NODE_CARDS] = dump_cards(changed)
        dashboard.board.put_node(node(made))
        dashboard.flush_changes()
        model = cards[0].model.removeprefix("NVIDIA ")
        await tab.until(f"{text('.node .sub')}.includes('2 T4, 6 {model}')")


async def test_the_axis_of_time_says_the_day_where_it_begins(browser):
    async with shown(Fleet(3)) as (_, url), opened(browser, url) as tab:
        said = await tab.run(
            "import('./static/trends.js').then(({ times }) => times([0, 3600, 90000, 93600].map((seconds) =>"
            " seconds + new Date(2026, 0, 5, 22, 30).getTime() / 1000)))"
        )
        assert said == ["22:30\nJan 5", "23:30", "23:30\nJan 6", "00:30\nJan 7"]


async def test_a_phone_and_the_dark(browser):
    async with shown(Fleet(40)) as (_, url):
        async with opened(browser, url, width=390, height=844, phone=True) as tab:
            await tab.until("document.querySelector('.card')")
            for view in ("cards", "cards?as=table", "pending", "fits", "trends", "queues"):
                await tab.run(f"location.hash = '#/{view}'")
                await tab.until(
                    f"document.querySelector('nav a[aria-current]').hash.startsWith('#/{view[:4]}')"
                )
                wide = await tab.run("document.documentElement.scrollWidth")
                assert wide <= 390, f"{view} is {wide} pixels wide"
        async with opened(browser, url, dark=True) as tab:
            assert await tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 26)"
            await tab.run(
                "{ const theme = document.querySelector('.theme select'); theme.value = 'light';"
                " theme.dispatchEvent(new Event('change', { bubbles: true })); }"
            )
            await tab.until("getComputedStyle(document.body).backgroundColor === 'rgb(245, 246, 248)'")
            await tab.open(f"{url}?again")
            await tab.until("document.querySelector('.sums')")
            assert await tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(245, 246, 248)"


async def test_two_thousand_nodes(browser):
    fleet = Fleet(2000, uniform=True, pods=1)
    async with shown(fleet) as (dashboard, url), opened(browser, url) as tab:
        await tab.until(f"{text('.count')} === '2,000 nodes'")
        assert await tab.run("document.querySelectorAll('.card').length") < 1000
        last = fleet.nodes[-1]
        last.pods.clear()
        dashboard.board.put_node(node(fleet.node_object(last)))
        for pod in list(dashboard.board.pods.values()):
            if pod.spec.node_name == last.name:
                dashboard.board.drop_pod(pod)
        dashboard.flush_changes()
        await tab.run("scrollTo(0, document.documentElement.scrollHeight)")
        await tab.until(
            f"document.getElementById('card-{last.name}-7') && [...document.querySelectorAll('.node')].at(-1)"
            ".querySelector('.sub').textContent.trim().startsWith('0/632')"
        )


async def test_a_page_says_that_it_is_old_and_comes_back(browser):
    """The dashboard ends and comes again at its address, as in a rollout."""
    async with browser.tab() as tab:
        async with shown(Fleet(3)) as (_, url):
            await tab.open(url)
            await tab.until(f"{text('.state')} === 'live'")
        await tab.until(f"{text('.state')}?.startsWith('not connected since')")
        assert await tab.run("document.querySelectorAll('.node').length") == 3
        async with shown(Fleet(4), address=urlsplit(url).netloc):
            await tab.until("document.querySelectorAll('.node').length === 4")
            assert await tab.run(text(".state")) == "live"


async def test_a_drawer_draws_what_cards_do(browser):
    """A curve for each value, in pieces where nothing was told; a sentence where nobody can be asked."""
    fleet = Fleet(6)
    crowded = next(each for each in fleet.nodes if each.pods and not each.corrupt)
    view = f"#/cards?node={crowded.name}&card=0"
    async with (
        shown(fleet, telemetry=make_up_course) as (_, url),
        opened(browser, url, view) as tab,
    ):
        await tab.until("document.querySelector('.spark')")
        cards = len(crowded.sizes)
        assert await tab.run("document.querySelectorAll('.drawer .telemetry').length") == cards
        assert await tab.run("document.querySelectorAll('.drawer .spark polyline').length") == 5 * cards
        told = await tab.run("[...document.querySelectorAll('.telemetry')].map((each) => each.textContent)")
        assert all("Utilization" in each and "W of" in each for each in told)
        pieces = "pieces([600, 400, 200, 0], [0, null, 50, 100], 100)"
        pieces = f"import('/static/telemetry.js').then(({{ pieces }}) => {pieces})"
        assert await tab.run(pieces) == [["0.0,21.0"], ["64.0,11.0", "96.0,1.0"]]
    async with shown(fleet) as (_, url), opened(browser, url, view) as tab:
        notes = "[...document.querySelectorAll('.drawer .note')].map((each) => each.textContent)"
        await tab.until(f"{notes}.includes('What the cards do is not known: the cluster is made up')")
        assert await tab.run("document.querySelectorAll('.spark').length") == 0
