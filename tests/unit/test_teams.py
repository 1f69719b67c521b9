"""Members of namespaces: what they are told of others, who is let through, and how often."""

import asyncio
import base64
import json
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request

from allocator.names import resource_name
from gpupack.diagnose.listing import PodList
from gpupack.errors import InputError
from gpupack.teams import AUDIENCE, DENIED, MEMBER, TOKEN_HEADER
from gpupack.teams.answers import (
    HIDDEN,
    MOST_PODS,
    count_fit_for_member,
    explain_own_pod,
    hide_names,
    list_own_pods,
)
from gpupack.teams.handlers import NAMESPACE_BURST, MemberHandlers, read_fit_question
from gpupack.teams.reviews import NAMESPACE_BURST as REVIEW_BURST
from gpupack.teams.reviews import REMEMBERED_S, TOTAL_BURST, MemberReviewer, TooManyReviewsError
from gpupack.whatif import Cluster, FitQuestion
from gpupack.whatif.cluster import UnitCounter
from gpupack.whatif.questions import MOST_WAITING, Questions, WorkBudget
from gpupack.whatif.rendering import format_why
from kubeapi.errors import Unreachable
from tests.api_requests import ApiRequests
from tests.ask_world import Node, Pod
from tests.clock import Clock

NOW = 1_767_225_600.0
TEAM, OTHER = "team-a", "team-b"
SECRET = "secret"


def cluster_of(nodes: tuple[Node, ...], *pods: Pod, also: tuple[dict, ...] = ()) -> Cluster:
    items = [*(node.object(pods) for node in nodes), *(pod.object() for pod in pods), *also]
    return Cluster.from_json(json.dumps({"kind": "List", "items": items}))


def test_neighbours_of_others_are_one_sum() -> None:
    cluster = cluster_of(
        (Node("n1", (16,)),),
        Pod("mine", 4, "n1", (0,), namespace=TEAM),
        Pod("also", 2, "n1", (0,), namespace=TEAM),
        Pod(f"{SECRET}-1", 3, "n1", (0,), namespace=OTHER),
        Pod(f"{SECRET}-2", 5, "n1", (0,), namespace="team-c"),
    )
    (card,) = explain_own_pod(cluster, TEAM, "mine", None).cards
    assert [(each.namespace, each.pod, each.units) for each in card.neighbours] == [
        (TEAM, "also", 2),
        ("", "2 pods of other namespaces", 8),
    ]
    text = format_why(explain_own_pod(cluster, TEAM, "mine", None))
    assert "    beside 2 pods of other namespaces: 8 GiB" in text
    assert SECRET not in text


def test_ways_out_name_own_pods_only() -> None:
    nodes = (Node("n1", (16,)), Node("n2", (16,)))
    mine = Pod("mine", 12, "n1", (0,), namespace=TEAM)
    theirs = Pod(f"{SECRET}-1", 12, "n2", (0,), namespace=OTHER)
    waits = Pod("waits", 14, namespace=TEAM)
    own = explain_own_pod(cluster_of(nodes, mine, theirs, waits), TEAM, "waits", None)
    ends = [pod.pod for way in own.ways_out if way.kind == "pods-end" for pod in way.pods]
    assert ends == ["mine"]
    alone = cluster_of(nodes[1:], theirs, waits)
    answer = explain_own_pod(alone, TEAM, "waits", None)
    assert [way.kind for way in answer.ways_out] == ["smaller-request"]
    assert SECRET not in msgspec.json.encode(answer).decode()


def test_notes_name_no_pod_of_another_namespace() -> None:
    """Cards that are kept for a pod, and placeholders, are told by name to those who may list all pods."""
    kept = Pod(f"{SECRET}-kept", 8, namespace=OTHER).object()
    kept["status"]["nominatedNodeName"] = "n1"
    cluster = cluster_of((Node("n1", (16,)),), Pod("waits", 20, namespace=TEAM), also=(kept,))
    said = f"cards that are kept for pods for which others are evicted count as free here: {HIDDEN} on n1"
    assert explain_own_pod(cluster, TEAM, "waits", None).notes == (said,)
    assert count_fit_for_member(cluster, TEAM, FitQuestion(8)).notes == (said,)


