"""A member's question through the API server's proxy: when the token may go in plain."""

import re
from pathlib import Path

import pytest

from gpupack.teams import MEMBER, TOKEN_HEADER
from gpupack.teams.asking import ask_as_member, explain_missing_rights
from kubeapi.errors import Forbidden, KubeApiError, NotFound, ServerError
from tests.yaml_text import read_yaml_documents

REACH = "error trying to reach service: "


class ProxyApi:
    """An API server whose proxy fails for the form with TLS; the plain form answers."""

    server = "https://api"

    def __init__(self, error: KubeApiError) -> None:
        self.error = error
        self.paths: list[str] = []

    async def get_with_headers(self, path: str, headers: dict[str, str], **_: object) -> bytes:
        assert headers == {TOKEN_HEADER: "token"}
        self.paths.append(path)
        if "/https:" in path:
            raise self.error
        return b"{}"


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        (NotFound("", status=404), "namespace team-a has no ServiceAccount gpupack-member"),
        (Forbidden("", status=403), "nor may you make tokens for ServiceAccount gpupack-member"),
    ],
)
def test_who_gets_no_token_is_told_what_to_add_as_the_page_has_it(error, missing) -> None:
    """They were told that they are no member of a namespace that is theirs."""
    first, page, *commands, last = explain_missing_rights("team-a", error).splitlines()

    assert missing in first
    assert "docs/teams.md#set-up" in page
    text = (Path(__file__).parents[2] / "docs" / "teams.md").read_text().replace("\\\n  ", "")
    shown = [line for line in text.splitlines() if line.startswith("kubectl -n") and " create " in line]
    assert [line.strip().replace("=TEAM", "=team-a") for line in commands] == shown
    assert "kubectl -n team-a describe pod" in last


@pytest.mark.parametrize(
    "said",
    [
        f"{REACH}tls: first record does not look like a TLS handshake",
        f"{REACH}http: server gave HTTP response to HTTPS client",
    ],
)
async def test_a_port_with_plain_http_is_asked_in_plain(said: str) -> None:
    api = ProxyApi(ServerError(said, status=503))
    assert await ask_as_member(api, "token", "team-a", "why", {}) == b"{}"
    assert len(api.paths) == 2


@pytest.mark.parametrize(
    "error",
    [
        ServerError(f"{REACH}remote error: tls: handshake failure", status=503),
        ServerError(f"{REACH}tls: failed to verify certificate: x509: unknown authority", status=503),
        ServerError(f"{REACH}dial tcp 10.0.0.1:8916: connect: connection refused", status=503),
        Forbidden('services "https:gpupack-dashboard:teams" is forbidden: cannot get', status=403),
    ],
)
async def test_no_other_failure_sends_the_token_in_plain(error: KubeApiError) -> None:
    api = ProxyApi(error)
    with pytest.raises(type(error)):
        await ask_as_member(api, "token", "team-a", "why", {})
    (path,) = api.paths
    assert "/https:gpupack-dashboard:teams/" in path


def test_only_the_team_makes_tokens_of_its_account() -> None:
    """The account of members may do what the dashboard asks the API server about, and nothing else."""
    path = Path(__file__).parents[2] / "manifests" / "components" / "dashboard-teams" / "members.yaml"
    rules = {one["metadata"]["name"]: one["rules"] for one in read_yaml_documents(path.read_text())}
    assert rules["gpupack-member-account"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    page = (Path(__file__).parents[2] / "docs" / "teams.md").read_text()
    (manifests,) = re.findall(r"```yaml\n(apiVersion.*?)```", page, re.DOTALL)
    bound = {
        one["roleRef"]["name"]: [(who["kind"], who["name"]) for who in one["subjects"]]
        for one in read_yaml_documents(manifests)
        if one["kind"] == "RoleBinding"
    }
    assert bound.keys() == rules.keys()
    assert bound["gpupack-member-account"] == [("ServiceAccount", MEMBER)]
    assert {kind for name in ("gpupack-member", "gpupack-ask") for kind, _ in bound[name]} == {"Group"}
