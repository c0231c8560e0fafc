"""What one long rollout takes on record: 50 turns of a conversation that grows to 64k tokens.

    python -m bench.growing_rollout

Each turn sends the whole history again, so the calls together have some thirty times the tokens of the conversation.
The same calls go through each system; what it then holds is asked in every way that makes sense: the process's growth,
the events as JSON, the keys in Redis.

Invariant: what is on record afterwards is exactly what the model server said, turn by turn.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import answers
from bench.answers import MODEL, Sizes
from bench.gateway import RecordDiffers, recorded_since
from bench.machine import Machine
from bench.report import report
from bench.stub_server import Repertoire, StubProtocol
from bench.systems import SYSTEMS, Missing, Setting, System, sampled_in
from leyden.processes import free_port
from leyden.redis_server import find_server

_COMPARED = ["agl-server", "rllm-model-gateway", "leyden"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of the conversation: what the agent sends, and what the model server answers."""

    request: dict[str, Any]
    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """What a system holds of one rollout, in bytes, by where or how that is counted."""

    system: str
    bytes: dict[str, float]


def conversation(turns: int, tokens: int, answer_tokens: int) -> list[Turn]:
    """Turns whose last prompt and answer have `tokens` tokens; each prompt goes on from the prompt and answer before.

    Between an answer and the next prompt stands a tool's result, of as many tokens as are needed to get there.
    """
    added = tokens // turns
    made: list[Turn] = []
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a helpful agent."}]
    ids: list[int] = []
    for turn in range(turns):
        said = answers.answer(Sizes(added - answer_tokens, answer_tokens), seed=turn)
        result = answers.request(Sizes(added - answer_tokens, answer_tokens), seed=turn)["messages"][1]["content"]
        messages = [*messages, {"role": "user", "content": result}]
        ids = ids + said["prompt_token_ids"]
        said["prompt_token_ids"] = ids
        said["usage"] = said["usage"] | {"prompt_tokens": len(ids), "total_tokens": len(ids) + answer_tokens}
        made.append(Turn({"model": MODEL, "messages": messages, "max_tokens": answer_tokens}, said))
        choice = said["choices"][0]
        messages = [*messages, {"role": "assistant", "content": choice["message"]["content"]}]
        ids = ids + choice["token_ids"]
    return made


async def compare(names: Sequence[str], turns: Sequence[Turn], rollouts: int) -> list[Held]:
    """What each system holds of a rollout of these turns, on average over `rollouts`.

    Raises:
        RecordDiffers, NotStarted
    """
    found = []
    for name in names:
        try:
            found.append(await _held(name, turns, rollouts))
        except Missing as missing:
            sys.stderr.write(f"{name} is left out, since it is not installed: {missing}\n")
    return found


async def _held(name: str, turns: Sequence[Turn], rollouts: int) -> Held:
    with tempfile.TemporaryDirectory(prefix="leyden-bench-") as folder:
        async with _model_server(turns) as url:
            # The first rollout warms up: what the process takes once, for good, is not of the record.
            names = [f"growing-{number}" for number in range(rollouts + 1)]
            setting = Setting(url, psutil.Process(), Path(folder), names)
            async with SYSTEMS[name](setting) as system, httpx.AsyncClient(trust_env=False, timeout=300) as client:
                await _play(client, system, 0, turns)
                before = await system.held()
                with Progress(console=Console(stderr=True), transient=True) as progress:
                    for number in progress.track(range(1, rollouts + 1), description=name):
                        await _play(client, system, number, turns)
                await recorded_since(system, 0, len(names) * len(turns))
                after = await system.held()
                await _check(name, system, names, turns)
    return Held(name, {where: (after[where] - before[where]) / rollouts for where in after})


async def _play(client: httpx.AsyncClient, system: System, number: int, turns: Sequence[Turn]) -> None:
    target = system.targets[number]
    headers = {"authorization": f"Bearer {target.credential}"}
    for turn in turns:
        answer = await client.post(f"{system.base_url}{target.path}", json=turn.request, headers=headers)
        answer.raise_for_status()


async def _check(name: str, system: System, rollouts: Sequence[str], turns: Sequence[Turn]) -> None:
    expected = [sampled_in(turn.answer) for turn in turns]
    for rollout in rollouts:
        if sorted(await system.sampled(rollout)) != sorted(expected):
            raise RecordDiffers(f"{name}: what is on record of {rollout} is not what the model server said")


@asynccontextmanager
async def _model_server(turns: Sequence[Turn]) -> AsyncIterator[str]:
    """A model server that says the turns' answers in order, again and again."""
    said = Repertoire.saying([turn.answer for turn in turns])
    port = free_port()
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: StubProtocol(said, 0.0, 0.0), "127.0.0.1", port):
        yield f"http://127.0.0.1:{port}"


def main() -> None:
    options = argparse.ArgumentParser(
        prog="python -m bench.growing_rollout", description=(__doc__ or "").split("\n")[0]
    )
    options.add_argument("--systems", nargs="+", choices=_COMPARED, default=_COMPARED, metavar="SYSTEM")
    options.add_argument("--turns", type=int, default=50)
    options.add_argument("--tokens", type=int, default=64_000, help="of the last prompt and its answer together")
    options.add_argument("--answer-tokens", type=int, default=256)
    options.add_argument("--rollouts", type=int, default=4)
    options.add_argument("--out", type=Path, default=Path("build/bench/growing_rollout.json"))
    given = options.parse_args()
    machine = Machine.here(find_server())
    turns = conversation(given.turns, given.tokens, given.answer_tokens)
    found = asyncio.run(compare(given.systems, turns, given.rollouts))
    shown = _table(found, given.turns, given.tokens)
    report(given.out, machine, {"held": [asdict(each) for each in found]}, shown)


def _table(found: Sequence[Held], turns: int, tokens: int) -> Table:
    table = Table(title=f"one rollout of {turns} turns that grows to {tokens:,} tokens")
    for column in ("system", "counted", "bytes"):
        table.add_column(column, justify="right" if column == "bytes" else "left")
    for each in found:
        for where, size in each.bytes.items():
            table.add_row(each.system, where, f"{size:,.0f}")
    return table


if __name__ == "__main__":
    main()
