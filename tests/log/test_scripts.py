"""Scripts go out together, come back each to its own, and touch only the keys that they name."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from leyden import log as log_package
from leyden.log import Log, RunLog, scripts
from leyden.log.errors import LogUnavailable
from leyden.processes import free_port
from leyden.redis_server import find_server
from leyden.schemas import NewRollout, State
from tests.log.tour import tour

FOLDER = Path(log_package.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.lua") if not path.stem.endswith(".part"))


async def test_the_tour_runs_every_script_and_each_touches_only_the_keys_it_declares(
    log: Log, redis: Redis, monkeypatch: pytest.MonkeyPatch
):
    by_sha = {scripts.script(name).sha: name for name in NAMES}
    ran: set[str] = set()
    async with redis.monitor() as monitor:
        touring = asyncio.create_task(tour(log))
        declared: set[str] = set()
        while True:
            try:
                line = (await asyncio.wait_for(monitor.next_command(), 0.3))["command"]
            except TimeoutError:
                if touring.done():
                    break
                continue
            words = line.split(" ")
            if words[0].upper() == "EVALSHA":
                ran.add(by_sha.get(words[1], words[1]))
                declared = set(words[3 : 3 + int(words[2])])
            elif words[0].upper() == "SCRIPT":
                continue
            else:
                touched = [word for word in words[1:4] if word.startswith("leyden:")]
                if touched and words[0].upper() not in ("XREAD", "XREADGROUP"):
                    assert declared >= set(touched) or words[0].upper() in READS, (words, declared)
    await touring
    assert ran == set(NAMES)


READS = {"HMGET", "HGET", "XRANGE", "XREVRANGE", "ZRANGE", "ZRANGEBYSCORE", "XAUTOCLAIM", "HGETALL", "ZCARD"}
"""What Python itself sends between scripts."""


@pytest.mark.parametrize("name", [path.name for path in FOLDER.glob("*.lua")])
def test_a_script_names_no_key_and_says_what_it_takes_and_gives(name: str):
    text = (FOLDER / name).read_text()
    assert "leyden:" not in text
    called = re.findall(r"redis\.p?call\('([A-Z]+)'(?:, '[A-Z]+')?, ([^,)]+)", text)
    own = re.findall(r"local function \w+\(([^)]*)\)", text)
    parameters = {word.strip() for words in own for word in words.split(",")} | {"key", "set[state]"}
    for command, key in called:
        if command != "TIME":
            assert re.search(r"^KEYS\[|^was == .* and KEYS\[|^state == .* and KEYS\[", key) or key in parameters, (
                command
            )
    if not name.endswith(".part.lua"):
        assert text.startswith("#!lua")
        assert "\n-- ->  " in text


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in cluster mode that has all the slots."""
    port = free_port()
    folder = str(tmp_path_factory.mktemp("cluster"))
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--cluster-enabled", "yes", "--save", ""]
    # By default the bus is 10,000 above, which may be no port.
    options += ["--cluster-port", str(free_port())]
    process = subprocess.Popen([find_server(), *options], stdout=subprocess.DEVNULL)
    client = BlockingRedis(port=port, retry=Retry(ConstantBackoff(0.1), 100))
    try:
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        deadline = time.monotonic() + 30
        while client.cluster("INFO")["cluster_state"] != "ok" and time.monotonic() < deadline:
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        client.close()
        process.kill()
        process.wait()


async def test_no_script_crosses_slots_of_a_cluster(cluster: str):
    log = Log.connect(cluster)
    try:
        await tour(log)
    finally:
        await log.close()


async def test_concurrent_scripts_share_round_trips(run: RunLog, redis: Redis):
    before = (await redis.info("stats"))["total_reads_processed"]
    await run.rollouts.create_many(NewRollout(input=None, rollout_id=f"r{n}") for n in range(300))
    assert (await redis.info("stats"))["total_reads_processed"] - before < 100


async def test_an_error_of_one_script_is_not_another_s(log: Log, run: RunLog, wire: Redis):
    await wire.set("leyden:wrong", "not a hash")
    good = [log._scripts.run("claim_id", [f"leyden:index:{n}"], ["run", "nonce"]) for n in range(3)]
    bad = log._scripts.run("claim_id", ["leyden:wrong"], ["run", "nonce"])
    unsendable = log._scripts.run("claim_id", ["leyden:index:x"], ["\ud800", "nonce"])

    *claimed, wrong, half = await asyncio.gather(*good, bad, unsendable, return_exceptions=True)

    assert claimed == [[b"run", b"nonce"]] * 3
    assert isinstance(wrong, ResponseError)
    assert "claim_id.lua" in str(wrong)
    assert "WRONGTYPE" in str(wrong)
    assert isinstance(half, UnicodeEncodeError)


async def test_a_server_that_forgot_the_scripts_is_taught_them(log: Log, run: RunLog, redis: Redis):
    await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
    await redis.script_flush()
    await asyncio.gather(*(run.events.append("a", "0", "note", {"n": n}) for n in range(20)))
    assert [event.data["n"] for event in await run.events.of_attempt("a")] == list(range(20))


async def test_a_server_that_forgets_at_once_is_unavailable(
    log: Log, run: RunLog, redis: Redis, monkeypatch: pytest.MonkeyPatch
):
    through = log._scripts._pipe.ask

    async def forgetful(*command):
        await redis.script_flush()
        return await through(*command)

    monkeypatch.setattr(log._scripts._pipe, "ask", forgetful)
    with pytest.raises(LogUnavailable, match=r"forgets set_pause\.lua"):
        await run.pause.pause()


async def test_a_script_may_be_asked_for_again_by_one_who_was_cancelled(run: RunLog):
    await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
    ending = asyncio.create_task(run.rollouts.end("a", State.SUCCEEDED))
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    assert await run.rollouts.end("a", State.SUCCEEDED) == 1


async def test_nobody_waits_for_a_script_that_will_not_run_any_more(log: Log, run: RunLog, redis: Redis):
    await redis.client_pause(300)
    waiting = [asyncio.create_task(run.pause.state()) for _ in range(3)]
    await asyncio.sleep(0.02)
    # The retries are what a lost connection gets; a closed log has none that come back sooner.
    await log._scripts.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert len(outcomes) == 3
    assert (await run.pause.state()).paused is False
