"""MIG instances that a card can have, by the tables of NVIDIA's Multi-Instance GPU User Guide."""

import pytest

from deviceplugin.gpus.nvidia.mig import InstanceRequest, PartitionError, place_instances

H100 = ("NVIDIA H100 80GB HBM3", 81079)


def place(*profiles: str, model: str = H100[0], mib: int = H100[1]) -> list[tuple[str, int]]:
    return [
        (one.profile, one.start)
        for one in place_instances("GPU-a", model, mib, list(map(InstanceRequest, profiles)))
    ]


@pytest.mark.parametrize(
    ("profiles", "starts"),
    [
        (["1g.10gb"] * 7, [0, 1, 2, 3, 4, 5, 6]),
        (["1g.20gb"] * 4, [0, 2, 4, 6]),
        (["2g.20gb"] * 3, [0, 2, 4]),
        (["3g.40gb", "3g.40gb"], [0, 4]),
        (["3g.40gb", "4g.40gb"], [0, 4]),
        (["2g.20gb", "1g.10gb", "4g.40gb"], [0, 4, 6]),
        (["1g.10gb", "1g.10gb+me", "3g.40gb"], [0, 4, 5]),
        (["7g.80gb"], [0]),
        ([], []),
    ],
    ids=lambda each: "+".join(map(str, each)),
)
def test_instances_that_fit(profiles: list[str], starts: list[int]) -> None:
    placed = place(*profiles)
    assert sorted(name for name, _ in placed) == sorted(profiles)
    assert [start for _, start in placed] == starts


@pytest.mark.parametrize(
    ("profiles", "places"),
    [
        (["1c.3g.40gb"] * 3, [(0, 0), (0, 1), (0, 2)]),
        (["1c.3g.40gb"] * 4, [(0, 0), (0, 1), (0, 2), (4, 0)]),
        (["2c.3g.40gb", "1c.3g.40gb", "3g.40gb"], [(0, 0), (0, 1), (4, 0)]),
        (["1c.3g.40gb", "2g.20gb", "1c.3g.40gb"], None),
        (["1c.3g.40gb", "1g.10gb", "1c.2g.20gb"], [(0, 0), (4, 0), (6, 0)]),
    ],
    ids=lambda each: "+".join(map(str, each)) if each else "no room",
)
def test_parts_that_follow_one_another_are_of_one_gpu_instance(
    profiles: list[str], places: list[tuple[int, int]] | None
) -> None:
    if places is None:
        with pytest.raises(PartitionError, match="have no room"):
            place_instances("GPU-a", *H100, list(map(InstanceRequest, profiles)))
        return
    found = place_instances("GPU-a", *H100, list(map(InstanceRequest, profiles)))
    assert [(one.start, one.part) for one in found] == places
    assert len({one.uuid for one in found}) == len(profiles)
    assert place_instances("GPU-a", *H100, list(map(InstanceRequest, profiles)), found) == found


@pytest.mark.parametrize(
    ("profiles", "says"),
    [
        (
            ["1g.10gb"] * 8,
            "take 8 of 8 memory slices; allowed to begin at 1g.10gb: 0/1/2/3/4/5/6",
        ),
        (["4g.40gb", "4g.40gb"], "take 8 of 8 memory slices.*4g.40gb: 0,"),
        (["3g.40gb"] * 3, "take 12 of 8"),
        (["2g.20gb"] * 4, "2g.20gb: 0/2/4"),
        (["1g.5gb"], "'1g.5gb'; allowed on NVIDIA H100 80GB HBM3 are 1g.10gb, 1g.20gb, 2g.20gb"),
        (["1g.10gb+me", "1g.10gb+me"], "1g.10gb.me twice; allowed: one on a card"),
        (["3c.3g.40gb"], "'3c.3g.40gb'; allowed on .*, and parts of them with fewer .*, as 1c.3g.40gb"),
        (["1c.1g.10gb"], "'1c.1g.10gb'; allowed"),
        (["1c.3g.20gb"], "'1c.3g.20gb'; allowed"),
        (["1c.3g.40gb"] * 7, "take 12 of 8 memory slices"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_instances_that_no_card_can_have(profiles: list[str], says: str) -> None:
    with pytest.raises(PartitionError, match=says):
        place(*profiles)


@pytest.mark.parametrize(
    ("model", "mib", "smallest", "units"),
    [
        ("NVIDIA A100-SXM4-40GB", 40442, "1g.5gb", 4),
        ("NVIDIA A100-SXM4-80GB", 81050, "1g.10gb", 9),
        ("NVIDIA H100 80GB HBM3", 81079, "1g.10gb", 9),
        ("NVIDIA H200", 143167, "1g.18gb", 16),
    ],
)
def test_instances_have_the_units_that_drivers_give(model: str, mib: int, smallest: str, units: int) -> None:
    found = place_instances("GPU-a", model, mib, [InstanceRequest(smallest)] * 7)
    assert {one.memory_mib // 1024 for one in found} == {units}
    assert len({one.uuid for one in found}) == 7


@pytest.mark.parametrize(
    ("model", "mib"), [("Tesla T4", 14912), ("NVIDIA H100 NVL", 95000), ("BH100X", 80000)]
)
def test_cards_that_cannot_be_partitioned(model: str, mib: int) -> None:
    with pytest.raises(PartitionError, match=f"{model} of {mib} MiB; allowed: A100 of 40 GB, A100 of 80 GB"):
        place("1g.10gb", model=model, mib=mib)


def test_a_place_can_be_chosen_and_is_checked() -> None:
    placed = place_instances("GPU-a", *H100, [InstanceRequest("1g.10gb", 6), InstanceRequest("3g.40gb")])
    assert [(one.profile, one.start) for one in placed] == [("3g.40gb", 0), ("1g.10gb", 6)]
    with pytest.raises(PartitionError, match=r"3g\.40gb at memory slice 2; allowed: 0, 4"):
        place_instances("GPU-a", *H100, [InstanceRequest("3g.40gb", 2)])


def test_instances_that_are_there_stay_where_they_are() -> None:
    before = place_instances("GPU-a", *H100, [InstanceRequest("2g.20gb", 0), InstanceRequest("3g.40gb", 4)])
    after = place_instances(
        "GPU-a", *H100, list(map(InstanceRequest, ["1g.10gb", "1g.10gb", "3g.40gb"])), before
    )
    assert before[1] in after
    assert {one.uuid for one in after} - {one.uuid for one in before} == {one.uuid for one in after[:2]}
    other = place_instances("GPU-b", *H100, [InstanceRequest("3g.40gb", 4)])
    assert other[0].uuid != before[1].uuid
