"""The dashboard started before the daemons: it takes the unit up that nodes publish, then and later."""

import msgspec
import pytest

from allocator.names import resource_name
from gpupack.dashboard import advice
from gpupack.dashboard.board import ClusterBoard
from kubeapi.objects import Node, Pod
from tests.cluster_builders import node_object, pod_object


def node(name, unit_mib=None, version=1):
    """A node with two cards of 64 GiB; None: no daemon has published them yet."""
    sizes = None if unit_mib is None else [65536 // unit_mib] * 2
    made = node_object(
        name,
        sizes,
        unit_mib=unit_mib or 1024,
        version=version,
        allocatable_units=sum(sizes) if sizes else None,
    )
    return msgspec.convert(made, Node)


def waiting(unit_mib, units):
    amounts = {resource_name(unit_mib): str(units)}
    containers = [{"name": "main", "image": "x", "resources": {"limits": amounts, "requests": amounts}}]
    return msgspec.convert(pod_object("p", containers=containers), Pod)


def board_of(*nodes, pods=()):
    board = ClusterBoard()
    board.replace_nodes(nodes)
    board.replace_pods(pods)
    board.get_cluster()  # from now on it is kept current
    return board


def text(board):
    cluster = board.get_cluster()
    (one,) = advice.explain_pods(cluster, advice.list_waiting_pods(cluster), board.find_queued)
    return one.text


def largest(board):
    """GiB of the largest pod that fits."""
    found = [each for each in advice.count_fit_of_sizes(board.get_cluster()) if each.largest]
    return found[0].units * found[0].unit / 1024 if found else None


def test_the_unit_is_taken_up_when_the_first_daemon_publishes_it():
    board = board_of(node("a"), node("b"), pods=[waiting(512, 100)])
    assert largest(board) is None
    board.put_node(node("a", 512, version=2))
    assert board.get_cluster().unit_mib == 512
    assert largest(board) == 64
    assert "node a would take it now" in text(board)


def test_a_list_brings_it_too():
    board = board_of(node("a"))
    board.replace_nodes([node("a", 256, version=2)])
    assert board.get_cluster().unit_mib == 256


def test_the_unit_changes_once_most_nodes_have_another():
    board = board_of(*(node(name, 1024) for name in "abc"), pods=[waiting(512, 100)])
    board.put_node(node("a", 512, version=2))
    assert board.get_cluster().unit_mib == 1024
    board.put_node(node("b", 512, version=3))
    assert board.get_cluster().unit_mib == 512
    assert "would take it now" in text(board)
    board.drop_node(node("a", 512, version=4))
    assert board.get_cluster().unit_mib == 1024  # one of each: GiB


def test_a_node_that_ends_takes_its_unit_along():
    board = board_of(node("a", 1024), node("b", 512))
    board.drop_node(node("a", 1024, version=2))
    assert board.get_cluster().unit_mib == 512
    assert largest(board) == 64


@pytest.mark.parametrize("end", ["drops", "is silent"])
def test_where_nobody_publishes_any_more_the_last_unit_stays(end):
    board = board_of(node("a", 512))
    board.get_cluster()
    if end == "drops":
        board.drop_node(node("a", 512, version=2))
    else:
        board.put_node(node("a", version=2))
    assert board.get_cluster().unit_mib == 512
    board.put_node(node("b", 256, version=3))
    assert board.get_cluster().unit_mib == 256


def test_nothing_is_built_anew_while_the_unit_stays():
    board = board_of(node("a", 1024), node("b"))
    cluster = board.get_cluster()
    board.put_node(node("b", 1024, version=2))
    board.put_node(node("a", 1024, version=3))
    assert board.get_cluster() is cluster


def test_a_cluster_that_is_asked_about_elsewhere_takes_changes_when_it_is_asked_next():
    board = board_of(node("a", 1024))
    cluster = board.prepare_cluster()()
    second = board.prepare_cluster()
    board.put_node(node("b", 1024, version=2))
    third = board.prepare_cluster()
    board.drop_node(node("a", 1024, version=3))
    assert cluster.nodes.keys() == {"a"}
    assert second() is cluster
    assert cluster.nodes.keys() == {"a"}
    assert third() is cluster
    assert cluster.nodes.keys() == {"a", "b"}
    assert board.get_cluster() is cluster
    assert cluster.nodes.keys() == {"b"}


def test_while_nobody_asks_changes_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("gpupack.whatif.live_cluster.MOST_CHANGES", 3)
    board = board_of(node("a", 1024))
    cluster = board.get_cluster()
    for version in range(2, 5):
        board.put_node(node("a", 1024, version=version))
    assert board.get_cluster() is cluster
    for version in range(5, 9):
        board.put_node(node("b", 1024, version=version))
    anew = board.get_cluster()
    assert anew is not cluster
    assert anew.nodes.keys() == {"a", "b"}


def test_a_change_that_fails_takes_no_later_one_with_it():
    """What came with it was lost until a list was read again, and every answer was without."""
    board = board_of(node("n", 1024))
    odd, plain = waiting(1024, 1), waiting(1024, 2)
    plain.metadata.name = plain.metadata.uid = "plain"
    board.put_pod(msgspec.structs.replace(odd, spec=msgspec.structs.replace(odd.spec, containers=5)))
    board.put_pod(plain)
    with pytest.raises(TypeError):
        board.get_cluster()
    board.drop_pod(odd)
    assert list(board.get_cluster().pods) == ["plain"]
