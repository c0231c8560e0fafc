"""An agent as users write them: asks a model twice, reports a reward; knows nothing but its environment variables.

The reward is the share of letters and spaces in its answers, which a tiny model learns within a few steps. A task may
say `fail` (exit 1), or `turns`.
"""

import json
import os
import sys
import urllib.request


def post(url: str, body: dict) -> dict:
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['AGL_KEY']}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read())


def main() -> int:
    task = json.loads(os.environ["TASK"])
    if task.get("fail"):
        sys.stderr.write("this task fails\n")
        return 1
    messages = [{"role": "user", "content": task["question"]}]
    said = ""
    for _ in range(task.get("turns", 2)):
        answer = post(
            f"{os.environ['AGL_OPENAI_BASE_URL']}/chat/completions",
            {"model": "any", "messages": messages, "max_tokens": 12},
        )
        text = answer["choices"][0]["message"]["content"] or ""
        said += text
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
    score = sum(c.isascii() and (c.isalpha() or c == " ") for c in said) / max(len(said), 1)
    post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "data": {"value": score}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
