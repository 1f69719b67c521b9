"""The dashboard of a namespace's member: own pods, sums of the others, and no names."""

import itertools
import json
from collections.abc import Mapping

import msgspec
import pytest

from gpupack.dashboard.board import ClusterBoard
from gpupack.dashboard.member import KEPT_S, MemberDashboard, MemberPage, MemberPages
from gpupack.errors import InputError
from gpupack.teams.answers import HIDDEN
from gpupack.teams.handlers import FIT_PARAMETERS, read_fit_question
from gpupack.whatif.questions import WorkBudget
from kubeapi import objects
from kubeapi.errors import TimedOut
from tests.ask_world import Node, Pod, World
from tests.clock import Clock

TEAM, OTHER = "team-a", "team-b"


class InCluster:
    """The process in the cluster, asked without the API server between."""

    def __init__(
        self, *pods: Pod, nodes: tuple[Node, ...] = (Node("n1", (16, 16)), Node("n2", (8,)))
    ) -> None:
        world = World(nodes, pods)
        self.board = ClusterBoard()
        self.board.replace_nodes([msgspec.convert(node.object(pods), objects.Node) for node in world.nodes])
        self.board.replace_pods([msgspec.convert(pod.object(), objects.Pod) for pod in pods])
        self.board.refresh()
        self.clock = Clock()
        self.pages = MemberPages(self.board, self.clock)
        self.budget = WorkBudget()
        self.error: Exception | None = None
        self.asked: list[tuple[str, Mapping[str, str | int]]] = []

    async def ask(self, question: str, query: Mapping[str, str | int]) -> bytes:
        self.asked.append((question, query))
        if self.error is not None:
            raise self.error
        if question not in {"page", "node"}:
            return b"{}"
        answer = self.pages.answer_page if question == "page" else self.pages.answer_node
        texts = {key: str(value) for key, value in query.items()}
        return msgspec.json.encode(answer(self.board.get_cluster(), TEAM, texts, self.budget))

    async def page(self) -> MemberPage:
        return msgspec.json.decode(await self.ask("page", {}), type=MemberPage)


@pytest.fixture
def cluster() -> InCluster:
    return InCluster(
        Pod("mine", 4, "n1", (0,), namespace=TEAM),
        Pod("theirs-1", 3, "n1", (0,), namespace=OTHER),
        Pod("theirs-2", 2, "n1", (0,), namespace="team-c"),
        Pod("alone", 6, "n1", (1,), namespace=OTHER),
        Pod("waits", 30, namespace=TEAM),
        Pod("waits-too", 30, namespace=OTHER),
    )


async def test_a_page_has_own_pods_and_sums_of_the_others(cluster: InCluster) -> None:
    page = await cluster.page()
    assert [(node.name, node.labels) for node in page.nodes] == [("n1", {}), ("n2", {})]
    assert [(card.allocated, card.free, card.pods) for card in page.nodes[0].cards] == [(9, 7, 3), (6, 10, 1)]
    assert page.places == {"n1": ["mine"]}
    assert [(pod.namespace, pod.name) for pod in page.pending] == [(TEAM, "waits")]
    assert (page.more, max(fit.units for fit in page.fits)) == (0, 10)
    text = msgspec.json.encode(page).decode()
    assert not [name for name in (OTHER, "team-c", "theirs", "alone", "waits-too") if name in text]


async def test_a_node_has_one_sum_of_others_on_each_card(cluster: InCluster) -> None:
    found = json.loads(await cluster.ask("node", {"name": "n1"}))
    pods = [
        [(pod["namespace"], pod["name"], pod["units"]) for pod in card["pods"]] for card in found["cards"]
    ]
    assert pods == [
        [(TEAM, "mine", 4), ("", "2 pods of other namespaces", 5)],
        [("", HIDDEN, 6)],
    ]
    assert found["node"]["labels"] == {}
    with pytest.raises(InputError, match='no node has the name "n9"'):
        await cluster.ask("node", {"name": "n9"})


async def test_members_of_a_namespace_are_told_the_same_for_some_seconds(cluster: InCluster) -> None:
    def ask(namespace: str) -> MemberPage:
        return cluster.pages.answer_page(cluster.board.get_cluster(), namespace, {}, WorkBudget())

    first = ask(TEAM)
    assert ask(TEAM) is first
    other = ask(OTHER)
    assert [pod.name for pod in other.pending] == ["waits-too"]
    cluster.clock.now += KEPT_S
    assert ask(TEAM) is not first


