"""Questions of a namespace's members, who may not list nodes: client, server, and the answers.

The rights that each side needs are in docs/teams.md.
"""

from typing import Final

AUDIENCE: Final = "gpupack"
"""The audience of the tokens: a token for another one, as for the API server, is refused."""

TOKEN_HEADER: Final = "X-Gpupack-Token"  # noqa: S105 - its name
"""The API server's proxy takes `Authorization` away, and passes this one on."""

MEMBER: Final = "gpupack-member"
"""ServiceAccount of a namespace for which its members make tokens."""

SERVICE: Final = "gpupack-dashboard"
PORT: Final = "teams"
"""Where members are answered: a port of the dashboard's Service."""

DENIED: Final = "denied: docs/teams.md of gpupack says what a member needs"
"""Told to everybody who may not ask, whatever the reason."""
