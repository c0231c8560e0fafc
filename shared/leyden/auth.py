"""Who may do what: the admin key, and signed tokens for one attempt each.

Invariants:
- an agent's token names its rollout, the rollout's creation nonce and its attempt, so it is worth nothing elsewhere or
  for a rollout created again under the same id;
- a token can't be turned into the admin key: it is signed by a key derived from it;
- credentials are compared in constant time and never appear in an error;
- a token that was checked once is known again without its signature being computed anew: tokens don't expire.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import jwt

_ALGORITHM = "HS256"
_ISSUER = "leyden"
_KNOWN_TOKENS = 32768


class Right(StrEnum):
    """What an agent's token allows on its own attempt."""

    CALL = "call"
    EVENT = "event"
    REWARD = "reward"


AGENT_RIGHTS = frozenset(Right)


class CredentialRefused(PermissionError):
    """The credential is missing, malformed, or not signed by this deployment's key."""


@dataclass(frozen=True, slots=True)
class Admin:
    """The holder of the deployment's key: may do everything and is never fenced."""


@dataclass(frozen=True, slots=True)
class AgentClaims:
    """What an agent's token says: it may use `rights` on one attempt of one rollout."""

    rollout_id: str
    nonce: str
    attempt: str
    rights: frozenset[Right] = AGENT_RIGHTS


class Authority:
    """Mints and checks credentials. An empty admin key switches the checks off: everyone is admin."""

    def __init__(self, admin_key: str) -> None:
        self._admin_key = admin_key.encode()
        self._signing_key = hmac.digest(self._admin_key, b"leyden agent tokens", hashlib.sha256)
        self._claims = lru_cache(maxsize=_KNOWN_TOKENS)(self._claims_of)

    @property
    def open(self) -> bool:
        """Whether checks are off."""
        return not self._admin_key

    def mint(self, claims: AgentClaims) -> str:
        """A token for an agent; with checks off it is signed by the empty key and still identifies its attempt."""
        payload = {
            "iss": _ISSUER,
            "sub": claims.rollout_id,
            "nonce": claims.nonce,
            "attempt": claims.attempt,
            "rights": sorted(claims.rights),
        }
        return jwt.encode(payload, self._signing_key, algorithm=_ALGORITHM)

    def check(self, credential: str) -> Admin | AgentClaims:
        """Whose credential this is.

        Raises:
            CredentialRefused: it is neither the admin key nor a token signed by this authority.
        """
        if self._admin_key and hmac.compare_digest(credential.encode(errors="replace"), self._admin_key):
            return Admin()
        try:
            return self._claims(credential)
        except (jwt.InvalidTokenError, ValueError, TypeError) as error:
            if self.open:
                return Admin()
            raise CredentialRefused("Invalid or missing API key") from error

    def _claims_of(self, token: str) -> AgentClaims:
        payload = jwt.decode(
            token,
            self._signing_key,
            algorithms=[_ALGORITHM],
            issuer=_ISSUER,
            options={"require": ["iss", "sub", "nonce", "attempt", "rights"]},
        )
        return AgentClaims(
            rollout_id=payload["sub"],
            nonce=payload["nonce"],
            attempt=payload["attempt"],
            rights=frozenset(Right(right) for right in payload["rights"]),
        )
