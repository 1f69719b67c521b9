"""Kubeconfigs, service accounts, tokens that change, TLS."""

import json
import ssl

import pytest

from kubeapi import errors
from kubeapi.credentials import FORCED_GAP_S, REFRESH_S, Credentials
from kubeapi.posting import make_post_client
from tests.clock import Clock
from tests.credentials_world import in_cluster, outside_a_cluster, plugin, write

__all__ = ["in_cluster", "outside_a_cluster"]
pytestmark = pytest.mark.usefixtures("outside_a_cluster")


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({"token": "abc"}, "Bearer abc"),
        ({"username": "u", "password": "p"}, "Basic dTpw"),
        ({}, None),
    ],
)
async def test_what_a_kubeconfig_says(tmp_path, user, header) -> None:
    credentials = await Credentials.load(write(tmp_path / "kc", {"server": "http://h:1/"}, user))
    assert credentials.server == "http://h:1"
    assert credentials.tls is None
    assert await credentials.authorization() == header


def named(path, name, **changed) -> str:
    """Write a kubeconfig whose cluster, user and context have one name."""
    config = {
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": f"http://{name}:1"}}],
        "users": [{"name": name, "user": {"token": name}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    path.write_text(json.dumps({**config, **changed}))
    return str(path)


@pytest.mark.parametrize(
    ("context", "server", "header"), [(None, "http://b:1", "Bearer b"), ("c", "http://c:1", "Bearer c")]
)
async def test_several_kubeconfigs_are_merged_as_kubectl_does(
    tmp_path, monkeypatch, context, server, header
) -> None:
    """What a file says first holds, also which context is the current one; empty files say nothing."""
    (tmp_path / "empty").write_text("---\n# nothing\n")
    paths = [
        str(tmp_path / "empty"),
        named(tmp_path / "a", "a", **{"current-context": ""}),
        str(tmp_path / "none"),
        named(tmp_path / "b", "b"),
        named(tmp_path / "c", "c"),
        named(
            tmp_path / "d",
            "b",
            **{"current-context": "a"},
            clusters=[{"name": "b", "cluster": {"server": "http://other:1"}}],
        ),
    ]
    monkeypatch.setenv("KUBECONFIG", ":".join(paths))
    credentials = await Credentials.load(None, context=context)
    assert (credentials.server, await credentials.authorization()) == (server, header)


async def test_a_context_that_is_not_there_is_named_with_those_that_are(tmp_path) -> None:
    path = named(tmp_path / "a", "a")
    with pytest.raises(errors.ConfigError) as caught:
        await Credentials.load(path, context="b")
    assert str(caught.value) == f"context 'b'; allowed: 'a', of kubeconfig {path}"
    named(tmp_path / "a", "a", contexts=[])
    with pytest.raises(errors.ConfigError, match="context 'b'; allowed: none, of"):
        await Credentials.load(path, context="b")


async def test_a_context_is_of_a_kubeconfig_also_in_a_cluster(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(errors.ConfigError, match=r"kubeconfig ~/\.kube/config is not a file"):
        await Credentials.load(None, context="a")


async def test_an_empty_kubeconfig(tmp_path) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(errors.ConfigError, match="is empty"):
        await Credentials.load(str(tmp_path / "empty"))


@pytest.mark.parametrize(
    "server",
    [
        "http://[::1",
        "http://h:99999",
        "http://h:https",
        "http://",
        "http:///path",
        "http://a..b",
        f"http://{'a' * 64}",
        "http://h h",
        "http://h\nx",
        "http://h?q",
        "ftp://x",
        "HTTPS://h",
        "h:8080",
        "h",
        "",
        5,
    ],
)
@pytest.mark.parametrize("key", ["server", "proxy-url"])
async def test_an_address_that_cannot_be_asked_is_named_with_what_is_allowed(tmp_path, key, server) -> None:
    path = write(tmp_path / "kc", {"server": "http://h:1", key: server}, {})
    with pytest.raises(errors.ConfigError) as caught:
        await Credentials.load(path)
    allowed = "allowed: http://HOST[:PORT] and https://HOST[:PORT]"
    assert str(caught.value) == f"kubeconfig {path}: {key} {server!r}; {allowed}"


@pytest.mark.parametrize(
    "server",
    ["http://h", "https://h:6443/k8s/clusters/c-1", "http://[fd00::1]:1", "http://10.0.0.1", "http://h.:1"],
)
async def test_addresses_that_can_be_asked(tmp_path, server) -> None:
    path = write(tmp_path / "kc", {"server": server, "proxy-url": "http://u:p@h:1"}, {})
    assert (await Credentials.load(path)).server == server


async def test_a_cluster_without_server(tmp_path) -> None:
    with pytest.raises(errors.ConfigError, match=r"server missing; allowed: http://HOST"):
        await Credentials.load(write(tmp_path / "kc", {"insecure-skip-tls-verify": True}, {}))


@pytest.mark.parametrize("name", ["a..b", ".h", "", 5])
async def test_a_tls_server_name_that_is_none(tmp_path, name) -> None:
    path = write(tmp_path / "kc", {"server": "https://h:1", "tls-server-name": name}, {})
    with pytest.raises(errors.ConfigError, match=r"tls-server-name .*; allowed: a host name"):
        await Credentials.load(path)


@pytest.mark.parametrize("user", [None, "stranger"])
async def test_https_wants_a_user(tmp_path, user) -> None:
    path = tmp_path / "kc"
    write(path, {"server": "https://h:1"}, {})
    config = json.loads(path.read_text())
    config["contexts"][0]["context"]["user"] = user
    path.write_text(json.dumps(config))
    with pytest.raises(errors.ConfigError, match=r"server 'https://h:1' .* without user: allowed with https"):
        await Credentials.load(str(path))


@pytest.mark.parametrize("value", ["false", "true", "", 1])
async def test_verification_is_left_out_only_where_that_is_said(tmp_path, value) -> None:
    path = write(tmp_path / "kc", {"server": "https://h:1", "insecure-skip-tls-verify": value}, {})
    with pytest.raises(errors.ConfigError) as caught:
        await Credentials.load(path)
    said = f"kubeconfig {path}: insecure-skip-tls-verify {value!r}; allowed: true, false"
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"token": ["secret"]}, "token is of type list; allowed: text"),
        ({"token": 5}, "token is of type int; allowed: text"),
        ({"username": "u", "password": 5}, "password is of type int; allowed: text"),
        ({"client-key-data": {"secret": 1}}, "client-key-data is of type dict; allowed: text"),
        ({"exec": ["secret"]}, "exec has no command; allowed: a map with one"),
        ({"exec": {"env": "secret"}}, "exec has no command; allowed: a map with one"),
        ({"exec": {"command": None}}, "exec has no command; allowed: a map with one"),
    ],
)
async def test_a_value_of_another_type_is_named_without_it(tmp_path, user, said) -> None:
    path = write(tmp_path / "kc", {"server": "http://h:1"}, user)
    with pytest.raises(errors.ConfigError) as caught:
        await Credentials.load(path)
    assert str(caught.value) == f"kubeconfig {path}: {said}"


