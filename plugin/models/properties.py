"""The properties of an architecture in a GGUF file, each checked when it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError, UnsupportedError, quoted
from .rotary_embedding import Yarn

_LEAST_FACTOR = 1e-6
"""Positions are divided by at least this: the angle of a token is then an integer of 64 bits."""


def architecture_of(properties: Mapping[str, Any], known: Sequence[str]) -> str:
    """Return the name of a model's architecture; UnsupportedError if it is missing, or another."""
    name = str(properties.get("general.architecture", ""))
    expected = f"expected one of: {', '.join(known)}"
    if not name:
        raise UnsupportedError(f"the file does not say its model's architecture; {expected}")
    if name not in known:
        raise UnsupportedError(
            f"the model is of the architecture {quoted(name)}, which is not supported; {expected}"
        )
    return name


class Properties:
    """The properties whose keys begin with an architecture."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = properties
        self._name = properties["general.architecture"]

    def _value(self, key: str, default: Any) -> Any:
        value = self._properties.get(f"{self._name}.{key}", default)
        if value is None:
            raise InputError(f"the file has no property '{self._name}.{key}'")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """Return an integer; above 0 unless the default is 0.

        A list has a number for each block; they have to be equal.
        """
        value = self._value(key, default)
        if isinstance(value, list) and value:
            if any(each != value[0] for each in value):
                raise UnsupportedError(
                    f"property '{self._name}.{key}' differs from block to block, "
                    f"{str(value)[:40]}; expected one number"
                )
            value = value[0]
        least = 0 if default == 0 else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(
                f"property '{self._name}.{key}' is {str(value)[:40]}, expected an integer of at "
                f"least {least}"
            )
        return value

    def number(self, key: str, default: float | None = None, least: float = 0.0) -> float:
        """Return a finite number above 0, and of at least another one."""
        value = self._value(key, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf or value < least:
            expected = f"of at least {least:g}" if least else "above 0"
            raise InputError(
                f"property '{self._name}.{key}' is {str(value)[:40]}, expected a number {expected}"
            )
        return float(value)

    def optional_number(self, key: str, default: float, least: float = 0.0) -> float:
        """Return a number as `number`; the default also for 0, as in llama.cpp."""
        value = self._properties.get(f"{self._name}.{key}")
        is_zero = isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0
        return default if value is None or is_zero else self.number(key, least=least)

    def scaling(self, has_long_rope: bool) -> str:
        """Return how rotary embeddings are scaled: ``none``, ``linear``, ``yarn`` or ``longrope``.

        Args:
            has_long_rope: files of the architecture may have the divisors of LongRoPE.
        """
        kind = str(self._value("rope.scaling.type", "linear"))
        kinds = ["none", "linear", "yarn", *(["longrope"] if has_long_rope else [])]
        if kind not in kinds:
            raise UnsupportedError(
                f"rotary embeddings are scaled by '{kind[:40]}', which is not supported; expected "
                f"{', '.join(kinds[:-1])} or {kinds[-1]}"
            )
        return kind

    def yarn(self, context: int, base: float) -> Yarn:
        """Return the scaling by YaRN."""
        if base == 1.0:
            raise InputError(
                f"property '{self._name}.rope.freq_base' is 1, expected more, as YaRN divides by "
                "its logarithm"
            )
        return Yarn(
            self.count("rope.scaling.original_context_length", context),
            self.number("rope.scaling.yarn_beta_fast", Yarn.fast),
            self.number("rope.scaling.yarn_beta_slow", Yarn.slow),
        )

    def rope_factor(self, kind: str) -> float:
        """Return the divisor of positions, of a kind of `scaling`."""
        linear = self.optional_number("rope.scale_linear", 1.0, _LEAST_FACTOR)
        factor = self.optional_number("rope.scaling.factor", linear, _LEAST_FACTOR)
        return 1.0 if kind == "none" else factor

    def window(self, context: int, period: int) -> int:
        """Return the number of tokens that a block with a window attends to; 0 for no window.

        Args:
            period: every such block of the architecture has no window; 1 if none has one, 0 if all
                have it.
        """
        window = self.count("attention.sliding_window", 0)
        if period == 1 and 0 < window < context:
            raise UnsupportedError(
                f"property '{self._name}.attention.sliding_window' is {window}, and models of this "
                f"architecture attend to all tokens; expected 0, or {context} at least"
            )
        return window if period != 1 else 0

    def windowed_blocks(self, blocks: int, period: int) -> tuple[bool, ...]:
        """Return whether each block attends to a window, where the model has one.

        Args:
            period: of the architecture: the last of as many blocks attends to all tokens.
        """
        key = "attention.sliding_window_pattern"
        value = self._properties.get(f"{self._name}.{key}")
        if isinstance(value, list):
            if len(value) != blocks or not all(isinstance(each, (bool, int)) for each in value):
                raise InputError(
                    f"property '{self._name}.{key}' is {str(value)[:40]}, expected {blocks} "
                    "booleans, one for each block"
                )
            return tuple(bool(each) for each in value)
        period = self.count(key, period)
        return tuple((block + 1) % period != 0 for block in range(blocks))
