"""An agent with two tries: `TASK='{"verifier": …}' python -m examples.two_tries.agent`.

It asks a model for the answer to its task, has the answer checked by the task's verifier, and asks once more, with the
verifier's feedback, if it was wrong. A plain program over the OpenAI SDK: where the model is, it learns from the SDK's
own variables (`OPENAI_BASE_URL`, `OPENAI_API_KEY`); where its reward goes, from `AGL_EVENT_URL` and `AGL_KEY`. Without
`AGL_EVENT_URL` it only prints the reward.
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from examples.two_tries.verifiers import VERIFIERS

SECOND_TRY_IS_WORTH = 0.5
# With the SDK's backoff of up to 8 s, a minute: a gateway that is restarted is back by then.
MAX_RETRIES = 10

Ask = Callable[[list[ChatCompletionMessageParam]], str]


def solve(task: Mapping[str, Any], ask: Ask) -> float:
    """Answer `task` with at most two questions to the model, and return the reward, in [0, 1].

    A right answer at the first try earns 1. Otherwise the better of the first score and half of the second counts.
    """
    verify = VERIFIERS[task["verifier"]]
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": task["instructions"]},
        {"role": "user", "content": task["question"]},
    ]
    answer = ask(messages)
    first = verify(task, answer)
    if first.right:
        return first.score
    messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": first.feedback})
    second = verify(task, ask(messages))
    return max(first.score, SECOND_TRY_IS_WORTH * second.score)


def model(client: OpenAI, max_tokens: int) -> Ask:
    """The model behind `client`; each of its answers has at most `max_tokens` tokens."""

    def ask(messages: list[ChatCompletionMessageParam]) -> str:
        name = os.environ.get("OPENAI_MODEL", "default")
        completion = client.chat.completions.create(model=name, messages=messages, max_tokens=max_tokens)
        return completion.choices[0].message.content or ""

    return ask


def report(client: OpenAI, reward: float) -> None:
    """Post the reward to `AGL_EVENT_URL`. Posting it twice does no harm: the last one counts."""
    client.post(
        os.environ["AGL_EVENT_URL"],
        body={"event_type": "reward", "data": {"value": reward}},
        options={"headers": {"Authorization": f"Bearer {os.environ['AGL_KEY']}"}},
        cast_to=object,
    )


def main() -> None:
    task = json.loads(os.environ["TASK"])
    client = OpenAI(max_retries=MAX_RETRIES)
    reward = solve(task, model(client, task["max_tokens"]))
    if "AGL_EVENT_URL" in os.environ:
        report(client, reward)
    print(f"{task['data_id']}: reward {reward:.3f}")  # noqa: T201


if __name__ == "__main__":
    main()