async def test_a_plugin_that_is_null_is_none(tmp_path) -> None:
    path = write(tmp_path / "kc", {"server": "http://h:1"}, {"exec": None})
    assert await (await Credentials.load(path)).authorization() is None


@pytest.mark.parametrize("token", ["se\ncret", "se\r\ncret", "se\0cret", "s\xe9cret"])
async def test_a_token_that_no_header_can_carry_is_told_without_it(tmp_path, token) -> None:
    path = write(tmp_path / "kc", {"server": "http://h:1"}, {"token": token})
    with pytest.raises(errors.ConfigError, match=r"the token has .*; allowed: printable ASCII") as caught:
        await Credentials.load(path)
    assert str(path) in str(caught.value)
    assert "cret" not in str(caught.value)


async def test_a_token_file_that_breaks_later_is_a_configuration_error(tmp_path) -> None:
    token = tmp_path / "token"
    token.write_text("t1\n")
    clock = Clock()
    path = write(tmp_path / "kc", {"server": "http://h:1"}, {"tokenFile": str(token)})
    credentials = await Credentials.load(path, clock)
    token.write_text("t1\nt2\n")
    clock.now += REFRESH_S
    with pytest.raises(errors.ConfigError, match="allowed: printable ASCII"):
        await credentials.authorization()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "5", "{", "\t", "{}", '{"current-context": "x"}', '{"current-context":"c","contexts":[5]}'],
)
async def test_a_kubeconfig_that_is_none_names_the_file(tmp_path, text) -> None:
    path = tmp_path / "kc"
    path.write_text(text)
    with pytest.raises(errors.ConfigError, match=str(path)):
        await Credentials.load(str(path))


