"""Keys of ``generation_config.json`` that change which tokens transformers writes.

Generation takes its options from the caller, and the tokens that end a text from the file. A key
below with another value than its neutral ones is not used, and a remark names it. Options of
sampling, as ``temperature``, have no effect without sampling and are options of the caller.

Source: transformers 5.24, ``GenerationConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...core.strict_json import Json

_NEUTRAL: dict[str, tuple[Json, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "repetition_penalty": (1,),
    "sequence_bias": ({}, []),
    "stop_strings": ([],),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "watermarking_config": (),
}
"""The values, beside null, with which a key changes nothing."""


def unused_keys(settings: Mapping[str, Json]) -> list[str]:
    """Return the keys of a ``generation_config.json`` that transformers would write by."""
    return [
        key
        for key, neutral in _NEUTRAL.items()
        if settings.get(key) is not None and settings[key] not in neutral
    ]
