"""What the demo's tiny model must be for its calls to merge into trajectories and for vLLM to serve it."""

import json

import pytest
from examples.models import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.verl  # needs transformers and torch

CHARACTERS = tiny.tokenizer()
SAMPLED = st.lists(
    st.integers(0, len(CHARACTERS) - 1).filter(lambda token: token != CHARACTERS.eos_token_id), max_size=24
)


def prompt(messages: list[dict[str, str]]) -> list[int]:
    text = CHARACTERS.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return CHARACTERS(str(text)).input_ids


@given(first=SAMPLED, second=SAMPLED, feedback=st.text(max_size=12))
@settings(max_examples=200, deadline=None)
def test_the_next_prompt_starts_with_the_previous_prompt_and_whatever_was_sampled(first, second, feedback):
    messages = [{"role": "user", "content": "write digits"}]
    before = prompt(messages)
    for sampled in (first, second):
        answer = CHARACTERS.decode(sampled, skip_special_tokens=True)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": feedback}]
        after = prompt(messages)
        assert after[: len(before) + len(sampled) + 1] == [*before, *sampled, CHARACTERS.eos_token_id]
        before = after


def test_every_id_that_can_be_sampled_has_a_text_and_head_dim_is_one_that_vllm_serves(tmp_path):
    assert tiny.make(tmp_path / "tiny")
    config = json.loads((tmp_path / "tiny" / "config.json").read_text())

    assert config["vocab_size"] == len(CHARACTERS)
    assert config["hidden_size"] // config["num_attention_heads"] == 32


def test_making_it_again_changes_nothing_and_another_folder_gets_the_same_weights(tmp_path):
    assert tiny.make(tmp_path / "one")
    assert not tiny.make(tmp_path / "one")
    assert tiny.make(tmp_path / "two")

    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert weights[0] == weights[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