async def test_no_kubeconfig(tmp_path) -> None:
    with pytest.raises(errors.ConfigError, match="none is not a file; name one with --kubeconfig"):
        await Credentials.load(str(tmp_path / "none"))


async def test_a_token_file_is_read_again(tmp_path) -> None:
    token = tmp_path / "token"
    token.write_text("t1")
    clock = Clock()
    path = write(tmp_path / "kc", {"server": "http://h:1"}, {"tokenFile": str(token)})
    credentials = await Credentials.load(path, clock)
    token.write_text("t2")
    assert await credentials.authorization() == "Bearer t1"
    clock.now += REFRESH_S
    assert await credentials.authorization() == "Bearer t2"


async def test_a_plugin_without_expiry_is_asked_again_after_a_401_only(tmp_path) -> None:
    clock = Clock()
    credentials = await Credentials.load(
        write(tmp_path / "kc", {"server": "http://h:1"}, plugin(tmp_path)), clock
    )
    clock.now += 10 * REFRESH_S
    assert await credentials.authorization() == "Bearer token-1"
    assert await credentials.renew(await credentials.proof())
    assert await credentials.authorization() == "Bearer token-2"


@pytest.mark.parametrize(
    ("expiry", "token"), [("2999-01-01T00:00:00Z", "token-1"), ("2020-01-01T00:00:00Z", "token-2")]
)
async def test_a_plugins_expiry_is_heeded(tmp_path, expiry, token) -> None:
    clock = Clock()
    user = plugin(tmp_path, expirationTimestamp=expiry)
    credentials = await Credentials.load(write(tmp_path / "kc", {"server": "http://h:1"}, user), clock)
    clock.now += REFRESH_S
    assert await credentials.authorization() == f"Bearer {token}"


async def test_a_401_overrules_a_plugins_expiry(tmp_path) -> None:
    clock = Clock()
    user = plugin(tmp_path, expirationTimestamp="2999-01-01T00:00:00Z")
    credentials = await Credentials.load(write(tmp_path / "kc", {"server": "http://h:1"}, user), clock)
    clock.now += FORCED_GAP_S
    assert await credentials.renew(await credentials.proof())
    assert await credentials.authorization() == "Bearer token-2"


async def test_401s_do_not_run_a_plugin_in_a_hot_loop(tmp_path) -> None:
    clock = Clock()
    credentials = await Credentials.load(
        write(tmp_path / "kc", {"server": "http://h:1"}, plugin(tmp_path)), clock
    )
    assert not await credentials.renew(await credentials.proof())
    assert (tmp_path / "count").read_text() == "1"


