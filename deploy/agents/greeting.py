"""The smallest agent: `python greeting.py` asks the model to greet `NAME` and is rewarded if the answer is not empty.

As a class it is `greeting.Greeting`. It uses nothing but the standard library and the three variables that every agent
is given.
"""

import json
import os
import urllib.request


class Greeting:
    """One question, one reward."""

    def run(self) -> None:
        question = {"role": "user", "content": f"Greet {os.environ.get('NAME', 'the world')}."}
        answer = post(f"{os.environ['AGL_OPENAI_BASE_URL']}/chat/completions", {"model": "any", "messages": [question]})
        said = answer["choices"][0]["message"]["content"]
        post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "data": {"value": float(bool(said))}})


def post(url: str, body: dict) -> dict:
    """Send JSON with the agent's key, and read JSON back."""
    headers = {"Authorization": f"Bearer {os.environ['AGL_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)


if __name__ == "__main__":
    Greeting().run()
