#!/usr/bin/env python3
r"""Tiny Hugging Face folders for the tests, written by the libraries themselves.

    python -m venv .venv-huggingface && . .venv-huggingface/bin/activate
    pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    pip install transformers==5.24.0 tokenizers==0.23.3 compressed-tensors==0.20.0 \
        bitsandbytes==0.50.2 torchao==0.18.0 accelerate==1.15.0 safetensors==0.8.0 numpy==2.4.6
    pip install --no-deps gptqmodel==7.7.0 logbar tokenicer device-smi pypcre threadpoolctl dill \
        defuser protobuf pillow requests urllib3 certifi charset-normalizer
    python scripts/make_huggingface_folders.py [--output FOLDER] [NAME ...]

It writes ``tests/data/huggingface/NAME/`` for each NAME, for all of them without one. CI does not
install the libraries: the folders are committed, and the script is run by hand. Weights are random
with a fixed seed: the same versions write the same bytes (safetensors writes torchao's metadata in
any order).

Files of each folder, beside the ones of the library:

* ``expected.npz``: ``tokens`` int32 [24]; ``logits`` float32 [24, vocabulary], by the forward of
  transformers in float32 on the CPU with eager attention, from dequantized weights; for formats
  that quantize activations also ``logits_quantized``, by the library's own quantized forward.
  LongRoPE: ``long_tokens`` int32 [40] and ``logits_long``, beyond the first context.
  Models with experts: ``routed_tokens`` int32 [200] and ``experts`` int32 [blocks with experts,
  200, top], the experts of each token, the one with the largest weight first.
* ``expected.json``: versions, and below ``tensors`` the shape and SHA-256 of each dequantized
  tensor as little-endian float32, under the name in the folder (``NAME.weight`` for a packed NAME).
  The library dequantizes with scales that are widened to float32 first. Where its own
  dequantization, in the type of the scales, is rounded, ``rounded`` has that type and the SHA-256
  of its result.
* ``config_4x.json`` (llama, gemma3): the same configuration as transformers 4 spells it.
* ``tokens.json`` (llama, gemma3), by ``AutoTokenizer``: texts with their tokens, with and without
  special tokens, and the decoded tokens; conversations with the text and the tokens of the chat
  template, with and without the prompt of an answer.

The modules of ``scripts/huggingface_folders`` write the folders, one module for each family.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from huggingface_folders import (  # noqa: E402
    architectures,
    bits_and_bytes,
    compressed,
    fine_grained_fp8,
    gptq,
    torch_ao,
)

FAMILIES = (architectures, compressed, bits_and_bytes, torch_ao, fine_grained_fp8, gptq)
"""Modules with a table ``FOLDERS``: the function that writes the folder of each name."""


def main() -> None:
    """Write the folders whose names are arguments, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=lambda path: Path(path).resolve(), default=ROOT / "tests/data/huggingface"
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    os.environ["TQDM_DISABLE"] = "1"
    writers: dict[str, Callable[[Path], None]] = {}
    for family in FAMILIES:
        writers.update(family.FOLDERS)
    unknown = set(arguments.names) - set(writers)
    if unknown:
        parser.error(f"no folder {', '.join(sorted(unknown))}; there are {', '.join(writers)}")
    for name in arguments.names or writers:
        folder = arguments.output / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        writers[name](folder)
        for path in folder.iterdir():
            path.chmod(0o644)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{name}: {size / 1000:.0f} KB", flush=True)


if __name__ == "__main__":
    main()