def test_a_pod_elsewhere_is_as_one_that_is_not() -> None:
    cluster = cluster_of((Node("n1", (16,)),), Pod(f"{SECRET}-1", 4, namespace=OTHER))
    for name in (f"{SECRET}-1", f"{SECRET}-2"):
        with pytest.raises(InputError) as error:
            explain_own_pod(cluster, TEAM, name, None)
        assert str(error.value) == f'no pod "{name}" in namespace "{TEAM}"'


def test_a_list_reads_the_cluster_once_for_each_other_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it takes long on a large cluster, and the page waits meanwhile."""
    others = []
    for at in range(5):
        made = Pod(f"p{at}", 4 + at, namespace=TEAM).object()
        name = resource_name(512 if at else 256)
        made["spec"]["containers"][0]["resources"] = {"limits": {name: str(4 + at)}}
        others.append(made)
    cluster = cluster_of((Node("n1", (16,)),), also=tuple(others))
    units: list[int] = []
    read = Cluster.__post_init__

    def count(view: Cluster) -> None:
        units.append(view.unit_mib)
        read(view)

    monkeypatch.setattr(Cluster, "__post_init__", count)
    monkeypatch.setattr(UnitCounter, "units", frozenset({256, 512}))
    assert len(list_own_pods(cluster, TEAM, "rs/app", NOW, None).pods) == 5
    assert sorted(units) == [256, 512]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"pod/{OTHER}/{SECRET}", f"pod/{HIDDEN}"),
        (f"Pod/{OTHER}/{SECRET}", f"Pod/{HIDDEN}"),
        (f"{OTHER}/{SECRET}/main", HIDDEN),
        (f"{TEAM}/{OTHER}/{SECRET}", f"{TEAM}/{HIDDEN}"),
        (f"{TEAM}/{OTHER}", f"{TEAM}/{OTHER}"),
        (f"nvidia.com/gpu x.{OTHER}/gpu", f"nvidia.com/gpu x.{OTHER}/gpu"),
    ],
)
def test_a_foreign_pods_name_is_found_behind_other_words(text: str, expected: str) -> None:
    cluster = cluster_of((Node("n1", (16,)),), Pod(f"{SECRET}-1", 4, namespace=OTHER))
    answer = hide_names(PodList((), of=text), cluster, TEAM)
    assert answer.of == expected


def test_lists_have_own_pods_only_and_an_end() -> None:
    many = [Pod(f"p{at:03}", 4, namespace=TEAM) for at in range(MOST_PODS + 3)]
    cluster = cluster_of((Node("n1", (16,)),), *many, Pod(f"{SECRET}-1", 4, namespace=OTHER))
    found = list_own_pods(cluster, TEAM, "", NOW, None)
    assert (len(found.pods), found.more) == (MOST_PODS, 3)
    assert {line.namespace for line in found.pods} == {TEAM}
    assert len(list_own_pods(cluster, TEAM, "rs/app", NOW, None).pods) == MOST_PODS
    with pytest.raises(InputError, match="allowed: KIND/NAME"):
        list_own_pods(cluster, TEAM, "web", NOW, None)


def test_fit_counts_room_beside_others() -> None:
    cluster = cluster_of((Node("n1", (16,)),), Pod(f"{SECRET}-1", 6, "n1", (0,), namespace=OTHER))
    answer = count_fit_for_member(cluster, TEAM, FitQuestion(5))
    assert (answer.pods, answer.largest_units) == (2, 10)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"units": "8"}, FitQuestion(8)),
        (
            {"units": "40,80", "cards": "2", "percent": "1", "model": "*A100*", "mixed-models": "1"},
            FitQuestion(40, 2, "*A100*", True, (80,), True),
        ),
        ({"units": "8", "percent": "0", "containers": "apart"}, FitQuestion(8, containers="apart")),
        ({"units": "8", "gang": "4"}, FitQuestion(8, gang=4)),
    ],
)
def test_a_question_is_read(query: dict, expected: FitQuestion) -> None:
    assert read_fit_question(query) == expected


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"units": "0"},
        {"units": "x"},
        {"units": "8,"},
        {"units": ",".join("1" * 17)},
        {"units": "8", "cards": "65"},
        {"units": "8", "gang": "0"},
    ],
)
def test_what_is_no_question_is_refused(query: dict) -> None:
    with pytest.raises(InputError, match="allowed: "):
        read_fit_question(query)


class ReviewApi(ApiRequests):
    """The reviews of an API server: who is known, and where they may list pods."""

    def __init__(self) -> None:
        super().__init__()
        self.audiences = [AUDIENCE]

    def answer(self, verb: str, path: str, body: Any) -> Any:
        if path.endswith("tokenreviews"):
            known = body["spec"]["token"].startswith("good") and AUDIENCE in body["spec"]["audiences"]
            user = {"username": "alice", "groups": ["team-a"], "uid": "u1", "extra": {"k": ["v"]}}
            status = {"authenticated": known, "audiences": self.audiences, "user": user} if known else {}
        else:
            attributes = body["spec"]["resourceAttributes"]
            assert attributes == {"namespace": attributes["namespace"], "verb": "list", "resource": "pods"}
            assert body["spec"]["user"] == "alice"
            assert body["spec"]["groups"] == ["team-a"]
            assert body["spec"]["extra"] == {"k": ["v"]}
            status = {"allowed": attributes["namespace"] == TEAM}
        return {"status": status}


def make_token(text: str, namespace: str = TEAM, **claims: object) -> str:
    """Make a token in the form of a ServiceAccount's; `ReviewApi` knows those that begin with "good"."""
    said = {"aud": [AUDIENCE], "sub": f"system:serviceaccount:{namespace}:{MEMBER}"} | claims
    body = base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")
    return f"{text}.{body}.signature"


