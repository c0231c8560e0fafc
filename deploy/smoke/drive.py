"""Creates the smoke test's rollouts, waits for them, and checks that each ran once and all it saw is on record.

`python drive.py create N | wait N | check N`; exits with 1 and says why when something is wrong. The platform may be
restarting meanwhile, so each request is tried until `TRY_SECONDS` are over.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from typing import Any

import httpx

GATEWAY = "http://balancer:8080"
MODEL = {"model": "stand-in", "endpoint": "http://model:8000/v1"}
WAIT_SECONDS = 300
TRY_SECONDS = 60
PAUSE_SECONDS = 0.5


class Platform:
    """The gateway's API, over the load balancer."""

    def __init__(self) -> None:
        headers = {"Authorization": f"Bearer {os.environ['LEYDEN_KEY']}"}
        self._client = httpx.Client(base_url=GATEWAY, headers=headers, timeout=10)

    def ask(self, method: str, path: str, **more: Any) -> Any:
        """The answer's body. Everything that is asked here may be asked again."""
        deadline = time.monotonic() + TRY_SECONDS
        while True:
            try:
                answer = self._client.request(method, path, **more)
                if answer.is_client_error:
                    sys.exit(f"{method} {path}: {answer.status_code} {answer.text}")
                return answer.raise_for_status().json()
            except httpx.HTTPError as error:
                if time.monotonic() > deadline:
                    sys.exit(f"{method} {path}: for {TRY_SECONDS} s no answer: {error}")
                time.sleep(PAUSE_SECONDS)


def ids(count: int) -> list[str]:
    return [f"smoke-{number}" for number in range(count)]


def create(platform: Platform, count: int) -> None:
    local = {"command": ["python", "four_questions.py"]}
    platform.ask("POST", "/api/models", json=[MODEL])
    platform.ask(
        "POST",
        "/api/rollouts",
        json=[{"rollout_id": name, "input": {"data_id": name}, "config": {"local": local}} for name in ids(count)],
    )


def wait(platform: Platform, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while (ended := platform.ask("GET", "/api/rollouts/terminal")["total_terminal"]) < count:
        if time.monotonic() > deadline:
            sys.exit(f"after {WAIT_SECONDS} s {ended} rollouts have ended, not {count}")
        time.sleep(PAUSE_SECONDS)


def check(platform: Platform, count: int) -> None:
    page = platform.ask("GET", "/api/rollouts/terminal", params={"limit": 10 * count})
    states = Counter(item["state"] for item in page["items"])
    faults = [] if states == {"succeeded": count} else [f"of {count} rollouts: {dict(states)}"]
    if sorted(item["rollout_id"] for item in page["items"]) != sorted(ids(count)):
        faults.append("not every rollout ended exactly once")
    attempts: Counter[str] = Counter()
    recorded: Counter[str] = Counter()
    for name in ids(count):
        rollout = platform.ask("GET", f"/api/rollouts/{name}")["rollout"]
        attempts[rollout["status"]["last_attempt_id"]] += 1
        events = platform.ask("GET", f"/api/rollouts/{name}/events")
        calls = [event["data"] for event in events if event["event_type"] == "model_request"]
        answers = [call["response"]["id"] for call in calls if call["status"] == "ok"]
        seen = [answer for event in events if event["event_type"] == "seen" for answer in event["data"]["answers"]]
        rewards = [event["data"]["value"] for event in events if event["event_type"] == "reward"]
        recorded.update(answers)
        if not seen or not set(seen) <= set(answers):
            faults.append(f"{name} saw {seen}, on record are {answers}")
        if len(set(seen)) != len(seen):
            faults.append(f"{name} was given an answer twice: {seen}")
        if set(rewards) != {1.0}:
            faults.append(f"{name} has rewards {rewards}")
    twice = [answer for answer, times in recorded.items() if times > 1]
    if twice:
        faults.append(f"recorded twice: {twice}")
    summary = f"rollouts {dict(states)}, by last attempt {dict(attempts)}, {len(recorded)} answers on record"
    sys.stdout.write("\n".join([*faults, summary]) + "\n")
    if faults:
        sys.exit(1)


if __name__ == "__main__":
    {"create": create, "wait": wait, "check": check}[sys.argv[1]](Platform(), int(sys.argv[2]))
