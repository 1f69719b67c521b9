"""As shipped, with no policy named anywhere, small pods leave whole cards for large ones."""

import pytest

from allocator.packing import read_node
from gpupack.demo.pods import NODES, PODS
from gpupack.embedded import EmbeddedCluster, wait_until


def used(cluster):
    """Units used of every card, by node, as the packed words say."""
    return {name: read_node(cluster.api.node(name)["status"]["allocatable"]).used for name in cluster.nodes}


async def run(cluster, name, node=None, **shape):
    """Create a pod and see it run: on a node that somebody else chose, or placed by the extender."""
    manifest = cluster.make_pod_manifest(name, **shape)
    if node is not None:
        manifest["spec"]["nodeName"] = node
    pod = cluster.create(manifest)
    if node is None:
        await cluster.schedule(pod)
    await wait_until(
        lambda: cluster.api.pod("default", name)["status"].get("phase") == "Running", f"{name} runs"
    )


@pytest.mark.parametrize("node", [None, "n"], ids=["the extender chooses", "the node chooses"])
async def test_eight_pods_of_4_gib_on_four_l40s_leave_room_for_one_of_44(node):
    async with EmbeddedCluster({"n": "4xl40s"}) as cluster:
        for number in range(8):
            await run(cluster, f"small-{number}", node, units=[4])
        await wait_until(lambda: sorted(used(cluster)["n"]) == [0, 0, 0, 32], "one card carries all eight")
        for number in range(3):
            await run(cluster, f"large-{number}", node, units=[44])
        await wait_until(
            lambda: sorted(used(cluster)["n"]) == [32, 44, 44, 44], "three whole cards are taken"
        )


async def test_the_demo_leaves_as_many_cards_whole_as_packing_does():
    whole = {}
    for policies in ({}, {"node_policy": "least-requested", "card_policy": "most-used"}):
        async with EmbeddedCluster(NODES, **policies) as cluster:
            for number, shape in enumerate(PODS):
                await run(cluster, f"pod-{number}", **shape)
            await wait_until(lambda c=cluster: not c.state.nodes.assumed.any(), "nothing is assumed")
            whole[not policies] = sum(amount == 0 for amounts in used(cluster).values() for amount in amounts)
    assert whole[True] >= whole[False] > 0
