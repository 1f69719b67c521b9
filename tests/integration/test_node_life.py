"""A node's daemon on the stand-ins: pods' whole lives, what they are given and what the Node says."""

import asyncio

import aiohttp
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from allocator.names import NODE_CORDON, STARTUP_TAINT
from tests.integration.node_world import GIB, NODE, card, metrics, node_world
from tests.waiting import until


async def test_a_pods_whole_life():
    async with node_world(8, 8) as world:
        await world.settled([0, 0], set())
        uid = await world.run("a", 3, on=1)
        assert world.env(uid) == {
            "NVIDIA_VISIBLE_DEVICES": card(1),
            "GPUPACK_MEMORY_MIB": "3072",
            "GPUPACK_CARDS": f"{card(1)}:3",
            "SIMULATED_GPU_MEMORY_REQUEST": "0",
            "SIMULATED_GPU_MEMORY_LIMIT": "3072",
        }
        await world.settled([0, 3], {uid})
        await until(lambda: world.allocation("a"))
        assert world.allocation("a") == {
            "uid": uid,
            "containers": {"main": [[card(1), 3]]},
            "memory": {"main": {card(1): {"held": "driver"}}},
        }
        world.api.delete_pod("default", "a")
        await world.settled([0, 0], set())


async def test_a_burst_of_pods_is_told_in_few_patches():
    async with node_world(80, 80) as world:
        await world.settled([0, 0], set())
        before = world.daemon._publisher.patches
        clock = asyncio.get_running_loop().time
        began_s = clock()
        uids = {world.bind(f"p{i}", 2, on=i % 2) for i in range(30)}
        await world.settled([30, 30], uids)
        gaps = (clock() - began_s) / world.settings().publish_gap_s
        assert world.daemon._publisher.patches - before <= gaps + 2


async def test_nothing_is_written_when_nothing_changes():
    async with node_world(8) as world:
        uid = await world.run("a", 3, on=0)
        await world.settled([3], {uid})
        await until(lambda: world.allocation("a"))
        patches = dict(world.api.http.requests)
        await world.daemon._reconciler._once()
        await world.daemon._sampler._once()
        assert {k: n for k, n in world.api.http.requests.items() if k[0] == "PATCH"} == {
            k: n for k, n in patches.items() if k[0] == "PATCH"
        }


async def test_a_cordoned_card_is_full_and_its_pod_runs_on():
    async with node_world(8, 8) as world:
        uid = await world.run("a", 3, on=0)
        await world.settled([3, 0], {uid})
        world.api.patch_node(NODE, {"metadata": {"annotations": {NODE_CORDON: card(0)}}})
        await world.settled([8, 0], {uid})
        other = await world.run("b", 1)
        assert world.env(other)["NVIDIA_VISIBLE_DEVICES"] == card(1)
        world.api.patch_node(NODE, {"metadata": {"annotations": {NODE_CORDON: None}}})
        await world.settled([3, 1], {uid, other})


async def test_a_card_with_all_its_clients_is_full_and_not_counted_as_cordoned():
    async with node_world(8, 8) as world:
        await world.settled([0, 0], set())
        world.daemon.account.set_client_limit({card(0)})
        world.api.patch_node(NODE, {"metadata": {"annotations": {NODE_CORDON: card(1)}}})
        await world.settled([8, 8], set())
        counted = (await metrics(world))["gpupack_card_cordoned"]
        assert counted == {("Test card", card(0)): 0, ("Test card", card(1)): 1}


async def test_a_lost_card_is_full_until_it_is_mended():
    async with node_world(8, 8) as world:
        await world.settled([0, 0], set())
        world.source.fail(card(1), xid=79)
        await world.settled([0, 8], set())
        await until(lambda: world.kubelet.allocatable()[GIB] == 8)
        world.source.heal(card(1))
        await world.settled([0, 0], set())
        await until(lambda: world.kubelet.allocatable()[GIB] == 16)


async def test_foreign_use_is_published():
    async with node_world(8, 8) as world:
        uid = await world.run("a", 3, on=0)
        await world.settled([3, 0], {uid})
        world.source.set_used(card(0), 2 * 1024)
        world.source.set_used(card(1), 4 * 1024)
        await world.daemon._sampler._once()
        assert world.daemon.account is not None
        assert world.daemon.account.ledger.used()[1] == 4
        await until(lambda: world.used is not None and world.used[1] == 4)


