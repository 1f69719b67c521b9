import pytest

from kubeapi.names import is_label, is_subdomain


@pytest.mark.parametrize("name", ["a", "0", "a-b", "gpupack-scheduler", "x" * 63])
def test_a_label_is_a_subdomain_too(name: str) -> None:
    assert is_label(name)
    assert is_subdomain(name)


@pytest.mark.parametrize("name", ["a.b", "10.0.0.1", "x" * 64, ".".join(["y" * 50] * 4) + "." + "z" * 49])
def test_only_a_subdomain_has_parts_and_may_be_long(name: str) -> None:
    assert not is_label(name)
    assert is_subdomain(name)


@pytest.mark.parametrize(
    "name", ["", "a/b", "A", "-a", "a-", "a_b", "a b", "ä", "a\n", "a..b", ".", "a." * 127]
)
def test_neither(name: str) -> None:
    assert not is_label(name)
    assert not is_subdomain(name)
