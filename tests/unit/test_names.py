"""Resource names and units."""

import pytest

from allocator.errors import QuantityError
from allocator.names import MAX_UNIT_MIB, resource_name, unit_of_resource


@pytest.mark.parametrize(
    ("unit_mib", "name"),
    [
        (1024, "gpupack.io/gpu-memory-gib"),
        (1, "gpupack.io/gpu-memory-1mib"),
        (512, "gpupack.io/gpu-memory-512mib"),
        (2048, "gpupack.io/gpu-memory-2048mib"),
        (MAX_UNIT_MIB, "gpupack.io/gpu-memory-16777215mib"),
    ],
)
def test_name_of_a_unit(unit_mib, name):
    assert resource_name(unit_mib) == name
    assert unit_of_resource(name) == unit_mib


@pytest.mark.parametrize("unit_mib", [0, -1, MAX_UNIT_MIB + 1])
def test_impossible_units(unit_mib):
    with pytest.raises(QuantityError, match=f"unit of {unit_mib} MiB; allowed: 1 to 16777215"):
        resource_name(unit_mib)


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "nvidia.com/gpu",
        "gpupack.io/gpu-memory-",
        "gpupack.io/gpu-memory-1024mib",
        "gpupack.io/gpu-memory-0mib",
        "gpupack.io/gpu-memory-0512mib",
        "gpupack.io/gpu-memory-512",
        "gpupack.io/gpu-memory-16777216mib",
        "gpupack.io/gpu-memory-123456789mib",
        "gpupack.io/gpu-memory-gib ",
        "gpupackxio/gpu-memory-gib",
    ],
)
def test_names_that_are_not_ours(name):
    assert unit_of_resource(name) is None
