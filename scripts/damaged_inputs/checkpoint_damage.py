"""Damage to folders of Hugging Face checkpoints: a folder and a change of its files are drawn."""

from __future__ import annotations

import random
from collections.abc import Callable

from .checkpoint_json import (
    CONFIGURATION,
    WEIGHTS,
    Damage,
    Files,
    block_lists,
    configuration,
    folders,
    quantization,
    rope_settings,
    text_of,
)
from .checkpoint_tensors import arrays, data_bits, descriptions, headers, index_of_shards
from .checkpoint_texts import templates, tokenizers

_KINDS: tuple[tuple[int, Callable[[random.Random, Files], Damage]], ...] = (
    (30, configuration), (5, text_of), (6, rope_settings), (6, block_lists), (6, quantization),
    (8, headers), (4, data_bits), (16, arrays), (6, descriptions), (8, index_of_shards),
    (8, tokenizers), (2, templates),
)  # fmt: skip


def draw_damage(rng: random.Random) -> tuple[str, Damage]:
    """Draw a folder, and damage to it; return its name, and the damage."""
    damages = [damage for share, damage in _KINDS for _ in range(share)]
    first = rng.choice(damages)
    names = [name for name in folders()
             if WEIGHTS in folders()[name] and (first is not descriptions or name.startswith(
                 ("torchao", "bitsandbytes")))]  # fmt: skip
    name = rng.choice(names)
    damage = first(rng, folders()[name])
    if rng.random() < 0.1 and WEIGHTS in damage.files and CONFIGURATION in damage.files:
        try:
            second = rng.choice(damages[:61])(rng, damage.files)
        except (ValueError, LookupError, TypeError, AttributeError):
            return name, damage  # the first one left no JSON
        damage = Damage(f"{damage.what}; {second.what}", second.files, renders=damage.renders)
    return name, damage
