"""Activation quantization of a checkpoint, recorded with the weight of the layer.

A layer rounds its input to integers or small floats before it multiplies by
the weight. The metadata of the weight's layout has the settings under `ACTIVATIONS_KEY`, so that
archives keep them. `dequant` of the weight does not depend on them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..errors import InputError

ACTIVATIONS_KEY = "activations"
"""The key of the settings in the metadata of a layout."""

_TYPES = {
    "i8": "8-bit integers",
    "i4": "4-bit integers",
    "f8E4M3FN": "8-bit floats (E4M3)",
    "f4E2M1FN": "4-bit floats (E2M1)",
}
_GRANULARITIES = ("tensor", "token", "group")
_SCALE_TYPES = (None, "f8E4M3FN", "f8E8M0FNU")


@dataclass(frozen=True)
class ActivationQuantization:
    """Quantization of a layer's input.

    Args:
        type: the type of the storage values: ``i8``, ``i4``, ``f8E4M3FN`` or ``f4E2M1FN``.
        granularity: the elements that share a scale: ``tensor``, ``token`` (the last axis), or
            ``group`` of consecutive elements of the last axis.
        group_size: the number of elements of a group.
        is_dynamic: True if scales are computed from the input; False if `scale` is the scale.
        is_symmetric: True if zero points are 0.
        scale, zero_point: of static quantization: ``real = (storage - zero_point) * scale``. In a
            stack of matrices these, and `global_scale`, may be lists with one for each.
        scale_type: the type that the scales of groups are rounded to; None for floats.
        global_scale: divides the scales of groups (NVFP4); None for 1.
        uses_reciprocal: inputs are multiplied by the reciprocal of the scale, rounded to f32.
        outlier_threshold: inputs of this magnitude or more stay floats (LLM.int8); None for none.
    """

    type: str
    granularity: str = "token"
    group_size: int | None = None
    is_dynamic: bool = True
    is_symmetric: bool = True
    scale: float | list[float] | None = None
    zero_point: int | list[int] = 0
    scale_type: str | None = None
    global_scale: float | list[float] | None = None
    uses_reciprocal: bool = False
    outlier_threshold: float | None = None

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            InputError: a setting is of a wrong type or value.
        """
        for name, expected, is_valid in (
            ("type", f"one of {', '.join(_TYPES)}", self.type in _TYPES),
            (
                "granularity",
                f"one of {', '.join(_GRANULARITIES)}",
                self.granularity in _GRANULARITIES,
            ),
            (
                "group_size",
                "a positive integer for groups, none otherwise",
                (self.group_size is not None) == (self.granularity == "group")
                and (self.group_size is None or _is_positive_integer(self.group_size)),
            ),
            ("is_dynamic", "true or false", isinstance(self.is_dynamic, bool)),
            ("is_symmetric", "true or false", isinstance(self.is_symmetric, bool)),
            ("uses_reciprocal", "true or false", isinstance(self.uses_reciprocal, bool)),
            (
                "scale",
                "a number above 0 for static quantization, none otherwise",
                (self.scale is None) == self.is_dynamic and _are(_is_scale, self.scale),
            ),
            ("zero_point", "an integer", _are(_is_integer, self.zero_point)),
            ("scale_type", f"one of {_SCALE_TYPES}", self.scale_type in _SCALE_TYPES),
            ("global_scale", "a number above 0", _are(_is_scale, self.global_scale)),
            ("outlier_threshold", "a number above 0", _is_scale(self.outlier_threshold)),
        ):
            if not is_valid:
                raise InputError(
                    f"'{name}' of the activation quantization is {getattr(self, name)!r}, expected "
                    f"{expected}"
                )

    @property
    def record(self) -> dict[str, Any]:
        """The settings that differ from the defaults, as JSON values."""
        defaults = {field.name: field.default for field in fields(self)}
        return {key: value for key, value in asdict(self).items() if value != defaults[key]}

    @classmethod
    def of_record(cls, record: object) -> ActivationQuantization:
        """Read a `record`.

        Raises:
            InputError: a setting is unknown, or of a wrong type or value.
        """
        known = {field.name for field in fields(cls)}
        if not isinstance(record, dict) or not {"type"} <= record.keys() <= known:
            raise InputError(
                f"the activation quantization is {record!r}, expected an object with 'type' and "
                f"keys of {sorted(known)}"
            )
        return cls(**record)

    def __str__(self) -> str:
        """The settings in words, without the numbers of one layer."""
        scope = f"group of {self.group_size}" if self.granularity == "group" else self.granularity
        scales = "scales of the input" if self.is_dynamic else "scales of the checkpoint"
        symmetry = "" if self.is_symmetric else ", with zero points"
        return f"{_TYPES[self.type]} per {scope}, {scales}{symmetry}"


def _is_integer(value: object) -> bool:
    return type(value) is int


def _are(check: Callable[[object], bool], values: object) -> bool:
    """Check a value, or each value of a list with elements."""
    return all(map(check, values)) and bool(values) if isinstance(values, list) else check(values)


def _is_positive_integer(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_scale(value: object) -> bool:
    return value is None or (type(value) in (int, float) and 0 < value < math.inf)  # type: ignore[operator]


def activations_of(metadata: Mapping[str, Any]) -> ActivationQuantization | None:
    """Return the activation quantization in the metadata of a layout; None without one."""
    record = metadata.get(ACTIVATIONS_KEY)
    return None if record is None else ActivationQuantization.of_record(record)


def stacked(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the record of a stack, with lists of the numbers in which its matrices differ.

    Raises:
        InputError: the matrices differ in another setting.
    """
    result = dict(records[0])
    for key in {key for record in records for key in record}:
        values = [record.get(key, 0 if key == "zero_point" else None) for record in records]
        if any(value != values[0] for value in values):
            if key not in ("scale", "zero_point", "global_scale"):
                raise InputError(f"activations differ in '{key}': {values[:3]!r}")
            result[key] = values
    return result


def summary(quantizations: Iterable[ActivationQuantization | None]) -> dict[str, int]:
    """Return the number of layers by the text of their activation quantization."""
    return dict(Counter(str(each) for each in quantizations if each is not None))
