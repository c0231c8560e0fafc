"""A stand-in for a model server: Chat Completions with made-up tokens, after half a second.

Invariant: no two answers have the same id, so whoever sees one twice knows that it was recorded or given twice.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import uvicorn
from fastapi import FastAPI

PROMPT = list(range(100, 116))
ANSWER = list(range(200, 208))
SECONDS = 0.5


app = FastAPI()


@app.post("/v1/chat/completions")
async def chat(body: dict[str, Any]) -> dict[str, Any]:
    """Answer after a pause, with token ids and log probs as vLLM gives them."""
    await asyncio.sleep(SECONDS)
    log_probs = [{"token": f"t{token}", "logprob": -0.25, "bytes": None, "top_logprobs": []} for token in ANSWER]
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "prompt_token_ids": PROMPT,
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": "hello"},
            "token_ids": ANSWER,
            "logprobs": {"content": log_probs},
            "finish_reason": "stop",
        }],
        "usage": {
            "prompt_tokens": len(PROMPT),
            "completion_tokens": len(ANSWER),
            "total_tokens": len(PROMPT) + len(ANSWER),
        },
    }  # fmt: skip


if __name__ == "__main__":
    uvicorn.run(app, host="0.0.0.0", port=8000, access_log=False)
