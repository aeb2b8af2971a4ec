"""The configuration of a language model, as the ``config.json`` of a checkpoint says.

Each key is read, or is known to change nothing, or refuses the checkpoint by its name.

Sources: transformers 5.24, ``configuration_*.py``, ``modeling_*.py``, ``modeling_rope_utils.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...core.json_settings import Settings
from ...core.strict_json import Json, shown
from ...errors import InputError, Place, SubquantError, UnsupportedError
from ...layouts import InferenceTensor
from ..architectures import FEED_FORWARD, QKV, Activation
from ..configuration import Configuration, Experts, unrotated_blocks
from ..rotary_embedding import Rotation
from .architectures import (
    IRRELEVANT_KEYS,
    TABLE,
    WINDOW_ROPE_BASE,
    CheckpointArchitecture,
)
from .rope_settings import read_rotation
from .text_part import TEXT_MODELS

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
}
"""Activations by their names in transformers; ``gelu`` alone, by the error function, is none."""
_FULL, _WINDOW = "full_attention", "sliding_attention"
_FIRST_WINDOWED_BLOCK = 28
"""The default of ``max_window_layers``: the blocks from this number on have a window."""


def read_configuration(
    config: Mapping[str, Json],
    tensors: Mapping[str, InferenceTensor],
    location: Place | None = None,
    path: str = "",
) -> Configuration:
    """Read a ``config.json``.

    Args:
        config: the object.
        path: the key of the object in the file, with a dot at the end; empty for the whole.
        tensors: the tensors of the checkpoint by the names of
            `subquant.models.configuration.expected_tensors`.

    Raises:
        UnsupportedError: the architecture is none of `TABLE`, or a key or a tensor is not read.
        InputError: a key is missing or makes no sense, or a tensor is missing or has another shape.
    """
    try:
        name = config.get("model_type")
        if not isinstance(name, str) or name not in TABLE:
            raise UnsupportedError(
                f"the model is of the 'model_type' {shown(name)}, expected one of: "
                f"{', '.join((*TABLE, *TEXT_MODELS))}"
            )
        settings = Settings(config, path=path, irrelevant=IRRELEVANT_KEYS)
        settings.value(str, "model_type")
        configuration = _Reader(name, TABLE[name], settings).read(tensors)
        settings.finish()
    except SubquantError as error:
        raise error.located(location) from None
    return configuration


class _Reader:
    """Reader of the keys of one architecture."""

    def __init__(self, name: str, kind: CheckpointArchitecture, settings: Settings) -> None:
        self._name, self._kind, self._settings = name, kind, settings

    def read(self, tensors: Mapping[str, InferenceTensor]) -> Configuration:
        """Read all keys."""
        kind, settings = self._kind, self._settings
        width, heads = (
            settings.count("hidden_size"),
            settings.count("num_attention_heads", kind.heads),
        )
        kv_heads = settings.count("num_key_value_heads", kind.kv_heads or heads)
        if heads % kv_heads:
            raise settings.error("num_key_value_heads", f"a divisor of the {heads} heads")
        size = settings.count("head_dim", kind.head_size or width // heads or None)
        context = settings.count("max_position_embeddings", kind.context)
        blocks = settings.count("num_hidden_layers")
        if blocks > len(tensors):
            raise settings.error("num_hidden_layers", f"fewer than the {len(tensors)} tensors")
        windows = self._windowed_blocks(blocks)
        window = self._window() if any(windows) else 0
        rotation = read_rotation(
            settings,
            _FULL if kind.pattern else None,
            kind.rope_base,
            size,
            context,
            rotates_partially=kind.rotates_partially,
        )
        window_rotation = rotation
        if kind.pattern:
            window_rotation = self._window_rotation(size, context)
        vocabulary = settings.count("vocab_size", kind.vocabulary)
        table = tensors.get("token_embd.weight")
        if table is not None and table.shape[:1] != (vocabulary,):
            raise settings.error("vocab_size", f"{table.shape[0]}, the rows of embed_tokens")
        hidden = settings.count("intermediate_size")
        scalar = settings.number("query_pre_attn_scalar", 256) if kind.pattern else float(size)
        softcap = settings.get("final_logit_softcapping") if kind.pattern else None
        return Configuration(
            architecture=self._name,
            structure=kind,
            blocks=blocks,
            width=width,
            hidden=hidden,
            vocabulary=vocabulary,
            heads=heads,
            kv_heads=kv_heads,
            head_size=size,
            context=context,
            epsilon=settings.number("rms_norm_eps", kind.epsilon),
            activation=self._activation(),
            rotation=rotation,
            window_rotation=window_rotation,
            window=window,
            windowed_blocks=windows,
            attention_scale=1 / math.sqrt(scalar),
            logit_softcap=0.0 if softcap is None else settings.number("final_logit_softcapping"),
            biases=self._biases(),
            optional_tensors=frozenset(),
            tied=settings.flag("tie_word_embeddings", kind.is_tied),
            unrotated_blocks=self._unrotated_blocks(blocks),
            experts=self._experts(blocks, hidden),
        )

    def _activation(self) -> Activation:
        key = "hidden_activation" if self._kind.pattern else "hidden_act"
        default = "gelu_pytorch_tanh" if self._kind.pattern else "silu"
        name = self._settings.value(str, key, default=default)
        if name not in _ACTIVATIONS:
            raise UnsupportedError(
                f"'{key}' is {shown(name)}, which is not supported; expected one of: "
                f"{', '.join(_ACTIVATIONS)}"
            )
        if self._kind.pattern and self._settings.get("hidden_act") not in (None, name):
            raise self._settings.error("hidden_act", f"'{name}', as 'hidden_activation' is")
        return _ACTIVATIONS[name]

    def _biases(self) -> tuple[str, ...]:
        biases = self._kind.biases
        has_biases = self._settings.flag("attention_bias", bool(biases))
        if biases or self._kind.fused:
            if has_biases != bool(biases):
                raise self._settings.error(
                    "attention_bias", f"{str(bool(biases)).lower()}, as the architecture has it"
                )
        elif has_biases:
            biases = (*QKV, "attn_output")
        if self._name in ("llama", "smollm3") and self._settings.flag("mlp_bias"):
            biases = (*biases, *FEED_FORWARD)
        return biases

    # -- windows -----------------------------------------------------------------------------------

    def _windowed_blocks(self, blocks: int) -> tuple[bool, ...]:
        """Return whether each block attends to a window."""
        settings, kind = self._settings, self._kind
        default = kind.window if not settings.has("sliding_window") else None
        has_window = settings.get("sliding_window") is not None or default is not None
        if has_window and not kind.has_windows:
            raise settings.error("sliding_window", "null, as the architecture has no windows")
        first = 0
        if kind.needs_window_flag:
            has_window = settings.flag("use_sliding_window") and has_window
            first = settings.count("max_window_layers", _FIRST_WINDOWED_BLOCK, least=0)
            if kind.experts or kind.unrotated_interval:  # transformers does not read it
                first = 0
        pattern = self._pattern()
        if not has_window:
            windows = (False,) * blocks
        elif pattern:
            windows = tuple((block + 1) % pattern != 0 for block in range(blocks))
        elif kind.unrotated_interval:
            unrotated = self._unrotated_blocks(blocks)
            windows = tuple(block in unrotated for block in range(blocks))
        else:
            windows = tuple(block >= first for block in range(blocks))
        types = settings.elements("layer_types", str, blocks)
        if types is None:
            return windows
        unknown = [each for each in types if each not in (_FULL, _WINDOW)]
        if unknown:
            raise UnsupportedError(
                f"'layer_types' has {shown(unknown[0])}, which is not supported; expected "
                f"{_FULL} or {_WINDOW}"
            )
        listed = tuple(each == _WINDOW for each in types)
        if listed != windows and not (kind.has_layer_types and has_window):
            number = next(
                n for n, pair in enumerate(zip(listed, windows, strict=True)) if len({*pair}) > 1
            )
            expected = _WINDOW if windows[number] else _FULL
            raise InputError(
                f"'layer_types' says {types[number]} of block {number}, and the other keys of "
                f"windows {expected}; leave the wrong one out"
            )
        return listed

    def _pattern(self) -> int:
        """Return the period of blocks without a window; 0 for none."""
        settings = self._settings
        if not self._kind.pattern:
            return 0
        keys = ("sliding_window_pattern", "_sliding_window_pattern")
        patterns = [settings.count(key) for key in keys if settings.get(key) is not None]
        if len(set(patterns)) > 1:
            raise settings.error(keys[0], f"{patterns[1]}, as '{keys[1]}' is")
        return patterns[0] if patterns else self._kind.pattern

    def _window(self) -> int:
        return self._settings.count("sliding_window", self._kind.window)

    def _window_rotation(self, size: int, context: int) -> Rotation:
        """Return the rotary embeddings of blocks with a window, of Gemma 3."""
        settings = self._settings
        local = settings.number("rope_local_base_freq", WINDOW_ROPE_BASE)
        if settings.get("rope_parameters") is None:
            return Rotation(local, size, 1.0, "halves")
        return read_rotation(settings, _WINDOW, local, size, context)

    def _unrotated_blocks(self, blocks: int) -> frozenset[int]:
        """Return the blocks without rotary embeddings, of SmolLM 3."""
        interval = self._kind.unrotated_interval
        if not interval:
            return frozenset()
        interval = self._settings.count("no_rope_layer_interval", interval)
        flags = self._settings.elements("no_rope_layers", int, blocks)
        if flags is None:
            return unrotated_blocks(blocks, interval)
        if not set(flags) <= {0, 1}:
            raise InputError("'no_rope_layers' has other numbers than 0 and 1")
        return frozenset(block for block, flag in enumerate(flags) if not flag)

    # -- experts -----------------------------------------------------------------------------------

    def _experts(self, blocks: int, hidden: int) -> Experts | None:
        """Return the mixture of experts, if the architecture has one."""
        settings, defaults = self._settings, self._kind.experts
        if defaults is None:
            return None
        keys = ("num_local_experts", "num_experts")
        counts = {settings.count(key) for key in keys if settings.get(key) is not None}
        if len(counts) > 1:
            raise settings.error(keys[0], f"{settings.get(keys[1])}, as '{keys[1]}' is")
        count = counts.pop() if counts else defaults.count
        chosen = settings.count("num_experts_per_tok", defaults.chosen)
        if chosen > count:
            raise settings.error("num_experts_per_tok", f"at most the {count} experts")
        if defaults.hidden is not None:
            hidden = settings.count("moe_intermediate_size", defaults.hidden)
        if not defaults.has_dense_blocks:
            return Experts(count, chosen, hidden, frozenset(range(blocks)))
        interval = settings.count("decoder_sparse_step", 1)
        dense = settings.elements("mlp_only_layers", int)
        with_experts = {block for block in range(blocks) if (block + 1) % interval == 0}
        return Experts(
            count,
            chosen,
            hidden,
            frozenset(with_experts.difference(dense or ())),
            settings.flag("norm_topk_prob"),
        )
