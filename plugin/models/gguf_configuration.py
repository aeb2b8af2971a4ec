"""Configuration of a language model from the properties of its GGUF file.

A tensor or property that is not read, and is not in the list of irrelevant ones, refuses the file.

Sources: the keys of GGUF, as PyPI's ``gguf`` lists them; llama.cpp's ``src/models``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.read_record import ReadRecord
from ..errors import InputError, Place, SubquantError, UnsupportedError
from ..layouts import InferenceTensor, PrimitiveTensor
from .architectures import (
    ARCHITECTURES,
    EXPERT_LAYERS,
    LAYERS,
    TABLE,
    Architecture,
)
from .configuration import IMAGE_TENSORS, Configuration, Experts, check_tensors, unrotated_blocks
from .irrelevant_properties import irrelevant_properties
from .properties import Properties, architecture_of
from .rotary_embedding import LongRope, Rotation


def read_gguf_configuration(
    properties: Mapping[str, Any],
    tensors: Mapping[str, InferenceTensor],
    location: Place | None = None,
) -> Configuration:
    """Read the properties of a file.

    The vocabulary's properties (``tokenizer.*``) are left to `subquant.models.vocabulary`.

    Raises:
        UnsupportedError: the architecture is none of `ARCHITECTURES`, or the file has a tensor or a
            property that is not computed with: another scaling of rotary embeddings, say.
        InputError: a property is missing or makes no sense, or a tensor is missing or has another
            shape.
    """
    of_model = {k: value for k, value in properties.items() if not k.startswith("tokenizer.")}
    try:
        name = architecture_of(properties, ARCHITECTURES)
        record = ReadRecord(None)
        values = Properties(record.track("property", of_model, irrelevant_properties(name)))
        images = IMAGE_TENSORS if name == "gemma3" else []
        tracked = record.track("tensor", tensors, images)
        configuration = _configuration(name, values, tracked)
        check_tensors(configuration, tracked)
        _check_rows(configuration.vocabulary, values, properties.get("tokenizer.ggml.tokens"))
        record.finish("use a model without, or a tool that knows it")
    except SubquantError as error:
        raise error.located(location) from None
    return configuration


def _configuration(
    name: str, values: Properties, tensors: Mapping[str, InferenceTensor]
) -> Configuration:
    """Return the configuration of an architecture, by its name."""
    kind = TABLE[name]
    width, heads = values.count("embedding_length"), values.count("attention.head_count")
    kv_heads = values.count("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise InputError(
            f"the model has {heads} heads and {kv_heads} of keys and values, expected a divisor"
        )
    head_size = _head_size(values, width // heads)
    context = values.count("context_length")
    rotation = _rotation(name, values, tensors, head_size, context)
    table = tensors.get("token_embd.weight")
    blocks = values.count("block_count")
    if blocks > len(tensors):
        raise InputError(f"the model has {blocks:,} blocks, and the file {len(tensors)} tensors")
    window = values.window(context, kind.pattern)
    window_rotation = rotation
    windowed = (window > 0 and kind.pattern == 0,) * blocks
    if kind.window_base:
        window_base = values.number("rope.freq_base_swa", kind.window_base, 1.0)
        windowed = values.windowed_blocks(blocks, kind.pattern)
        if window:
            window_rotation = Rotation(window_base, rotation.size, 1.0, kind.pairs)
    hidden = values.count("feed_forward_length")
    return Configuration(
        architecture=name,
        structure=kind,
        blocks=blocks,
        width=width,
        hidden=hidden,
        vocabulary=table.shape[0] if table is not None and table.shape else 0,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        context=context,
        epsilon=values.number("attention.layer_norm_rms_epsilon"),
        activation=kind.activation,
        rotation=rotation,
        window_rotation=window_rotation,
        window=window,
        windowed_blocks=windowed,
        attention_scale=values.optional_number(
            "attention.scale", _attention_scale(name, blocks, width // heads, head_size)
        ),
        logit_softcap=values.optional_number("final_logit_softcapping", 0.0),
        biases=kind.biases,
        optional_tensors=frozenset(_optional_names(kind, blocks) & tensors.keys()),
        tied="output.weight" not in tensors,
        experts=_experts(kind, values, tensors, blocks, hidden),
        unrotated_blocks=unrotated_blocks(blocks, kind.unrotated_interval),
    )


def _head_size(values: Properties, share: int) -> int:
    """Return the size of a head, by default its share of the width."""
    keys = values.count("attention.key_length", share or None)
    values_size = values.count("attention.value_length", keys)
    if values_size != keys:
        raise UnsupportedError(
            f"heads have keys of {keys} and values of {values_size}, expected the same"
        )
    return keys


def _rotation(
    name: str,
    values: Properties,
    tensors: Mapping[str, InferenceTensor],
    head_size: int,
    context: int,
) -> Rotation:
    """Return the rotary embeddings of blocks that attend to all tokens."""
    kind, size = TABLE[name], values.count("rope.dimension_count", head_size)
    if size % 2 or size > head_size:
        raise InputError(
            f"{size} elements of heads of {head_size} are turned, expected an even number of them"
        )
    base = values.number("rope.freq_base", 10_000.0, 1.0)
    scaling = values.scaling(kind.long_rope)
    rotation = Rotation(base, size, 1.0 / values.rope_factor(scaling), kind.pairs)
    if scaling == "yarn":
        rotation = replace(rotation, yarn=values.yarn(context, base))
    # Files of Phi 3 do not always name their scaling.
    if scaling == "longrope" or (name == "phi3" and _LONG_ROPE.intersection(tensors)):
        return _with_long_rope(rotation, values, tensors, context)
    if kind.rope_factors and "rope_freqs.weight" in tensors:
        return replace(rotation, has_factors=True)
    return rotation


_LONG_ROPE = frozenset(("rope_factors_short.weight", "rope_factors_long.weight"))
"""Tensors with the divisors of LongRoPE."""


def _with_long_rope(
    rotation: Rotation, values: Properties, tensors: Mapping[str, InferenceTensor], context: int
) -> Rotation:
    """Return a rotation with the divisors of LongRoPE.

    Sources: llama.cpp, ``llama_model_phi3``, ``llama_model_llama`` and
    ``llama_model::get_rope_factors``; ``conversion/base.py``, which writes the type ``longrope``.
    """
    if rotation.yarn is not None:
        raise UnsupportedError(
            "rotary embeddings are scaled by 'yarn', and the file has the divisors "
            f"'{min(_LONG_ROPE)}' of LongRoPE; expected one of them"
        )
    pairs, divisors = rotation.size // 2, []
    for name in sorted(_LONG_ROPE, reverse=True):  # those of short contexts first
        tensor = tensors.get(name)
        array = np.zeros(1)
        if isinstance(tensor, PrimitiveTensor) and tensor.shape == (pairs,):
            array = np.asarray(tensor.array, np.float64)
        if not (np.isfinite(array) & (array > 0)).all():
            raise InputError(f"the file has no tensor '{name}' of {pairs} numbers above 0")
        divisors.append(tuple(array.tolist()))
    original = values.count("rope.scaling.original_context_length", context)
    factor = values.optional_number("rope.scaling.attn_factor", 1.0)
    return replace(rotation, long_rope=LongRope(original, *divisors), attention_factor=factor)


def _experts(
    kind: Architecture,
    values: Properties,
    tensors: Mapping[str, InferenceTensor],
    blocks: int,
    hidden: int,
) -> Experts | None:
    """Return the mixture of experts, if there is one; blocks with an ``ffn_gate`` have none.

    Source: llama.cpp, ``llama_model_llama`` and ``llama_model_qwen3moe``: softmax of all experts,
    and weights that are divided by their sum.
    """
    if not kind.has_experts:
        if values.count("expert_count", 0):
            raise UnsupportedError(
                "the model has experts, and only models of the architectures llama and qwen3moe "
                "are supported with them"
            )
        return None
    count = values.count("expert_count", 0)
    if not count and not kind.needs_experts:
        return None
    chosen = values.count("expert_used_count")
    if chosen > count:
        raise InputError(f"{chosen} of {count} experts compute a token, expected {count} at most")
    if kind.needs_experts:
        hidden = values.count("expert_feed_forward_length", max(1, hidden // chosen))
    dense = {n for n in range(blocks) if f"blk.{n}.ffn_gate.weight" in tensors}
    return Experts(count, chosen, hidden, frozenset(range(blocks)) - dense)


def _attention_scale(architecture: str, blocks: int, share: int, head_size: int) -> float:
    """Return the factor of products of queries and keys where the file has none.

    Hugging Face's configuration of Gemma 3 has it as ``query_pre_attn_scalar``, which is the size
    of a head for all of Google's models but 27B, where it is the width divided by the heads.
    llama.cpp's converter does not write it, and its loader knows 27B by the 62 blocks that no other
    model has. Source: llama.cpp, ``llm_type`` and ``f_attention_scale`` of LLM_ARCH_GEMMA3.
    """
    return 1 / math.sqrt(max(share, 1) if (architecture, blocks) == ("gemma3", 62) else head_size)


def _optional_names(kind: Architecture, blocks: int) -> set[str]:
    """Return the names of tensors of linear layers that a file may have.

    Scales are the second scales of NVFP4, one for a whole weight.
    """
    of_layers = {f"{layer}.scale" for layer in (*LAYERS, "output")}
    if kind.has_experts:
        of_layers |= {f"{layer}.scale" for layer in EXPERT_LAYERS}
    of_layers |= {f"{layer}.bias" for layer in kind.optional_biases}
    of_model = {name for name in of_layers if name.startswith("output.")}
    of_block = of_layers - of_model
    return of_model | {f"blk.{number}.{name}" for number in range(blocks) for name in of_block}


def _check_rows(rows: int, values: Properties, tokens: Any) -> None:
    """Compare the table of embeddings with the vocabulary; InputError for another number of rows.

    Rows without a token have logits that count in no text, and llama.cpp refuses them too.
    """
    if isinstance(tokens, list) and len(tokens) != rows:
        raise InputError(
            f"tensor 'token_embd.weight' has {rows} rows for the {len(tokens)} tokens of the "
            "vocabulary, expected a row for each token; convert the model again, with a token for "
            "each row"
        )
    declared = values.count("vocab_size", rows)
    if declared != rows:
        raise InputError(
            f"tensor 'token_embd.weight' has {rows} rows, expected {declared}, the property "
            "'vocab_size'; convert the model again"
        )
