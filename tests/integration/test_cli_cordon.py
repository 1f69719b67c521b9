"""`gpupack cordon` and `uncordon` on the API server stand-in: what is written, and what is said."""

import asyncio
import json

import pytest
from aiohttp import web
from click.testing import CliRunner

from allocator.names import NODE_CARDS, NODE_CORDON, NODE_CORDON_REASONS, NODE_HOLDS
from allocator.records import CardRecord, Holds, dump_cards, dump_holds
from gpupack.cli.app import cli, main
from gpupack.cordon import CordonOutcome, CordonRequest, decide_change
from gpupack.errors import InputError
from standins.apiserver.server import ApiServer
from tests.cluster_builders import node_object

CARDS = [CardRecord(uuid, index, "L40S", 45056, 0, True) for index, uuid in enumerate(("GPU-aa1", "GPU-ab2"))]
THERE = "allowed: an index, a UUID or its beginning, of 0 GPU-aa1, 1 GPU-ab2"

BOTH = """node/n1 card 1 GPU-ab2 cordoned; 1 pod there runs on
node/n1 card 0 GPU-aa1 cordoned; 2 pods there run on
"""
BARE = (
    "node bare has no annotation gpupack.io/cards: no gpupack node daemon has run there, and only that knows "
    "the cards"
)


@pytest.fixture
async def api():
    async with ApiServer(seed=7) as api:
        holds = dump_holds(Holds(1, frozenset(["u1", "u2"]), {"u1": {0: 4}, "u2": {0: 2, 1: 2}}))
        words = node_object("n1", (44, 44))["status"]["capacity"]
        api.add_node("n1", {}, words, {NODE_CARDS: dump_cards(CARDS), NODE_HOLDS: holds})
        api.add_node("bare", {})
        yield api


@pytest.fixture
def run(api, tmp_path):
    """Run a command beside the API server; returns its exit status, stdout and stderr."""
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")

    async def command(*arguments):
        line = [*arguments, f"--kubeconfig={kubeconfig}"]
        done = await asyncio.to_thread(CliRunner().invoke, cli, line)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.stdout, done.stderr

    return command


def cordon_of(api):
    return api.node("n1")["metadata"]["annotations"].get(NODE_CORDON)


async def test_cards_are_cordoned_and_given_back(api, run):
    assert await run("cordon", "n1", "1", "GPU-aa", "--reason", "ticket 4711") == (
        0,
        BOTH,
        "",
    )
    assert cordon_of(api) == "GPU-aa1,GPU-ab2"
    _, wide, _ = await run("top", "n1", "-o", "wide")
    assert [line.endswith("cordoned: ticket 4711") for line in wide.splitlines()[1:3]] == [True, True]
    _, table, _ = await run("top", "n1", "-o", "json")
    assert [card["cordon_reason"] for card in json.loads(table)[0]["cards"]] == ["ticket 4711"] * 2
    assert await run("uncordon", "n1", "GPU-aa1") == (0, "node/n1 card 0 GPU-aa1 uncordoned\n", "")
    assert cordon_of(api) == "GPU-ab2"
    assert json.loads(api.node("n1")["metadata"]["annotations"][NODE_CORDON_REASONS]) == {
        "GPU-ab2": "ticket 4711"
    }
    assert (await run("uncordon", "n1", "--all"))[1] == "node/n1 card 1 GPU-ab2 uncordoned\n"
    assert not {NODE_CORDON, NODE_CORDON_REASONS} & api.node("n1")["metadata"]["annotations"].keys()


async def test_what_is_so_already_is_not_written_again(api, run):
    await run("cordon", "n1", "--all")
    before = api.node("n1")
    assert (await run("cordon", "n1", "0", "0"))[
        1
    ] == "node/n1 card 0 GPU-aa1 already cordoned; 2 pods there run on\n"
    assert api.node("n1") == before
    await run("uncordon", "n1", "--all")
    before = api.node("n1")
    assert await run("uncordon", "n1", "1") == (0, "node/n1 card 1 GPU-ab2 already uncordoned\n", "")
    assert (await run("uncordon", "n1", "--all"))[1] == "node/n1: no card is cordoned\n"
    assert api.node("n1") == before


async def test_a_dry_run_says_it_and_changes_nothing(api, run):
    before = api.node("n1")
    status, said, _ = await run("cordon", "n1", "0", "--dry-run")
    assert (status, said) == (0, "node/n1 card 0 GPU-aa1 cordoned; 2 pods there run on (dry run)\n")
    assert api.node("n1") == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("n1", "2"), f'"2" is no card of node n1; {THERE}'),
        (("n1", "GPU-a"), f'"GPU-a" is the name of 2 cards of node n1; {THERE}'),
        (
            ("n1", "GPU-x", "9999999999"),
            f'"GPU-x" is no card of node n1; "9999999999" is no card of node n1; {THERE}',
        ),
        (("n1", ""), f'"" is no card of node n1; {THERE}'),
        (("no", "0"), 'no node has the name "no"'),
        (("", "0"), 'no node has the name ""'),
        (("bare", "0"), BARE),
        (("n1", "0", "--reason", "a\nb"), '--reason "a\\nb"; allowed: at most 256 characters on one line'),
    ],
)
async def test_what_cannot_be_meant_changes_nothing(api, run, arguments, said):
    before = api.node("n1")
    assert await run("cordon", *arguments) == (2, "", f"gpupack: {said}\n")
    assert api.node("n1") == before