GOOD, BAD = make_token("good"), make_token("bad")


@pytest.fixture
def api() -> ReviewApi:
    return ReviewApi()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reviewer(api: ReviewApi, clock: Clock) -> MemberReviewer:
    return MemberReviewer(api, clock)


async def test_both_reviews_say_yes_or_it_is_no(reviewer: MemberReviewer, api: ReviewApi) -> None:
    assert await reviewer.is_member(GOOD, TEAM)
    assert not await reviewer.is_member(make_token("good", OTHER), OTHER)
    assert not await reviewer.is_member(BAD, TEAM)
    assert api.bodies[0]["spec"]["audiences"] == [AUDIENCE]


async def test_an_authenticator_without_audiences_is_not_believed(
    reviewer: MemberReviewer, api: ReviewApi
) -> None:
    api.audiences = []
    assert not await reviewer.is_member(GOOD, TEAM)


async def test_a_right_that_was_taken_away_ends(
    reviewer: MemberReviewer, api: ReviewApi, clock: Clock
) -> None:
    assert await reviewer.is_member(GOOD, TEAM)
    asked = len(api.asked)
    assert await reviewer.is_member(GOOD, TEAM)
    assert len(api.asked) == asked
    api.audiences = []
    clock.now += REMEMBERED_S
    assert not await reviewer.is_member(GOOD, TEAM)


async def test_who_has_no_token_cannot_keep_the_api_server_busy(
    reviewer: MemberReviewer, api: ReviewApi, clock: Clock
) -> None:
    assert await reviewer.is_member(GOOD, TEAM)
    for at in range(REVIEW_BURST - 1):
        assert not await reviewer.is_member(make_token(f"bad-{at}"), TEAM)
    asked = len(api.asked)
    with pytest.raises(TooManyReviewsError):
        await reviewer.is_member(BAD, TEAM)
    assert len(api.asked) == asked
    assert await reviewer.is_member(GOOD, TEAM)  # a member who is known is answered all the same
    clock.now += 1.0
    assert not await reviewer.is_member(BAD, TEAM)


async def test_tokens_for_one_namespace_keep_no_member_of_another_out(
    reviewer: MemberReviewer, api: ReviewApi
) -> None:
    for at in range(REVIEW_BURST):
        assert not await reviewer.is_member(make_token(f"bad-{at}", OTHER), OTHER)
    with pytest.raises(TooManyReviewsError):
        await reviewer.is_member(make_token("bad", OTHER), OTHER)
    assert await reviewer.is_member(GOOD, TEAM)


