"""An agent that asks four questions, and posts which answers it saw, and a reward.

It uses the standard library alone, so that many start at once on a small machine. What fails on the platform's side it
asks again with the same `Idempotency-Key`, as SDKs do.
"""

import http.client
import json
import os
import time
import urllib.error
import urllib.request
import uuid

QUESTIONS = 4
TRY_SECONDS = 120
"""Longer than any part of the platform takes to come back."""
PAUSE_SECONDS = 0.5


def main() -> None:
    url = f"{os.environ['AGL_OPENAI_BASE_URL']}/chat/completions"
    seen = []
    for number in range(QUESTIONS):
        question = {"role": "user", "content": f"Question {number}"}
        seen.append(post(url, {"model": "any", "messages": [question]})["id"])
    post(os.environ["AGL_EVENT_URL"], {"event_type": "seen", "data": {"answers": seen}})
    post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "data": {"value": 1.0}})


def post(url: str, body: dict) -> dict:
    headers = {
        "Authorization": f"Bearer {os.environ['AGL_KEY']}",
        "Content-Type": "application/json",
        "Idempotency-Key": str(uuid.uuid4()),
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    deadline = time.monotonic() + TRY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=TRY_SECONDS) as response:
                return json.load(response)
        except (OSError, http.client.HTTPException) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
            if refused or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
