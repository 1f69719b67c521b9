from pathlib import Path
from typing import Any

import pytest

from kubeapi.addresses import split_address
from scheduler_plugin.errors import SettingsError
from scheduler_plugin.settings import Settings


def test_the_defaults_work() -> None:
    Settings().check()


@pytest.mark.parametrize(
    ("http", "host", "port"),
    [
        ("0.0.0.0:80", "0.0.0.0", 80),
        (":8910", "", 8910),
        ("[::1]:0", "::1", 0),
        ("localhost:65535", "localhost", 65535),
    ],
)
def test_addresses(http: str, host: str, port: int) -> None:
    Settings(http=http, anonymous_auth=True).check()
    assert split_address(http) == (host, port)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"http": "8910"}, "--http '8910'; allowed: HOST:PORT"),
        ({"http": "::1:8910"}, "--http '::1:8910'; allowed: [HOST]:PORT where the host is an IPv6 address"),
        ({"http": "h:"}, "--http 'h:'"),
        ({"http": ":8910"}, "--http ':8910': whoever reaches it could bind and evict pods; allowed: a loop"),
        ({"http": "0.0.0.0:8910"}, "a client CA (--tls-client-ca-file), or --anonymous-auth where all may"),
        ({"http": "[::]:8910", "tls_cert": "/x", "tls_key": "/y"}, "--http '[::]:8910': whoever reaches it"),
        ({"http": "gpu.example:8910"}, "--http 'gpu.example:8910': whoever"),
        (
            {"anonymous_auth": True, "tls_client_ca": "/c"},
            "--anonymous-auth with --tls-client-ca-file '/c'; ",
        ),
        ({"http": "h:65536"}, "a port from 0 to 65535"),
        ({"http": "h:-1"}, "--http 'h:-1'"),
        ({"node_policy": "fastest"}, 'node policy "fastest"; allowed:'),
        (
            {"node_policy": "balanced", "node_policy_parameters": {"speed": "11"}},
            'parameter "speed" does not exist; allowed: resources',
        ),
        ({"card_policy": "any"}, 'card policy "any"; allowed:'),
        ({"unit_mib": 16777216}, "--unit-mib 16777216; allowed: 1 to 16777215"),
        ({"shortlist": -1}, "--shortlist -1; allowed: 0 (all) to 100000"),
        ({"shortlist": 100_001}, "--shortlist 100001; allowed: 0 (all) to 100000"),
        ({"tls_cert": "/x"}, "allowed: both or none"),
        ({"tls_client_ca": "/c"}, "allowed with --tls-cert-file and --tls-key-file only"),
        ({"tls_cert": "/x", "tls_key": "/y"}, "--tls-cert-file '/x': no such file"),
        ({"kubeconfig": "/missing"}, "--kubeconfig '/missing': no such file"),
        ({"metrics_http": "8912"}, "--metrics-http '8912'; allowed: HOST:PORT with a port from 0 to 65535"),
        ({"log_format": "xml"}, "--log-format 'xml'; allowed: text, json"),
        ({"log_level": "loud"}, "--log-level 'loud'; allowed: debug, info, warning, error"),
        ({"stale_s": 9}, "--stale-after 9; allowed: 10 or more"),
        ({"stale_s": float("nan")}, "--stale-after nan; allowed: 10 or more"),
        ({"bind_timeout_s": 0}, "--bind-timeout 0 s; allowed: more than 0"),
        ({"bind_timeout_s": 5.0, "leader_elect": True}, "less than a third of the lease, 5 s"),
        ({"lease_s": 0}, "lease 0 s"),
        ({"pod_name": "a_b"}, "--pod-name 'a_b'; allowed: lower case"),
        ({"pod_name": "a", "lease_name": "l" * 64}, f"--lease-name '{'l' * 64}', the value of a label where"),
        ({"pod_name": "a", "lease_namespace": "a.b"}, "--lease-namespace 'a.b'; allowed: lower case"),
        ({"leader_elect": True, "lease_name": ""}, "--lease-name ''; allowed: lower case letters"),
        ({"leader_elect": True, "lease_name": "a/b"}, "--lease-name 'a/b'; allowed: lower case letters"),
        ({"leader_elect": True, "lease_namespace": "a.b"}, "--lease-namespace 'a.b'; allowed: lower case"),
        ({"leader_elect": True, "identity": ""}, "identity is empty"),
    ],
)
def test_a_fault_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(**options).check()
    assert message in str(caught.value)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(http="x", node_policy="y", card_policy="z", shortlist=-1, log_level="w").check()
    assert len(str(caught.value).splitlines()) == 5


def test_files_that_are_there(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    Settings(kubeconfig=str(file), tls_cert=str(file), tls_key=str(file), leader_elect=True).check()
    served = Settings(http=":8910", tls_cert=str(file), tls_key=str(file), tls_client_ca=str(file))
    served.check()


@pytest.mark.parametrize("http", ["127.0.0.1:0", "127.1.2.3:0", "[::1]:0", "localhost:0"])
def test_on_loopback_nobody_needs_a_certificate(http: str) -> None:
    Settings(http=http).check()