async def test_many_namespaces_together_are_not_reviewed_without_end(
    reviewer: MemberReviewer, api: ReviewApi
) -> None:
    for at in range(TOTAL_BURST):
        assert not await reviewer.is_member(make_token("bad", f"n{at}"), f"n{at}")
    asked = len(api.asked)
    with pytest.raises(TooManyReviewsError):
        await reviewer.is_member(GOOD, TEAM)
    assert len(api.asked) == asked


@pytest.mark.parametrize(
    "token",
    [
        "junk",
        "a.b.c",
        "good.\udcff.signature",
        f"{GOOD}\udcff",
        "good.bnVsbA.signature",
        make_token("good", OTHER),
        make_token("good", aud=["https://kubernetes.default.svc"]),
        make_token("good", aud=7),
        make_token("good", sub=f"system:serviceaccount:{TEAM}:default"),
        make_token("good", sub=None),
    ],
)
async def test_a_token_that_names_somebody_else_is_refused_before_it_counts(
    reviewer: MemberReviewer, api: ReviewApi, token: str
) -> None:
    for _ in range(TOTAL_BURST + 1):
        assert not await reviewer.is_member(token, TEAM)
    assert not api.asked
    assert await reviewer.is_member(GOOD, TEAM)


async def test_an_audience_may_be_one_word(reviewer: MemberReviewer) -> None:
    assert await reviewer.is_member(make_token("good", aud=AUDIENCE), TEAM)


async def test_a_token_is_kept_as_a_digest(reviewer: MemberReviewer) -> None:
    await reviewer.is_member(make_token("good-token"), TEAM)
    assert "good-token" not in repr(vars(reviewer))


def make_handlers(
    reviewer: MemberReviewer, clock: Clock, cluster: Cluster, budget: Callable[[], WorkBudget] = WorkBudget
) -> MemberHandlers:
    questions = Questions(lambda: lambda: cluster)
    return MemberHandlers(
        reviewer,
        questions,
        lambda: True,
        lambda *_: None,
        clock=clock,
        now_s=lambda: NOW,
        make_budget=budget,
    )


@pytest.fixture
def handlers(reviewer: MemberReviewer, clock: Clock) -> MemberHandlers:
    cluster = cluster_of((Node("n1", (16,)),), Pod("mine", 4, namespace=TEAM))
    return make_handlers(reviewer, clock, cluster)


async def ask(handlers: MemberHandlers, path: str, token: str = GOOD) -> tuple[int, dict]:
    request = make_mocked_request("GET", path, headers={TOKEN_HEADER: token} if token else {})
    answer = await handlers.answer(request)
    return answer.status, json.loads(answer.body)


@pytest.mark.parametrize(
    ("path", "token"),
    [
        (f"/why?namespace={TEAM}&pod=mine", ""),
        (f"/why?namespace={TEAM}&pod=mine", BAD),
        (f"/why?namespace={OTHER}&pod=mine", GOOD),
        (f"/why?namespace={OTHER}&pod=mine", make_token("good", OTHER)),
        ("/why?namespace=nowhere", GOOD),
        ("/why?namespace=..%2F", GOOD),
        ("/why?pod=mine", GOOD),
        ("/fit?units=rubbish&namespace=nowhere", GOOD),
    ],
)
async def test_all_who_are_denied_are_told_the_same(handlers: MemberHandlers, path: str, token: str) -> None:
    status, body = await ask(handlers, path, token)
    assert (status, body["message"]) == (403, DENIED)


async def test_a_member_is_answered(handlers: MemberHandlers) -> None:
    status, body = await ask(handlers, f"/why?namespace={TEAM}&pod=mine")
    assert (status, body["state"]) == (200, "fits")
    status, body = await ask(handlers, f"/why?namespace={TEAM}")
    assert [line["pod"] for line in body["pods"]] == ["mine"]
    status, body = await ask(handlers, f"/fit?namespace={TEAM}&units=4")
    assert body["pods"] == 4
    status, body = await ask(handlers, f"/fit?namespace={TEAM}&units=4&model={'x' * 3000}")
    assert (status, body["message"]) == (422, '"model" has 3000 characters; allowed: 2048')
    status, body = await ask(handlers, f"/why?namespace={TEAM}&pod=none")
    assert (status, body["message"]) == (422, f'no pod "none" in namespace "{TEAM}"')