async def test_http_tells_probes_prometheus_and_people():
    async with node_world(8) as world, aiohttp.ClientSession() as session:
        uid = await world.run("a", 3, on=0)
        await world.settled([3], {uid})
        base = f"http://127.0.0.1:{world.daemon.http_port}"
        for path in ("/healthz", "/readyz"):
            async with session.get(base + path) as answer:
                assert (answer.status, await answer.text()) == (200, "ok\n")
        async with session.get(f"{base}/metrics") as answer:
            families = {f.name: f for f in text_string_to_metric_families(await answer.text())}
        labels = {"model": "Test card", "uuid": card(0)}
        for name, value in (("size_bytes", 8 * 2**30), ("promised_bytes", 3 * 2**30), ("healthy", 1)):
            assert [(s.labels, s.value) for s in families[f"gpupack_card_{name}"].samples] == [
                (labels, value)
            ]
        requests = families["gpupack_node_kubelet_requests"].samples
        calls = {tuple(sample.labels.values()): sample.value for sample in requests}
        assert calls["OK", "Allocate"] == calls["OK", "GetPreferredAllocation"] == 1
        async with session.get(f"{base}/explain") as answer:
            told = await answer.json()
        assert told["ledger"]["pods"][0]["in_holds"] is True
        allowed = "allowed: GET /healthz, GET /readyz, GET /metrics, GET /explain, GET /telemetry\n"
        async with session.get(f"{base}/nowhere") as answer:
            assert (answer.status, await answer.text()) == (404, f'GET "/nowhere"; {allowed}')
        async with session.post(f"{base}/healthz") as answer:
            assert (answer.status, await answer.text()) == (405, f'POST "/healthz"; {allowed}')
        await world.kubelet.kill()
        await until(lambda: not world.daemon._serving.registrars.is_registered)
        async with session.get(f"{base}/readyz") as answer:
            listening = f"listen on {world.kubelet.device_plugin_dir / 'kubelet.sock'}"
            said = f"not registered with the kubelet, which is to {listening}\n"
            assert (answer.status, await answer.text()) == (503, said)


async def test_cdi_names_are_given_on_request():
    async with node_world(8) as world:
        await world.stop_daemon()
        await world.start_daemon(device_list_strategy=("envvar", "cdi-cri"), cdi_dirs=())
        uid = await world.run("a", 3, on=0)
        assert world.kubelet.containers[uid, "main"].cdi_devices == (f"nvidia.com/gpu={card(0)}",)


OTHER = {"key": "team", "value": "b", "effect": "NoExecute", "timeAdded": "2027-01-15T08:00:00Z"}


async def test_the_startup_taint_goes_once_pods_can_be_served_and_other_taints_stay():
    async with node_world(8, 8) as world:
        await world.stop_daemon()
        startup = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
        world.api.patch_node(NODE, {"spec": {"taints": [startup, OTHER]}})
        await world.start_daemon()
        await until(lambda: world.api.node(NODE)["spec"]["taints"] == [OTHER])
        assert world.words() is not None
        assert world.api.node(NODE)["status"]["allocatable"][GIB] == "16"

        # A node group may give it again, as to a node that was registered anew.
        world.api.patch_node(NODE, {"spec": {"taints": [startup]}})
        await until(lambda: not world.api.node(NODE)["spec"].get("taints"))


async def test_a_daemon_whose_words_do_not_go_through_leaves_the_startup_taint():
    async with node_world(8, 8) as world:
        await world.stop_daemon()
        world.api.patch_node(NODE, {"spec": {"taints": [{"key": STARTUP_TAINT, "effect": "NoSchedule"}]}})
        tried = asyncio.Event()

        async def refuse(request):
            if request.method == "PATCH" and request.path.endswith("/status"):
                tried.set()
                return web.json_response({"kind": "Status", "code": 403, "message": "no"}, status=403)
            return None

        world.api.http.intercept = refuse
        await world.start_daemon()
        await tried.wait()
        await asyncio.sleep(1.5)
        assert [taint["key"] for taint in world.api.node(NODE)["spec"]["taints"]] == [STARTUP_TAINT]
        world.api.http.intercept = None
        await until(lambda: not world.api.node(NODE)["spec"].get("taints"))
