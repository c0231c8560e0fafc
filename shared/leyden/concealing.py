"""Keeps keys, tokens and passwords out of what is written down.

Invariant: whatever is passed to a logger, in whichever field and however deep, no line that comes out holds a secret
that the process was given, nor anything that looks like a credential.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

HIDDEN = "***"

_CREDENTIALS = (
    (re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]*"), HIDDEN),
    (re.compile(r"((?i:bearer|basic) )[^\s\"\\]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(\w+://[^:/@\s\"]*):[^@/\s\"]+@"), rf"\1:{HIDDEN}@"),
    (re.compile(r"([?&](?i:[\w-]*key|token|access_token|password)=)[^&\s\"\\]+"), rf"\1{HIDDEN}"),
    (re.compile(r"((?i:x-api-key)\W{1,8})[\w.+/=-]+"), rf"\1{HIDDEN}"),
)
"""What credentials look like: signed tokens, headers, passwords in URLs, keys in queries."""


_KEY_FLAGS = frozenset({"--key", "--leyden-key", "--agl-key", "--LEYDEN_KEY", "--AGL_KEY"})


class KeyInSight(ValueError):
    """A key stands where others can read it; the message does not repeat it."""


class Concealer:
    """Hides secrets in text; also the last processor of a structlog chain, over the rendered line."""

    def __init__(self, *secrets: str) -> None:
        forms = {form for secret in secrets if secret for form in (secret, json.dumps(secret)[1:-1], quote(secret, ""))}
        # The longest first: one secret may be the beginning of another.
        self._forms = sorted(forms, key=len, reverse=True)

    def conceal(self, text: str) -> str:
        """The text without secrets."""
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        for pattern, instead in _CREDENTIALS:
            text = pattern.sub(instead, text)
        return text

    def __call__(self, _logger: Any, _method: str, line: Any) -> Any:
        return self.conceal(line) if isinstance(line, str) else line


def refuse_keys_on(arguments: Sequence[str]) -> None:
    """Let no key be given on a command line, which everyone on the machine can read.

    Raises:
        KeyInSight: there is one among the arguments.
    """
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag in _KEY_FLAGS:
            raise KeyInSight(f"{flag}: everyone on this machine can read a command line; set LEYDEN_KEY instead")


def password_of(url: str) -> str:
    """The password in a URL, "" if there is none or the URL is none."""
    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return ""


def without_credentials(url: str) -> str:
    """The URL without a user and password, for whoever may not know them."""
    if "@" not in url:
        return url
    address = urlsplit(url)
    return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
