"""What becomes of a pod is told in Events, and telling costs no pod anything."""

from tests.extender_client import Client, client
from tests.waiting import until

WAITS = (
    "0/1 nodes can take 16 GiB: 1 no card with 16 GiB free. "
    "Largest free card: 8 GiB on node a; all cards together: 16 GiB."
)


__all__ = ["client"]


async def test_a_pod_s_life_is_told_in_its_events(client: Client) -> None:
    pod = client.make_pod("p", 16)
    await client.knows(pod["metadata"]["uid"])
    assert (await client.filter(pod, "a"))["NodeNames"] == []
    assert (await client.filter(pod, "b"))["NodeNames"] == ["b"]
    assert await client.bind(pod, "b") == ""
    await until(lambda: len(client.api.objects("events")) == 2)
    events = sorted(client.api.objects("events"), key=lambda event: event["type"])
    assert [(event["type"], event["reason"], event["message"]) for event in events] == [
        ("Normal", "CardsAssigned", "Assigned on node b: card 1 (GPU-b-1) 16 GiB"),
        (
            "Warning",
            "WaitingForCards",
            WAITS,
        ),
    ]
    for event in events:
        assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]
        assert event["source"] == {"component": "gpupack-scheduler"}


async def test_a_pod_that_is_refused_again_and_again_is_one_event_written_once(client: Client) -> None:
    pod = client.make_pod("p", 16)
    await client.knows(pod["metadata"]["uid"])
    for _ in range(50):
        await client.filter(pod, "a")

    async def written() -> bool:
        return 'gpupack_scheduler_events_total{result="written"} 1.0' in (await client.get("/metrics"))[1]

    await until(written)
    (event,) = client.api.objects("events")
    assert event["count"] == 1
    assert 'gpupack_scheduler_waiting_pods{reason="not_free"} 1.0' in (await client.get("/metrics"))[1]


async def test_an_api_server_that_takes_no_events_costs_no_binding(client: Client) -> None:
    client.refuse("/events")
    pod = client.make_pod("p", 9)
    await client.knows(pod["metadata"]["uid"])
    assert await client.bind(pod, "b") == ""

    async def dropped() -> bool:
        return 'gpupack_scheduler_events_total{result="dropped"} 1.0' in (await client.get("/metrics"))[1]

    await until(dropped)


async def test_a_pod_that_only_kube_scheduler_refused_gets_the_numbers(client: Client) -> None:
    """It asks for more than any node's sum, so the extender is never asked."""
    client.make_pod("p", 99)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2"}
    client.api.patch_pod("default", "p", {"status": {"conditions": [condition]}})
    await until(lambda: client.api.objects("events"))
    (event,) = client.api.objects("events")
    assert event["reason"] == "WaitingForCards"
    assert event["message"].startswith("0/2 nodes can take 99 GiB: 2 no healthy card of 99 GiB or more.")
