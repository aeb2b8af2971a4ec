"""Rotary embeddings: by how much each pair of elements is turned."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..numerics.element_types import Array
from .architectures import Pairs


@dataclass(frozen=True)
class Yarn:
    """Scaling by YaRN: a pair that turns often in the first context keeps its frequency.

    Sources: "YaRN: Efficient Context Window Extension of Large Language Models", section 3;
    llama.cpp, ``ggml_rope_yarn_corr_dims``.

    Attributes:
        context: the tokens that the model was trained for before its context was extended.
        fast: a pair with more turns than this in that context keeps its frequency.
        slow: a pair with fewer turns has its frequency scaled; those between are mixed.
    """

    context: int
    fast: float = 32.0
    slow: float = 1.0


@dataclass(frozen=True)
class Llama3Scaling:
    """Scaling of Llama 3.1: a pair whose wavelength is short keeps its frequency.

    Of ``turns = context * frequency / (2 pi)``, more than `high` keep the frequency, fewer than
    `low` divide it by the factor, and those between are mixed in proportion.

    Source: transformers, ``modeling_rope_utils._compute_llama3_parameters``.

    Attributes:
        context: the tokens that the model was trained for before its context was extended.
    """

    context: int
    low: float
    high: float


@dataclass(frozen=True)
class LongRope:
    """Scaling by LongRoPE: each frequency is divided by a number, of one of two sets.

    The context of a session chooses the set, as in llama.cpp and vLLM, because all keys of a cache
    have the same rotation. transformers chooses by the length of the text so far.

    Sources: transformers, ``modeling_rope_utils._compute_longrope_parameters``; llama.cpp,
    ``llama_model::get_rope_factors``.

    Attributes:
        context: the tokens that the model was trained for before its context was extended.
        short, long: the divisors of contexts up to that, and of longer ones.
    """

    context: int
    short: tuple[float, ...]
    long: tuple[float, ...]


@dataclass(frozen=True)
class Rotation:
    """Rotary embeddings: pair ``i`` of ``n`` is turned by ``position * scale * base**(-i / n)``.

    Attributes:
        size: the number of elements of a head that are turned, ``2 n``.
        scale: the factor of positions.
        pairs: the elements of a pair, by the architecture.
        has_factors: each frequency is divided by an element of ``rope_freqs.weight``.
        yarn: scaling by YaRN, which applies the scale to slow pairs alone; None for all.
        llama3: scaling of Llama 3.1, which applies the scale to slow pairs alone; None for all.
        long_rope: scaling by LongRoPE, in addition to the scale; None for none.
        context: the context of the session, which chooses the divisors of LongRoPE.
        attention_factor: the factor of turned elements; None for that of YaRN, or 1.
    """

    base: float
    size: int
    scale: float
    pairs: Pairs
    has_factors: bool = False
    yarn: Yarn | None = None
    llama3: Llama3Scaling | None = None
    long_rope: LongRope | None = None
    attention_factor: float | None = None
    context: int = 0

    @property
    def magnitude(self) -> float:
        """The factor of turned elements, ``1 + log(1 / scale) / 10`` with YaRN."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 1.0 if self.yarn is None else 1.0 + 0.1 * max(0.0, -math.log(self.scale))

    def frequencies(self) -> Array:
        """Return the angle of each pair at the position 1, float64 ``[size / 2]``."""
        numbers = np.arange(self.size // 2, dtype=np.float64)
        frequencies: Array = self.base ** -(numbers / (self.size // 2))
        if self.llama3 is not None:
            rotations = self.llama3.context * frequencies / (2 * math.pi)
            low, high = self.llama3.low, self.llama3.high
            share = np.clip((rotations - low) / (high - low), 0, 1)
            return frequencies * (share + self.scale * (1 - share))
        if self.long_rope is not None:
            is_long = self.context > self.long_rope.context
            divisors = self.long_rope.long if is_long else self.long_rope.short
            return self.scale * np.divide(frequencies, divisors)
        if self.yarn is None:
            return self.scale * frequencies
        low = max(math.floor(self._pair_with(self.yarn.fast)), 0)
        high = min(math.ceil(self._pair_with(self.yarn.slow)), self.size - 1)
        scaled = np.clip((numbers - low) / max(high - low, 0.001), 0, 1)
        return frequencies * (1 - scaled + self.scale * scaled)

    def _pair_with(self, rotations: float) -> float:
        """Return the number of the pair, as a real, with these rotations in YaRN's context."""
        assert self.yarn is not None
        period = self.yarn.context / (rotations * 2 * math.pi)
        return self.size * math.log(period) / (2 * math.log(self.base))
