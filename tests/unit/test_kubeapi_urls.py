"""Which proxy stands before a server: the cases of Go's httpproxy, which kubectl follows."""

import pytest

from kubeapi.errors import ConfigError
from kubeapi.urls import find_proxy

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("no_proxy", "host", "direct"),
    [
        pytest.param("", "10.1.2.3", False, id="no exception"),
        pytest.param("10.0.0.0/8", "10.1.2.3", True, id="network"),
        pytest.param("10.1.2.3/8", "10.9.9.9", True, id="network written with host bits"),
        pytest.param("10.0.0.0/8", "11.1.2.3", False, id="outside the network"),
        pytest.param("10.0.0.0/8", "api.example", False, id="a name is in no network"),
        pytest.param("10.0.0.0/255.0.0.0", "10.1.2.3", False, id="a mask is not a number of bits"),
        pytest.param("10.0.0.0/33", "10.0.0.0", False, id="more bits than there are"),
        pytest.param("fd00::/8", "[fd00::1]", True, id="IPv6 network"),
        pytest.param("fd00::/8", "[fe80::1]", False, id="outside the IPv6 network"),
        pytest.param("10.0.0.0/8", "[::ffff:10.1.2.3]", True, id="IPv4 in IPv6"),
        pytest.param("::ffff:10.0.0.0/104", "10.1.2.3", True, id="IPv4 network in IPv6"),
        pytest.param("fe80::%eth0/10", "[fe80::1]", False, id="network with a zone"),
        pytest.param("10.1.2.3", "10.1.2.3", True, id="address"),
        pytest.param("10.1.2.3", "10.1.2.30", False, id="another address"),
        pytest.param("10.1.2.3:6443", "10.1.2.3:6443", True, id="address and port"),
        pytest.param("10.1.2.3:6443", "10.1.2.3:443", False, id="address and another port"),
        pytest.param("10.1.2.3:443", "10.1.2.3", True, id="the port that https has"),
        pytest.param("fd00::1", "[fd00:0::1]", True, id="IPv6 address"),
        pytest.param("[fd00::1]:6443", "[fd00::1]:6443", True, id="IPv6 address and port"),
        pytest.param("[fd00::1]:6443", "[fd00::1]", False, id="IPv6 address and another port"),
        pytest.param("[fd00::1]", "[fd00::1]", False, id="brackets are for ports"),
        pytest.param("2.3", "10.1.2.3", False, id="an address has no domain"),
        pytest.param("example.com", "example.com", True, id="domain"),
        pytest.param("example.com", "api.example.com", True, id="subdomain"),
        pytest.param("example.com", "badexample.com", False, id="another domain with the same end"),
        pytest.param("example.com", "example.com.org", False, id="another domain with the same beginning"),
        pytest.param(".example.com", "api.example.com", True, id="dot and subdomain"),
        pytest.param(".example.com", "example.com", False, id="dot and the domain itself"),
        pytest.param("*.example.com", "api.example.com", True, id="star and subdomain"),
        pytest.param("*.example.com", "example.com", False, id="star and the domain itself"),
        pytest.param("*example.com", "badexample.com", False, id="a star stands for labels only"),
        pytest.param("example.com:6443", "api.example.com:6443", True, id="domain and port"),
        pytest.param("example.com:6443", "api.example.com", False, id="domain and another port"),
        pytest.param("EXAMPLE.com", "Api.Example.COM", True, id="case of names"),
        pytest.param("bücher.example", "api.bücher.example", True, id="name beyond ASCII"),
        pytest.param("xn--bcher-kva.example", "bücher.example", True, id="the same in ASCII"),
        pytest.param("*", "api.example.com", True, id="all names"),
        pytest.param("x, *", "10.1.2.3", True, id="all addresses"),
        pytest.param(" , ,:80, 10.0.0.0/8 ", "10.1.2.3", True, id="blanks and empty entries"),
        pytest.param("a.example,10.0.0.0/8,b.example", "b.example", True, id="the last of several"),
        pytest.param("", "localhost", True, id="localhost"),
        pytest.param("", "localhost:6443", True, id="localhost with a port"),
        pytest.param("", "127.9.9.9:6443", True, id="loopback"),
        pytest.param("", "[::1]:6443", True, id="IPv6 loopback"),
        pytest.param("", "[::ffff:127.0.0.1]", True, id="loopback as IPv6"),
        pytest.param("", "[::2]:6443", False, id="not loopback"),
        pytest.param("", "localhost.example", False, id="a name like localhost"),
    ],
)
def test_who_is_asked_without_the_proxy(no_proxy: str, host: str, direct: bool) -> None:
    environment = {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}
    assert find_proxy(f"https://{host}", environment) == (None if direct else PROXY)


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"HTTPS_PROXY": ""}, None),
        ({"HTTPS_PROXY": "http://a:1"}, "http://a:1"),
        ({"https_proxy": "http://a:1"}, "http://a:1"),
        ({"HTTPS_PROXY": "http://a:1", "https_proxy": "http://b:1"}, "http://a:1"),
        ({"HTTPS_PROXY": "", "https_proxy": "http://b:1"}, "http://b:1"),
        ({"HTTP_PROXY": "http://a:1", "ALL_PROXY": "http://a:1"}, None),
        ({"HTTPS_PROXY": "a:1"}, "http://a:1"),
        ({"HTTPS_PROXY": "http://u:p@a:1"}, "http://u:p@a:1"),
        ({"HTTPS_PROXY": "http://a:1", "no_proxy": "10.0.0.0/8"}, None),
        ({"HTTPS_PROXY": "http://a:1", "NO_PROXY": "x", "no_proxy": "10.0.0.0/8"}, "http://a:1"),
    ],
)
def test_variables_in_both_cases(environment: dict[str, str], proxy: str | None) -> None:
    assert find_proxy("https://10.1.2.3:6443", environment) == proxy


def test_each_scheme_has_its_variable() -> None:
    environment = {"HTTP_PROXY": "http://a:1", "HTTPS_PROXY": "http://b:1", "NO_PROXY": "h:80"}
    assert find_proxy("http://x", environment) == "http://a:1"
    assert find_proxy("https://x", environment) == "http://b:1"
    assert find_proxy("http://h", environment) is None
    assert find_proxy("https://h", environment) == "http://b:1"


@pytest.mark.parametrize("value", ["socks5://a:1", "http://", "a:port", "a b"])
def test_a_proxy_that_cannot_be_used_is_named(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_proxy("https://h", {"https_proxy": value})
    assert str(caught.value) == (
        f"https_proxy {value!r}; allowed: http://HOST[:PORT] and https://HOST[:PORT]"
    )
    assert find_proxy("https://h", {"https_proxy": value, "no_proxy": "h"}) is None


def test_the_password_of_a_proxy_is_not_told() -> None:
    with pytest.raises(ConfigError, match=r"HTTPS_PROXY '...@a:1'; allowed:") as caught:
        find_proxy("https://h", {"HTTPS_PROXY": "socks5://user:secret@a:1"})
    assert "secret" not in str(caught.value)
