"""Collecting the kubelet's one entry per device into one per container and resource."""

from deviceplugin.kubelet.podresources import aggregate
from deviceplugin.kubelet.wire import podresources_pb2 as pb


def container(name: str, *devices: tuple[str, list[str]]) -> pb.ContainerResources:
    return pb.ContainerResources(
        name=name,
        devices=[pb.ContainerDevices(resource_name=resource, device_ids=ids) for resource, ids in devices],
    )


def listed(*pods: pb.PodResources) -> pb.ListPodResourcesResponse:
    return pb.ListPodResourcesResponse(pod_resources=pods)


def test_nothing() -> None:
    assert aggregate(listed()) == {}
    assert aggregate(listed(pb.PodResources(name="a", namespace="n", containers=[container("c")]))) == {}
    assert (
        aggregate(listed(pb.PodResources(name="a", namespace="n", containers=[container("c", ("r/x", []))])))
        == {}
    )


def test_entries_of_one_container_are_collected_by_resource() -> None:
    pod = pb.PodResources(
        name="a",
        namespace="n",
        containers=[
            container("c", ("r/x", ["2"]), ("r/y", ["7"]), ("r/x", ["1"]), ("r/x", ["2"])),
            container("d", ("r/x", ["3", "4"])),
        ],
    )
    assert aggregate(listed(pod)) == {
        ("n", "a", "c"): {"r/x": ("1", "2"), "r/y": ("7",)},
        ("n", "a", "d"): {"r/x": ("3", "4")},
    }


def test_two_pods_of_one_name_are_one_entry() -> None:
    pods = [
        pb.PodResources(name="a", namespace="n", containers=[container("c", ("r/x", [identifier]))])
        for identifier in ("1", "2")
    ]
    assert aggregate(listed(*pods)) == {("n", "a", "c"): {"r/x": ("1", "2")}}