@pytest.mark.parametrize("arguments", [("n1",), ("n1", "0", "--all")])
async def test_cards_or_all_of_them_have_to_be_named(monkeypatch, capsys, arguments):
    monkeypatch.setattr("sys.argv", ["gpupack", "cordon", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "allowed: one of the two" in capsys.readouterr().err


async def test_without_the_right_the_api_servers_words_are_shown(api, run):
    async def intercept(request):
        if request.method != "PATCH":
            return None
        said = 'nodes "n1" is forbidden: User "anna" cannot patch resource "nodes"'
        return web.json_response(
            {"kind": "Status", "code": 403, "reason": "Forbidden", "message": said}, status=403
        )

    api.http.intercept = intercept
    status, out, err = await run("cordon", "n1", "0")
    assert (status, out) == (1, "")
    assert 'User "anna" cannot patch resource "nodes"' in err
    assert cordon_of(api) is None


@pytest.mark.parametrize("answer", ["<html>", "[" * 100_000])
async def test_an_answer_that_is_no_node_is_one_line(api, run, answer):
    async def intercept(request):
        return web.Response(text=answer) if request.path.endswith("/nodes/n1") else None

    api.http.intercept = intercept
    status, out, err = await run("cordon", "n1", "0")
    assert (status, out) == (1, "")
    assert "a Node that cannot be read" in err


async def test_two_people_at_once_lose_nothing(api, run):
    """The other one cordons between our read and our write."""
    others = ["GPU-ab2"]

    async def intercept(request):
        if request.method == "PATCH" and others:
            api.patch_node("n1", {"metadata": {"annotations": {NODE_CORDON: others.pop()}}})

    api.http.intercept = intercept
    assert (await run("cordon", "n1", "0"))[0] == 0
    assert (cordon_of(api), others) == ("GPU-aa1,GPU-ab2", [])


NOTES = {NODE_CARDS: dump_cards(CARDS)}


def test_a_card_that_is_gone_can_be_given_back_and_not_cordoned():
    notes = {**NOTES, NODE_CORDON: "GPU-gone,GPU-aa1"}
    wanted = decide_change("n1", notes, CordonRequest(cordon=False, cards=("GPU-g",)))
    assert wanted.annotations == {NODE_CORDON: "GPU-aa1"}
    assert [(each.uuid, each.index) for each in wanted.outcomes] == [("GPU-gone", None)]
    with pytest.raises(InputError, match="no card of node n1"):
        decide_change("n1", notes, CordonRequest(cordon=True, cards=("GPU-g",)))


def test_a_cordon_that_cannot_be_read_is_only_taken_away_as_a_whole():
    notes = {**NOTES, NODE_CORDON: "no:uuid", NODE_CORDON_REASONS: "soup"}
    for wish in (CordonRequest(True, ("0",)), CordonRequest(True), CordonRequest(False, ("0",))):
        with pytest.raises(InputError, match=r'gpupack\.io/cordon holds "no:uuid"'):
            decide_change("n1", notes, wish)
    assert decide_change("n1", notes, CordonRequest(False)).annotations == {
        NODE_CORDON: None,
        NODE_CORDON_REASONS: None,
    }


def test_an_index_that_several_instances_share_is_no_name():
    cards = [CardRecord(uuid, 0, "MIG 1g.10gb", 9728, 0, True) for uuid in ("MIG-a", "MIG-b")]
    with pytest.raises(InputError, match='"0" is the name of 2 cards'):
        decide_change("n1", {NODE_CARDS: dump_cards(cards)}, CordonRequest(True, ("0",)))


def test_a_number_is_never_the_beginning_of_a_uuid():
    cards = [CardRecord("1f00-a", 0, "", 9728, 0, True)]
    with pytest.raises(InputError, match=r'"1" is no card of node n1; allowed: .* of 0 1f00-a$'):
        decide_change("n1", {NODE_CARDS: dump_cards(cards)}, CordonRequest(True, ("1",)))


INSTANCES = [
    CardRecord(uuid, 0, "MIG 1g.10gb", 9728, 0, True, parent="GPU-x1") for uuid in ("MIG-a", "MIG-b")
]


def test_a_whole_card_is_cordoned_with_its_instances():
    holds = dump_holds(Holds(1, frozenset(["u1"]), {"u1": {0: 4, 1: 2}}))
    notes = {NODE_CARDS: dump_cards(INSTANCES), NODE_HOLDS: holds}
    wanted = decide_change("n1", notes, CordonRequest(True, ("GPU-x",)))
    assert wanted.annotations == {NODE_CORDON: "GPU-x1"}
    assert wanted.outcomes == (CordonOutcome("GPU-x1", None, True, pods=1),)


async def test_an_instance_is_not_given_back_without_its_card(api, run):
    annotations = {NODE_CARDS: dump_cards(INSTANCES), NODE_CORDON: "GPU-x1"}
    api.patch_node("n1", {"metadata": {"annotations": annotations}})
    said = "node/n1 card 0 MIG-a already uncordoned; it stays cordoned with its card GPU-x1\n"
    assert await run("uncordon", "n1", "MIG-a") == (0, said, "")
    said = "node/n1 card GPU-x1 uncordoned\nnode/n1 card 0 MIG-a already uncordoned\n"
    assert await run("uncordon", "n1", "GPU-x1", "MIG-a") == (0, said, "")
