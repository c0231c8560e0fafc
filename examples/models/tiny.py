"""A random Qwen2 of 95,000 parameters that serves and trains in seconds: `python -m examples.models.tiny FOLDER`.

Invariants:
- the same seed gives the same weights;
- one printable ASCII character or newline is one token, and the only special token ends a turn. So whatever the model
  samples reads back as the very tokens that were sampled, and a conversation's next prompt starts with the previous
  prompt and answer: its calls merge into one trajectory;
- head_dim is 32, which vLLM's CPU attention takes (it refuses 16 at the first request, not at the start).
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from examples.models.folder import make_once

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END, END_ID = "<end>", 0
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
CONTEXT_LENGTH = 512


def make(folder: Path, *, seed: int = 0) -> bool:
    """Put the model into `folder` unless it is there. Return whether it was made now."""
    return make_once(folder, lambda partial: _fill(partial, seed))


def tokenizer() -> "PreTrainedTokenizerFast":
    """A character tokenizer over printable ASCII; any other character becomes `?`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = ["\n", *map(chr, range(ord(" "), ord("~") + 1))]
    vocabulary = {END: END_ID} | {character: index for index, character in enumerate(characters, 1)}
    by_character = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="?"))
    by_character.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    by_character.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=by_character,
        eos_token=END,
        pad_token=END,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _fill(folder: Path, seed: int) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    characters = tokenizer()
    config = Qwen2Config(
        vocab_size=len(characters),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=False,
        pad_token_id=END_ID,
        eos_token_id=END_ID,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    characters.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a tiny random language model as a Hugging Face folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make(arguments.folder, seed=arguments.seed)


if __name__ == "__main__":
    main()
