"""The kinds of inputs, the inputs of a run, and the case of each."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterator

from . import (
    artifact_kinds,
    checkpoint_kinds,
    command_kinds,
    model_kinds,
    module_kinds,
    weight_kinds,
)
from .case import Case, MakeCase
from .corpus import Corpus

KINDS: dict[str, tuple[int, MakeCase]] = {
    "text": (26, module_kinds.text),
    "bytecode": (10, module_kinds.bytecode),
    "nesting": (10, module_kinds.nesting),
    "pipelines": (12, module_kinds.pipelines),
    "attributes": (10, module_kinds.attributes),
    "literals": (6, command_kinds.literals),
    "npy": (6, weight_kinds.npy),
    "safetensors": (5, weight_kinds.safetensors),
    "folders": (3, weight_kinds.folders),
    "checkpoints": (6, checkpoint_kinds.checkpoints),
    "gguf": (5, weight_kinds.gguf),
    "tflite": (8, model_kinds.tflite),
    "onnx": (8, model_kinds.onnx),
    "artifacts": (8, artifact_kinds.artifacts),
    "jax": (8, artifact_kinds.jax),
    "irpa": (4, weight_kinds.irpa),
    "values": (2, weight_kinds.values),
    "signatures": (3, command_kinds.signatures),
    "executables": (3, command_kinds.executables),
    "options": (5, command_kinds.options),
    "onnx_pieces": (0, functools.partial(command_kinds.piece_case, "onnx")),
    "tflite_pieces": (0, functools.partial(command_kinds.piece_case, "tflite")),
    "gguf_pieces": (0, functools.partial(command_kinds.piece_case, "gguf")),
    "checkpoint_pieces": (0, functools.partial(command_kinds.piece_case, "checkpoints")),
    "checkpoint_programs": (0, checkpoint_kinds.checkpoint_programs),
    "checkpoint_answers": (0, checkpoint_kinds.checkpoint_answers),
    "kills": (0, command_kinds.kills),
}
"""The share of each kind in a run (0: only on request by ``--kinds``), and its function.

The order decides between kinds whose shares are equally due.
"""


def make_case(seed: int, name: str, number: int, corpus: Corpus) -> Case:
    """Return the input of a kind, a seed and a number."""
    return KINDS[name][1](random.Random(f"{seed} {name} {number}"), corpus)


def numbers_of(kinds: list[str], count: int) -> Iterator[tuple[str, int]]:
    """Kinds in turn by their shares, each with its next number."""
    fractions = {name: KINDS[name][0] for name in kinds}
    if not any(fractions.values()):
        fractions = dict.fromkeys(kinds, 1)
    total, counts = sum(fractions.values()), Counter[str]()
    for position in range(count):
        name = max(kinds, key=lambda n: fractions[n] * (position + 1) / total - counts[n])
        yield name, counts[name]
        counts[name] += 1


def inputs_of(kinds: list[str], first: int, count: int) -> list[tuple[str, int]]:
    """Return `count` inputs of a run, from its input `first` on."""
    return list(numbers_of(kinds, first + count))[first:]
