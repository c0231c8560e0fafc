"""An OpenAI server with vLLM's development endpoints, on torch, for tests: `python tiny_server.py MODEL_DIR PORT`.

Answers Chat Completions as vLLM does with `return_token_ids` and `logprobs`; `/pause`, `/collective_rpc`
(`reload_weights`), `/reset_prefix_cache` and `/resume` behave as vLLM's do, as far as a trainer can tell.
"""

import sys
import threading
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer


class TinyEngine:
    """One request at a time, no cache; refuses to sample while paused, as a trainer's mistake would show."""

    def __init__(self, directory: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.lock = threading.Lock()
        self.paused = False
        self.reloads = 0

    def sample(self, prompt: list[int], max_tokens: int, temperature: float) -> tuple[list[int], list[float]]:
        ids, log_probs = torch.tensor([prompt]), []
        with self.lock, torch.no_grad():
            for _ in range(max_tokens):
                logits = self.model(ids).logits[0, -1] / max(temperature, 1e-6)
                distribution = logits.log_softmax(-1)
                token = int(torch.multinomial(distribution.exp(), 1)) if temperature > 0 else int(logits.argmax())
                log_probs.append(float(distribution[token]))
                ids = torch.cat([ids, torch.tensor([[token]])], dim=1)
                if token == self.tokenizer.eos_token_id:
                    break
        return ids[0, len(prompt) :].tolist(), log_probs

    def reload(self, directory: str) -> None:
        with self.lock:
            self.model.load_state_dict(load_file(Path(directory) / "model.safetensors"))
            self.reloads += 1


def build_app(engine: TinyEngine) -> FastAPI:
    app = FastAPI()

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"paused": engine.paused, "reloads": engine.reloads}

    @app.post("/v1/chat/completions")
    def chat(body: dict[str, Any]) -> dict[str, Any]:
        if engine.paused:
            raise HTTPException(500, "asked to sample while paused")
        prompt = engine.tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        budget = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        tokens, log_probs = engine.sample(list(prompt), budget, body.get("temperature", 1.0))
        finished = tokens[-1] == engine.tokenizer.eos_token_id
        return {
            "id": "chatcmpl-tiny",
            "object": "chat.completion",
            "created": 0,
            "model": body.get("model"),
            "prompt_token_ids": list(prompt),
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": engine.tokenizer.decode(tokens, skip_special_tokens=True),
                    },
                    "finish_reason": "stop" if finished else "length",
                    "token_ids": tokens,
                    "logprobs": {
                        "content": [{"token": "", "logprob": value, "top_logprobs": []} for value in log_probs]
                    },
                }
            ],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(tokens),
                "total_tokens": len(prompt) + len(tokens),
            },
        }

    @app.post("/pause")
    def pause(mode: str = "abort") -> dict[str, str]:
        engine.paused = True
        return {"status": "paused"}

    @app.post("/resume")
    def resume() -> dict[str, str]:
        engine.paused = False
        return {"status": "resumed"}

    @app.post("/collective_rpc")
    def collective_rpc(body: dict[str, Any]) -> dict[str, Any]:
        if body["method"] != "reload_weights":
            raise HTTPException(400, f"no method {body['method']}")
        engine.reload(body["kwargs"]["weights_path"])
        return {"results": [None]}

    @app.post("/reset_prefix_cache")
    def reset_prefix_cache() -> dict[str, bool]:
        return {"success": True}

    return app


if __name__ == "__main__":
    torch.set_num_threads(1)
    uvicorn.run(build_app(TinyEngine(sys.argv[1])), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
