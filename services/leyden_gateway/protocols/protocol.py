"""What a protocol is to the gateway: how an agent's request becomes an upstream one, and an answer goes back.

A call is the same whatever the agent speaks: its upstream form is a chat completion or a completion with token ids and
log probs, and that form is what is recorded. A protocol translates at the edge and knows nothing of the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

JSON = dict[str, Any]
"""A decoded JSON object."""


class Assembly(Protocol):
    """Puts the chunks of an upstream stream together into the response that the same call gives unstreamed."""

    @property
    def finished(self) -> bool:
        """Whether every choice has its finish reason."""
        ...

    def feed(self, chunk: JSON) -> None:
        """Take one chunk.

        Raises:
            Malformed: the chunk does not have the shape of one.
        """
        ...

    def response(self) -> JSON:
        """What has arrived so far, in the shape of an unstreamed response."""
        ...


class Relay(Protocol):
    """Turns upstream chunks into what the agent sees of them, and keeps back whatever makes an answer look complete."""

    def feed(self, chunk: JSON) -> bytes:
        """What may be sent now; chunks that finish a choice, and all that follows the last one, stay behind."""
        ...

    def finish(self) -> bytes:
        """What stayed behind and the end marker; to be sent once the call is on record."""
        ...


class Malformed(ValueError):
    """An upstream answer does not have the shape of one; the message says what is wrong with it."""


class AgentError(ValueError):
    """The agent's request can't be forwarded; the message names what is wrong with it.

    `param` is the parameter at fault and `code` the provider's name of the fault, for protocols whose errors say so.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


Wanted = Callable[[JSON], bool]
"""Whether the data of a recorded call is that of the call which is looked for."""

Recall = Callable[[Wanted], Awaitable[JSON | None]]
"""Finds the latest recorded call of the same attempt that is wanted: its event's data, or None."""


class ModelProtocol(Protocol):
    """One protocol of model calls."""

    path: str
    """Where agents call it, after `…/mode/{mode}/`."""
    upstream_path: str
    """Where it goes, after the endpoint's `/v1`."""
    keep_alive: bytes
    """What is sent on a stream after a silence."""

    def for_call(self) -> ModelProtocol:
        """What serves one call: itself, unless the protocol must remember something between request and answer."""
        ...

    async def prepare(self, asked: JSON, recall: Recall) -> None:
        """Look up what the request refers to; called once, before everything below.

        Raises:
            AgentError: it refers to what is not there.
        """
        ...

    def original(self, asked: JSON) -> JSON:
        """What goes on record of the agent's own request because its upstream form does not hold it; may be empty."""
        ...

    def restore(self, call: JSON) -> None:
        """Take from a recorded call (its event's data) what its answer must be given again with."""
        ...

    def upstream_body(self, asked: JSON) -> JSON:
        """The upstream request for what the agent asked, before the run's sampling rules; `asked` is not changed.

        Raises:
            AgentError: the request has no upstream form.
        """
        ...

    def capture(self, body: JSON, *, log_probs: bool, routed_experts: bool) -> None:
        """Make upstream report what is recorded: token ids always, the rest as the run says. Changes `body`."""
        ...

    def check(self, response: JSON, body: JSON) -> None:
        """Refuse a response that only looks like an answer.

        Raises:
            Malformed: no choices, an error inside, token ids that are not integers, or a log prob count that differs
                from the token count. A response without any ids is not malformed: not every server reports them.
        """
        ...

    def answer(self, response: JSON, asked: JSON) -> JSON:
        """What the agent gets: `response` without what it did not ask for. `response` is not changed."""
        ...

    def assembly(self) -> Assembly: ...

    def relay(self, asked: JSON) -> Relay: ...

    def replay(self, response: JSON, asked: JSON) -> bytes:
        """A whole recorded response as the stream that the agent asked for, end marker included."""
        ...

    def problem(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> JSON:
        """An error body in the protocol's own shape, with the contract's `detail`."""
        ...

    def refusal(self, status: int, response: JSON) -> JSON:
        """The upstream's own error body, as the agent gets it. `response` is not changed."""
        ...

    def paused(self, message: str, reason: str | None) -> JSON:
        """The error body of a call that is refused since its run is paused."""
        ...

    def error_event(self, status: int, message: str) -> bytes:
        """What a stream ends with when its call failed after its headers had been sent; never the end marker."""
        ...