async def test_a_namespace_asks_so_often_and_no_oftener(handlers: MemberHandlers, clock: Clock) -> None:
    path = f"/fit?namespace={TEAM}&units=4"
    assert {(await ask(handlers, path))[0] for _ in range(NAMESPACE_BURST)} == {200}
    assert (await ask(handlers, path))[0] == 429
    clock.now += 1.0
    assert (await ask(handlers, path))[0] == 200


async def test_what_is_wrong_here_is_no_denial(
    handlers: MemberHandlers, api: ReviewApi, reviewer: MemberReviewer
) -> None:
    api.away = Unreachable("nobody answers")
    status, body = await ask(handlers, f"/fit?namespace={TEAM}&units=4")
    assert (status, "API server" in body["message"]) == (503, True)
    api.away = None
    unread = MemberHandlers(reviewer, Questions(lambda: lambda: None), lambda: False, lambda *_: None)
    assert (await ask(unread, f"/fit?namespace={TEAM}&units=4"))[0] == 503


class Processor:
    """Processor time of the thread that answers; each look at it is a while later."""

    def __init__(self, look_s: float) -> None:
        self.look_s = look_s
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.look_s
        return self.now_s


def unlike_pods(count: int) -> list[Pod]:
    return [Pod(f"p{at:03}", 20 + at, namespace=TEAM) for at in range(count)]


async def test_a_question_that_takes_too_much_is_told_to_ask_for_fewer(
    reviewer: MemberReviewer, clock: Clock
) -> None:
    cluster = cluster_of((Node("n1", (16,)),), *unlike_pods(50))
    handlers = make_handlers(reviewer, clock, cluster, lambda: WorkBudget(2.0, Processor(0.125)))
    status, body = await ask(handlers, f"/why?namespace={TEAM}")
    assert (status, body["code"]) == (413, 413)
    assert body["message"] == (
        "too large: after 16 of 50 pods the 2 s of processor time are used up that a question has; "
        "ask for fewer: one pod, or one workload as KIND/NAME"
    )
    # What it took counts as so many questions.
    assert (await ask(handlers, f"/why?namespace={TEAM}&pod=p001"))[0] == 429
    clock.now += 20
    status, body = await ask(handlers, f"/why?namespace={TEAM}&pod=p001")
    assert (status, body["pod"]) == (200, "p001")


async def test_a_list_within_the_budget_is_told_whole(reviewer: MemberReviewer, clock: Clock) -> None:
    cluster = cluster_of((Node("n1", (16,)),), *unlike_pods(50))
    handlers = make_handlers(reviewer, clock, cluster, lambda: WorkBudget(2.0, Processor(0.001)))
    status, body = await ask(handlers, f"/why?namespace={TEAM}")
    assert (status, len(body["pods"])) == (200, 50)


async def test_the_event_loop_goes_on_and_few_wait_while_a_question_is_answered(
    reviewer: MemberReviewer, clock: Clock
) -> None:
    cluster = cluster_of((Node("n1", (16,)),), Pod("mine", 4, namespace=TEAM))
    let_go, begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def find_queued(_namespace: str, _name: str) -> None:
        loop.call_soon_threadsafe(begun.set)
        let_go.wait(60)

    questions = Questions(lambda: lambda: cluster)
    handlers = MemberHandlers(reviewer, questions, lambda: True, find_queued, clock=clock)
    path = f"/why?namespace={TEAM}&pod=mine"
    async with asyncio.timeout(60):
        try:
            first = asyncio.create_task(ask(handlers, path))
            await begun.wait()
            others = [
                asyncio.create_task(questions.ask(lambda found: len(found.pods)))
                for _ in range(MOST_WAITING - 1)
            ]
            await asyncio.sleep(0)
            status, body = await ask(handlers, path)
            assert (status, "too many questions" in body["message"]) == (429, True)
            # An asker that goes away leaves its question in the thread, and the order as it was.
            first.cancel()
        finally:
            let_go.set()
        assert await asyncio.gather(*others) == [1] * (MOST_WAITING - 1)
        assert (await ask(handlers, path))[0] == 200
    questions.close()
