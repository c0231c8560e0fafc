"""An agent of the standard library alone: asks a few times, then reports a reward. It retries as provider SDKs do."""

import json
import os
import sys
import time
import urllib.error
import urllib.request

CALLS = 3


def post(url: str, body: dict, seconds: float = 60) -> dict:
    deadline = time.monotonic() + seconds
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['AGL_KEY']}"}
    while True:
        try:
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 502, 503, 504) or time.monotonic() > deadline:
                sys.exit(f"{url}: {error.code} {error.read()[:300]!r}")
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"{url}: {error}")
        time.sleep(0.2)


messages = [{"role": "user", "content": os.environ["QUESTION"]}]
for turn in range(CALLS):
    answer = post(os.environ["AGL_OPENAI_BASE_URL"] + "/chat/completions", {"model": "any", "messages": messages})
    said = answer["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"again {turn}"}]
    time.sleep(0.1)
post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "event_id": "score", "data": {"value": len(messages) / 10}})
