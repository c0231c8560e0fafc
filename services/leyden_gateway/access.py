"""Who is calling, and what they may do.

Invariants:
- the admin key may do everything; an agent's token only what its rights say, on its own rollout and attempt;
- a credential never appears in an error or a log line.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request

from leyden.auth import Admin, AgentClaims, Authority, CredentialRefused, Right

Caller = Admin | AgentClaims


class Forbidden(PermissionError):
    """The credential is good, but not for this."""


class Access:
    """Checks the credentials of requests."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    @property
    def open(self) -> bool:
        """Whether checks are off."""
        return self._authority.open

    def caller(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Who sends these headers (lower-case names).

        Raises:
            CredentialRefused: no credential, or one that this deployment did not give.
        """
        return self._authority.check(_credential(headers))


def allow(caller: Caller, rollout_id: str, attempt: str, right: Right) -> None:
    """Let the admin, and an agent on its own attempt with this right, pass.

    Raises:
        Forbidden: it is an agent, and this is another's attempt or not among its rights.
    """
    if isinstance(caller, Admin):
        return
    if caller.rollout_id != rollout_id or caller.attempt != attempt:
        raise Forbidden(
            f"this key is for attempt {caller.attempt} of rollout {caller.rollout_id}, "
            f"not for attempt {attempt} of rollout {rollout_id}"
        )
    if right not in caller.rights:
        raise Forbidden(f"this key does not allow to {_VERBS[right]}")


_VERBS = {Right.CALL: "call models", Right.EVENT: "post events", Right.REWARD: "post rewards"}


async def any_caller(request: Request) -> Caller:
    """FastAPI dependency: the caller, admin or agent."""
    return request.app.state.gateway.access.caller(dict(request.scope["headers"]))


async def admin_only(request: Request) -> None:
    """FastAPI dependency: let only the admin pass."""
    if not isinstance(await any_caller(request), Admin):
        raise Forbidden("an agent's key can't be used here")


def _credential(headers: Mapping[bytes, bytes]) -> str:
    authorization = headers.get(b"authorization", b"")
    if authorization[:7].lower() == b"bearer ":
        return authorization[7:].decode("latin-1").strip()
    return headers.get(b"x-api-key", b"").decode("latin-1").strip()


__all__ = ["Access", "Caller", "CredentialRefused", "Forbidden", "admin_only", "allow", "any_caller"]
