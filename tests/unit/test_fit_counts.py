"""Whether cards could ever hold pods that ask for different things at once."""

import pytest

from allocator.request import ContainerRequest, PodRequest
from scheduler_plugin.cache.amounts import ONE_POD
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.fit_counts import MOST_SEARCHED, can_ever_hold_all

MANY = MOST_SEARCHED + 1


def could(sizes, *kinds):
    """Kinds are units of each container, how many pods, and whether the units are percent."""
    nodes = NodeArrays()
    for number, some in enumerate(sizes):
        nodes.set_cards(nodes.add_node(f"n{number}"), some, some)
    asked = []
    for units, pods, percent in kinds:
        containers = tuple(ContainerRequest(f"c{at}", each, "main") for at, each in enumerate(units))
        query = ClusterPolicies().make_request(nodes, PodRequest(containers, percent=percent), ONE_POD)
        asked.append((query, pods))
    return can_ever_hold_all(nodes, asked)


@pytest.mark.parametrize(
    ("sizes", "kinds", "expected"),
    [
        ([(39, 39)], [((30,), 2, False), ((9,), 2, False)], True),
        ([(39, 39)], [((30,), 2, False), ((9,), 1, False), ((10,), 1, False)], False),
        ([(39, 39)], [((30,), 2, False), ((15,), 1, False)], False),
        ([(39,), (39,)], [((30, 9), 1, False), ((30, 8), 1, False)], True),
        ([(80,), (40,)], [((100,), 1, True), ((40,), 1, False)], True),
        ([(80,), (40,)], [((100,), 1, True), ((50,), 1, False), ((40,), 1, False)], False),
        ([(4,)] * MANY, [((3,), MANY, False), ((2,), 1, False)], True),
        ([(4,)] * MANY, [((4,), MANY, False), ((1,), 1, False)], False),
        ([], [((1,), 1, False), ((50,), 1, True)], False),
    ],
    ids=[
        "to-the-last-unit", "sum", "no-way", "containers", "percent", "percent-not", "many-not-searched",
        "many-by-sum", "no-cards",
    ],
)  # fmt: skip
def test_only_what_no_cards_can_hold_never_fits(sizes, kinds, expected):
    assert could(sizes, *kinds) is expected
