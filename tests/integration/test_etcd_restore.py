"""The extender and an API server whose etcd is restored from an older state: it begins anew by itself."""

import json
from pathlib import Path

from allocator.names import POD_ASSIGNED
from standins.apiserver.server import ApiServer
from tests.extender_client import extender
from tests.waiting import until


async def test_it_binds_again_and_gives_nothing_twice(tmp_path: Path) -> None:
    async with ApiServer(seed=1) as api, extender(tmp_path, api) as client:
        client.make_node("n", (16, 16), seen=1)
        backup = api.store.backup()
        await until(client.ready)
        first = client.make_pod("first", 12)
        await client.knows(first["metadata"]["uid"])
        assert await client.bind(first, "n") == ""
        ((card, _),) = json.loads(api.pod("default", "first")["metadata"]["annotations"][POD_ASSIGNED])[
            "main"
        ]
        for number in range(50):
            api.patch_node("n", {"metadata": {"annotations": {"beat": str(number)}}})

        async def all_is_seen() -> bool:
            bound = [pod.uid for pod in client.state.pods.values() if pod.node]
            newest = int(api.node("n")["metadata"]["resourceVersion"])
            return bool(bound) and client.state.node_records["n"].version == newest

        await until(all_is_seen)
        await api.restored(backup)
        await until(
            lambda: not client.state.pods and client.state.node_records["n"].version <= backup.version
        )
        second = client.make_pod("second", 12)
        await client.knows(second["metadata"]["uid"])
        # The node may still run the pod that nobody knows any more.
        assert client.state.node_records["n"].tombstones.keys() == {first["metadata"]["uid"]}
        assert (await client.filter(second, "n"))["NodeNames"] == ["n"]
        lists = api.http.requests["GET", "pods", ""]
        assert await client.bind(second, "n") == ""
        assert api.http.requests["GET", "pods", ""] > lists, "bound without a fence and a fresh list"
        annotations = api.pod("default", "second")["metadata"]["annotations"]
        assert json.loads(annotations[POD_ASSIGNED])["main"][0][0] != card