async def test_a_plugin_that_fails_is_named(tmp_path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/no/such/plugin"}}
    with pytest.raises(errors.ConfigError, match="/no/such/plugin"):
        await Credentials.load(write(tmp_path / "kc", {"server": "http://h:1"}, user))


async def test_in_cluster(in_cluster) -> None:
    clock = Clock()
    credentials = await Credentials.load(None, clock)
    assert credentials.server == "https://[fd00::1]:6443"
    assert credentials.tls.verify_mode is ssl.CERT_REQUIRED
    assert await credentials.authorization() == "bearer sa-1"
    in_cluster.write_text("sa-2")
    clock.now += FORCED_GAP_S
    assert await credentials.renew(await credentials.proof())
    assert await credentials.authorization() == "bearer sa-2"


async def test_a_kubeconfig_wins_in_a_cluster_too(in_cluster, tmp_path) -> None:
    path = write(tmp_path / "kc", {"server": "http://h:1"}, {})
    assert (await Credentials.load(path)).server == "http://h:1"


@pytest.mark.parametrize("place", ["environment", "home"])
@pytest.mark.parametrize("where", ["outside_a_cluster", "in_cluster"])
async def test_where_a_kubeconfig_is_found(request, tmp_path, monkeypatch, place, where) -> None:
    request.getfixturevalue(where)
    (tmp_path / ".kube").mkdir()
    path = write(
        tmp_path / ".kube" / ("config" if place == "home" else "other"), {"server": "http://h:2"}, {}
    )
    if place == "environment":
        monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{path}")
    assert (await Credentials.load(None)).server == "http://h:2"


async def test_a_home_where_nobody_may_look_is_none(in_cluster, mocker) -> None:
    mocker.patch("pathlib.Path.is_file", side_effect=PermissionError)
    assert (await Credentials.load(None)).server == "https://[fd00::1]:6443"


async def test_a_service_address_that_cannot_be_asked(in_cluster, monkeypatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "99999")
    said = r"\$KUBERNETES_SERVICE_HOST and _PORT 'https://\[fd00::1\]:99999'; allowed: http://HOST"
    with pytest.raises(errors.ConfigError, match=said):
        await Credentials.load(None)


async def test_a_service_account_token_that_is_no_text(in_cluster) -> None:
    in_cluster.write_bytes(b"\xff\xfe")
    with pytest.raises(errors.ConfigError, match="no usable service account"):
        await Credentials.load(None)


async def test_a_service_account_without_token(in_cluster) -> None:
    in_cluster.unlink()
    with pytest.raises(errors.ConfigError, match="no usable service account"):
        await Credentials.load(None)


async def test_a_token_that_vanishes_later(in_cluster) -> None:
    clock = Clock()
    credentials = await Credentials.load(None, clock)
    in_cluster.unlink()
    clock.now += FORCED_GAP_S
    with pytest.raises(errors.ConfigError, match="cannot be read again"):
        await credentials.renew(await credentials.proof())
    assert await credentials.authorization() == "bearer sa-1"


@pytest.mark.parametrize(
    ("server", "cluster", "proxy"),
    [
        ("http://127.0.0.1:1", {}, None),
        ("http://api.example:1", {}, "http://env:1"),
        ("http://10.0.0.1:1", {}, None),
        ("http://api.example:1", {"proxy-url": "http://kc:1"}, "http://kc:1"),
        ("http://10.0.0.1:1", {"proxy-url": "http://kc:1"}, "http://kc:1"),
    ],
    ids=[
        "this machine",
        "the environment's",
        "in a network of NO_PROXY",
        "the kubeconfig's",
        "it knows best",
    ],
)
async def test_the_proxy_on_the_way_to_the_server(tmp_path, monkeypatch, server, cluster, proxy) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://env:1")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8")
    credentials = await Credentials.load(write(tmp_path / "kc", {"server": server, **cluster}, {}))
    assert credentials.proxy == proxy
    assert (make_post_client(credentials, (), 1, 1.0) is None) is (proxy is not None)


async def test_a_proxy_that_cannot_be_used(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "socks5://h:1")
    with pytest.raises(errors.ConfigError, match="HTTP_PROXY 'socks5://h:1'; allowed: http://HOST"):
        await Credentials.load(write(tmp_path / "kc", {"server": "http://api.example:1"}, {}))


async def test_broken_tls_files_are_a_configuration_error(tmp_path) -> None:
    broken = tmp_path / "ca"
    broken.write_text("no certificate")
    path = write(tmp_path / "kc", {"server": "https://h:1", "certificate-authority": str(broken)}, {})
    with pytest.raises(errors.ConfigError, match="TLS files for https://h:1"):
        await Credentials.load(path)
