"""What an agent's process is told about its model, its log and its key, as environment variables."""

from __future__ import annotations

OWN_VARIABLES = frozenset({"AGL_OPENAI_BASE_URL", "AGL_EVENT_URL", "AGL_KEY"})
"""Those that a rollout may not set itself. The providers' own it may: some agents ask another provider, too."""

AGENT_VARIABLES = (
    "AGL_OPENAI_BASE_URL",
    "AGL_EVENT_URL",
    "AGL_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_API_KEY",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_API_KEY",
)


def agent_variables(agent_url: str, rollout_id: str, attempt: str, *, is_train: bool, key: str) -> dict[str, str]:
    """The variables of one attempt.

    `agent_url` is the gateway as agents reach it, without a trailing path; `key` is the credential they present. The
    providers' own variables are set too, so that a program that reads only those needs no change.
    """
    base = agent_url.rstrip("/")
    mode = "train" if is_train else "val"
    proxy = f"{base}/proxy/rollout/{rollout_id}/attempt/{attempt}/mode/{mode}"
    return {
        "AGL_OPENAI_BASE_URL": f"{proxy}/openai/v1",
        "AGL_EVENT_URL": f"{base}/api/rollouts/{rollout_id}/attempt/{attempt}/events",
        "AGL_KEY": key,
        "OPENAI_BASE_URL": f"{proxy}/openai/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": f"{proxy}/anthropic",
        "ANTHROPIC_API_KEY": key,
    }