async def test_names_of_others_are_hidden_in_what_pods_are_told(cluster: InCluster) -> None:
    pod = Pod("evictor", 16, namespace=OTHER).object()
    pod["status"] |= {"nominatedNodeName": "n1"}
    cluster.board.put_pod(msgspec.convert(pod, objects.Pod))
    (waits,) = (await cluster.page()).pending
    assert any(
        f"cards that are kept for pods for which others are evicted count as free here: {HIDDEN}" in note
        for note in waits.notes
    )


async def test_names_of_others_that_end_meanwhile_are_hidden_too(cluster: InCluster) -> None:
    pod = Pod("evictor", 16, namespace="team-d").object()
    pod["status"] |= {"nominatedNodeName": "n1"}
    evictor = msgspec.convert(pod, objects.Pod)
    cluster.board.put_pod(evictor)
    before = cluster.board.get_cluster()
    cluster.board.drop_pod(evictor)  # not known to those who ask yet
    (waits,) = cluster.pages.answer_page(before, TEAM, {}, WorkBudget()).pending
    assert any(HIDDEN in note for note in waits.notes)
    assert not any("evictor" in note for note in waits.notes)


@pytest.fixture
def dashboard(cluster: InCluster) -> MemberDashboard:
    return MemberDashboard("https://api.example.com", TEAM, cluster.ask, lambda: 1000.0)


def state(dashboard: MemberDashboard) -> dict:
    return json.loads(dashboard.hub.encode_everything())


async def test_the_page_beside_the_member_shows_what_it_is_told(
    cluster: InCluster, dashboard: MemberDashboard
) -> None:
    assert not dashboard.is_ready
    await dashboard.refresh()
    shown = state(dashboard)
    assert [node["name"] for node in shown["nodes"]] == ["n1", "n2"]
    assert [pod["name"] for pod in shown["pending"]["pods"]] == ["waits"]
    assert len(shown["trend"]) == 1
    (problem,) = shown["problems"]
    assert problem.startswith(
        "You may not list nodes: answered by gpupack in the cluster for namespace team-a."
    )
    assert (dashboard.is_ready, dashboard.has_node("n1"), dashboard.has_node("n9")) == (True, True, False)
    assert dashboard.find_nodes_with_pod("A/MIN") == ["n1"]
    assert dashboard.find_nodes_with_pod("theirs") == []

    with dashboard.hub.open_page() as page:
        cluster.board.drop_node(msgspec.convert(Node("n2", (8,)).object(()), objects.Node))
        cluster.board.refresh()
        cluster.clock.now += KEPT_S
        await dashboard.refresh()
        news = json.loads(dashboard.hub.encode_changes(page))
    assert (news["nodes"], news["gone"]) == ([], ["n2"])


async def test_what_cannot_be_told_is_said_and_what_is_known_stays(
    cluster: InCluster, dashboard: MemberDashboard
) -> None:
    cluster.error = TimedOut("no answer")
    await dashboard.refresh()
    assert state(dashboard)["problems"] == ["There is nothing to show: no answer"]
    cluster.error = None
    await dashboard.refresh()
    cluster.error = TimedOut("no answer")
    await dashboard.refresh()
    shown = state(dashboard)
    assert shown["problems"] == ["The page is not up to date: no answer"]
    assert len(shown["nodes"]) == 2


async def test_questions_of_the_page_are_those_of_the_commands(
    cluster: InCluster, dashboard: MemberDashboard
) -> None:
    await dashboard.explain_pod(TEAM, "waits")
    about = {"units": "8", "cards": "2", "gang": "4", "containers": "apart", "mixed-models": "1"}
    await dashboard.count_fit({**about, "namespace": OTHER, "path": "/", "timeout_s": "9"})
    assert cluster.asked == [("why", {"pod": "waits"}), ("fit", about)]
    with pytest.raises(InputError, match='namespace "team-b"; allowed: "team-a"'):
        await dashboard.explain_pod(OTHER, "theirs-1")


def test_all_that_a_question_about_room_may_say_is_passed_on() -> None:
    asked: set[str] = set()

    class Query(dict[str, str]):
        def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
            asked.add(name)
            return super().get(name, default)

    read_fit_question(Query(units="8", compute="30", gang="4"))
    assert asked == set(FIT_PARAMETERS)


async def test_a_page_names_the_pods_for_whose_reasons_there_is_no_time() -> None:
    cluster = InCluster(*(Pod(f"p{at}", 30 + at, namespace=TEAM) for at in range(6)))
    looks = itertools.count()
    cluster.budget = WorkBudget(3.0, lambda: float(next(looks)))
    page = await cluster.page()
    assert [bool(pod.text) for pod in page.pending] == [True, True, True, False, False, False]
