"""GPUs of another device plugin are seen by their resources."""

import pytest

from deviceplugin.gpus.foreign_resources import count_foreign_gpus, describe_foreign


@pytest.mark.parametrize(
    ("capacity", "allocatable", "found"),
    [
        pytest.param({"cpu": "8"}, {"cpu": "8"}, {}, id="none"),
        pytest.param(None, None, {}, id="no status yet"),
        pytest.param(
            {"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": 8}, id="whole cards"
        ),
        pytest.param({"nvidia.com/gpu": 8}, {}, {"nvidia.com/gpu": 8}, id="a number"),
        pytest.param({"nvidia.com/gpu": "1k"}, {}, {"nvidia.com/gpu": 1000}, id="canonical"),
        pytest.param({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "0"}, {"nvidia.com/gpu": 8}, id="stopped"),
        pytest.param({"nvidia.com/gpu": "0"}, {"nvidia.com/gpu": "0"}, {}, id="gone"),
        pytest.param({"nvidia.com/gpu.shared": "40"}, {}, {"nvidia.com/gpu.shared": 40}, id="time slices"),
        pytest.param(
            {
                "nvidia.com/mig-3g.20gb": "2",
                "nvidia.com/mig-1g.5gb.shared": "4",
                "nvidia.com/mig-1g.10gb+me": "1",
            },
            {},
            {"nvidia.com/mig-1g.10gb+me": 1, "nvidia.com/mig-1g.5gb.shared": 4, "nvidia.com/mig-3g.20gb": 2},
            id="MIG",
        ),
        pytest.param(
            {"nvidia.com/hostdev": "8", "nvidia.com/gpu-x": "1"}, {}, {}, id="network cards, others"
        ),
        pytest.param(
            {"gpupack.io/gpu-memory-gib": "80", "amd.com/gpu": "8"}, {}, {}, id="ours, other vendors"
        ),
        pytest.param({"nvidia.com/gpu": "rubbish", "nvidia.com/mig-x": None}, {}, {}, id="rubbish"),
    ],
)
def test_what_is_found(capacity, allocatable, found):
    assert count_foreign_gpus(capacity, allocatable) == found


def test_what_is_said():
    said = describe_foreign({"nvidia.com/gpu": 8, "nvidia.com/mig-1g.5gb": 2})
    assert said.startswith("another device plugin offers nvidia.com/gpu: 8, nvidia.com/mig-1g.5gb: 2 here")
    assert "nvidia.com/gpu.deploy.device-plugin=false" in said
