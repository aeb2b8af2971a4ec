"""What a language model is made of, as the properties of its GGUF file say.

The architectures are those of llama.cpp's converters; a row of `_ARCHITECTURES` says how one
differs from the others. Everything that a program is written from is in a `Configuration`, and
`expected_tensors` says which tensors it takes, so that a file is checked before anything is built.

Sources: the keys of GGUF, as PyPI's ``gguf`` lists them; llama.cpp's graphs of these architectures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import InputError, UnsupportedError, quoted
from ..layouts import InferenceTensor

__all__ = [
    "ARCHITECTURES",
    "Configuration",
    "Pairs",
    "Rotation",
    "check_tensors",
    "expected_tensors",
]

Pairs = Literal["halves", "neighbors"]
Activation = Literal["gelu", "silu"]


@dataclass(frozen=True)
class _Architecture:
    """How an architecture differs.

    Attributes:
        activation: of the gate: GELU by tanh, or SiLU.
        pairs: what rotary embeddings rotate: element ``i`` with ``i + D / 2``, or ``2 i`` with
            ``2 i + 1``.
        qk_norms: queries and keys are normalized, each head for itself.
        post_norms: what attention and feed-forward give is normalized before it is added.
        biases: queries, keys and values have them: always, never, or as the file does.
        scales_embedding: embeddings are multiplied by the root of their length.
        pattern: every such block attends to all tokens where there is a window.
        window_base: of rotary embeddings where there is a window.
    """

    activation: Activation = "silu"
    pairs: Pairs = "halves"
    qk_norms: bool = False
    post_norms: bool = False
    biases: Literal["yes", "no", "maybe"] = "no"
    scales_embedding: bool = False
    pattern: int = 1
    window_base: float = 0.0


_ARCHITECTURES = {
    "gemma3": _Architecture(
        activation="gelu",
        qk_norms=True,
        post_norms=True,
        scales_embedding=True,
        pattern=6,
        window_base=10_000.0,
    ),
    "llama": _Architecture(pairs="neighbors", biases="maybe"),
    "qwen2": _Architecture(biases="yes"),
    "qwen3": _Architecture(qk_norms=True),
}

_LEAST_FACTOR = 1e-6
"""What positions are divided by at least: the angle of a token is then one of 64 bits."""

ARCHITECTURES = tuple(_ARCHITECTURES)
"""The names of the architectures that there are."""


@dataclass(frozen=True)
class Rotation:
    """Rotary embeddings: pair ``i`` of ``n`` is turned by ``position * scale * base**(-i / n)``.

    Attributes:
        base: of the frequencies.
        size: how many elements of a head are turned, ``2 n``.
        scale: what positions are multiplied by.
        pairs: as of the architecture.
        has_factors: each frequency is divided by an element of ``rope_freqs.weight``.
    """

    base: float
    size: int
    scale: float
    pairs: Pairs
    has_factors: bool = False


@dataclass(frozen=True)
class Configuration:
    """A model.

    Attributes:
        architecture: a name of `ARCHITECTURES`.
        blocks: how many there are.
        width: of what goes from block to block.
        hidden: of the feed-forward layers.
        vocabulary: the number of tokens.
        heads, kv_heads: of queries, and of keys and values; the second divides the first.
        size: of a head.
        context: the most tokens that the model was made for.
        epsilon: of the normalizations.
        activation: of the gate.
        rotation: of blocks that attend to all tokens.
        window_rotation: of blocks with a window.
        window: how many tokens such a block attends to; 0 for all.
        pattern: every such block attends to all tokens.
        attention_scale: what products of queries and keys are multiplied by.
        embedding_scale: what embeddings are multiplied by.
        qk_norms, post_norms, biases: whether there are such.
        tied: the table of embeddings gives the logits, too.
    """

    architecture: str
    blocks: int
    width: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    size: int
    context: int
    epsilon: float
    activation: Activation
    rotation: Rotation
    window_rotation: Rotation
    window: int
    pattern: int
    attention_scale: float
    embedding_scale: float
    qk_norms: bool
    post_norms: bool
    biases: bool
    tied: bool

    @classmethod
    def of(
        cls, properties: Mapping[str, Any], tensors: Mapping[str, InferenceTensor]
    ) -> Configuration:
        """Read the properties of a file.

        Args:
            properties: by GGUF's keys.
            tensors: of the file, by name; what is optional is found there.

        Raises:
            UnsupportedError: the architecture is none of `ARCHITECTURES`, or has what is not
                computed: experts, or another scaling of rotary embeddings.
            InputError: a property is missing or makes no sense, or a tensor is missing or has
                other extents.
        """
        found = _Properties(properties)
        name = found.architecture()
        kind = _ARCHITECTURES[name]
        width, heads = found.count("embedding_length"), found.count("attention.head_count")
        kv_heads = found.count("attention.head_count_kv", heads)
        if heads % kv_heads:
            raise InputError(
                f"the model has {heads} heads and {kv_heads} of keys and values, expected a divisor"
            )
        size = found.count("attention.key_length", width // heads or None)
        of_values = found.count("attention.value_length", size)
        if of_values != size:
            raise UnsupportedError(
                f"heads have keys of {size} and values of {of_values}, expected the same"
            )
        window = found.count("attention.sliding_window", 0) if kind.pattern > 1 else 0
        turned = found.count("rope.dimension_count", size)
        if turned % 2 or turned > size:
            raise InputError(
                f"{turned} elements of heads of {size} are turned, expected an even number of them"
            )
        base = found.number("rope.freq_base", 10_000.0, 1.0)
        rotation = Rotation(
            base, turned, 1.0 / found.rope_factor(), kind.pairs, "rope_freqs.weight" in tensors
        )
        table = tensors.get("token_embd.weight")
        blocks = found.count("block_count")
        if blocks > len(tensors):
            raise InputError(
                f"the model has {blocks:,} blocks, and the file {len(tensors)} tensors"
            )
        # Gemma 3 27B alone, which has 62 blocks, divides the width by the heads.
        scaled = max(width // heads, 1) if (name, blocks) == ("gemma3", 62) else size
        pattern = kind.pattern
        if window:
            pattern = found.count("attention.sliding_window_pattern", pattern)
        configuration = cls(
            architecture=name,
            blocks=blocks,
            width=width,
            hidden=found.count("feed_forward_length"),
            vocabulary=table.shape[0] if table is not None and table.shape else 0,
            heads=heads,
            kv_heads=kv_heads,
            size=size,
            context=found.count("context_length"),
            epsilon=found.number("attention.layer_norm_rms_epsilon"),
            activation=kind.activation,
            rotation=rotation,
            window_rotation=Rotation(kind.window_base, turned, 1.0, kind.pairs)
            if window
            else rotation,
            window=window,
            pattern=pattern,
            attention_scale=1 / math.sqrt(scaled),
            embedding_scale=math.sqrt(width) if kind.scales_embedding else 1.0,
            qk_norms=kind.qk_norms,
            post_norms=kind.post_norms,
            biases=kind.biases == "yes"
            or (kind.biases == "maybe" and "blk.0.attn_q.bias" in tensors),
            tied="output.weight" not in tensors,
        )
        check_tensors(configuration, tensors)
        return configuration

    def has_window(self, block: int) -> bool:
        """Whether a block attends to the last tokens only."""
        return self.window > 0 and (block + 1) % self.pattern != 0


class _Properties:
    """The properties of an architecture."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = properties
        self._name = ""

    def architecture(self) -> str:
        """The name, which is the prefix of the other keys."""
        self._name = str(self._properties.get("general.architecture", ""))
        if self._name not in _ARCHITECTURES:
            known = f"expected one of: {', '.join(_ARCHITECTURES)}"
            if not self._name:
                raise UnsupportedError(f"the file does not say its model's architecture; {known}")
            raise UnsupportedError(
                f"the model is of the architecture {quoted(self._name)}, which is not supported; "
                f"{known}"
            )
        if self.count("expert_count", 0):
            raise UnsupportedError("the model has experts (MoE), which are not supported")
        return self._name

    def _value(self, key: str, default: Any) -> Any:
        value = self._properties.get(f"{self._name}.{key}", default)
        if value is None:
            raise InputError(f"the file has no property '{self._name}.{key}'")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """An integer; above 0 if there is no default."""
        value = self._value(key, default)
        least = 0 if default == 0 else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(
                f"property '{self._name}.{key}' is {str(value)[:40]}, expected an integer of at "
                f"least {least}"
            )
        return value

    def number(self, key: str, default: float | None = None, least: float = 0.0) -> float:
        """A finite number above 0, and of at least another one."""
        value = self._value(key, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf or value < least:
            expected = f"of at least {least:g}" if least else "above 0"
            raise InputError(
                f"property '{self._name}.{key}' is {str(value)[:40]}, expected a number {expected}"
            )
        return float(value)

    def rope_factor(self) -> float:
        """What positions are divided by."""
        kind = str(self._value("rope.scaling.type", "linear"))
        if kind not in ("none", "linear"):
            raise UnsupportedError(
                f"rotary embeddings are scaled by '{kind[:40]}', which is not supported; expected "
                "none or linear"
            )
        if kind == "none":
            return 1.0
        linear = self.number("rope.scale_linear", 1.0, _LEAST_FACTOR)
        return self.number("rope.scaling.factor", linear, _LEAST_FACTOR)


def expected_tensors(configuration: Configuration) -> dict[str, tuple[int, ...]]:
    """The tensors that a model takes, with their shapes."""
    c = configuration
    queries, keys = c.heads * c.size, c.kv_heads * c.size
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (c.vocabulary, c.width),
        "output_norm.weight": (c.width,),
    }
    if not c.tied:
        found["output.weight"] = (c.vocabulary, c.width)
    if c.rotation.has_factors:
        found["rope_freqs.weight"] = (c.rotation.size // 2,)
    block: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (c.width,),
        "attn_q.weight": (queries, c.width),
        "attn_k.weight": (keys, c.width),
        "attn_v.weight": (keys, c.width),
        "attn_output.weight": (c.width, queries),
        "ffn_norm.weight": (c.width,),
        "ffn_gate.weight": (c.hidden, c.width),
        "ffn_up.weight": (c.hidden, c.width),
        "ffn_down.weight": (c.width, c.hidden),
    }
    if c.qk_norms:
        block |= {"attn_q_norm.weight": (c.size,), "attn_k_norm.weight": (c.size,)}
    if c.post_norms:
        block |= {"post_attention_norm.weight": (c.width,), "post_ffw_norm.weight": (c.width,)}
    if c.biases:
        block |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    for number in range(c.blocks):
        found |= {f"blk.{number}.{name}": shape for name, shape in block.items()}
    return found


def check_tensors(configuration: Configuration, tensors: Mapping[str, InferenceTensor]) -> None:
    """Compare the tensors of a file with those that a model takes.

    Raises:
        InputError: one is missing, or has another shape.
    """
    for name, shape in expected_tensors(configuration).items():
        if name not in tensors:
            raise InputError(
                f"the file has no tensor '{name}', which a model of the architecture "
                f"'{configuration.architecture}' needs"
            )
        if tensors[name].shape != shape:
            raise InputError(
                f"tensor '{name}' has the shape {list(tensors[name].shape)}, expected {list(shape)}"
            )
