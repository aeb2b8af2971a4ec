"""Importers of comparisons, selections and logical operators.

Sources: LiteRT, ``maximum_minimum.cc``, ``comparisons.cc``, ``logical.cc``, ``select.cc``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert
from ....numerics.element_types import I32, AnyArray
from ..arithmetic.requantization import rescale
from ..call import Call, importer

__all__: list[str] = []


@importer("MAXIMUM", "MINIMUM")
def maximum_minimum(call: Call) -> AnyArray:
    """Import MAXIMUM and MINIMUM, of storage: LiteRT assumes equal scales."""
    function = np.maximum if call.operator.name == "MAXIMUM" else np.minimum
    return function(call.input(0).value, call.input(1).value)


_COMPARISONS: dict[str, Callable[[AnyArray, AnyArray], AnyArray]] = {
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
}


@importer(*_COMPARISONS)
def compare(call: Call) -> AnyArray:
    """Import comparisons; quantized operands are rounded to units of ``2**-8``.

    LiteRT assumes equal scales when it orders 16-bit operands. It rescales only by factors below 1.
    """
    left, right = call.input(0), call.input(1)
    function = _COMPARISONS[call.operator.name]
    if left.tensor.type == "INT16" and call.operator.name not in ("EQUAL", "NOT_EQUAL"):
        return function(left.value, right.value)
    if left.tensor.type == "BOOL":
        return function(convert(left.value, I32), convert(right.value, I32))
    if not left.is_quantized:
        return function(left.value, right.value)
    scales = [np.float64(call.per_tensor(operand.tensor).scale) for operand in (left, right)]
    if max(scales) >= 1:
        raise call.error(
            f"has operands of the scales {scales[0]:g} and {scales[1]:g}, which LiteRT compares "
            "only if both are below 1",
            UnsupportedError,
        )
    x, y = (
        rescale(call.centered(operand) << 8, scale)
        for operand, scale in zip((left, right), scales, strict=True)
    )
    return function(x, y)


@importer("LOGICAL_AND", "LOGICAL_OR")
def logical_and_or(call: Call) -> AnyArray:
    """Import LOGICAL_AND and LOGICAL_OR."""
    x, y = call.input(0).value, call.input(1).value
    return x & y if call.operator.name == "LOGICAL_AND" else x | y


@importer("LOGICAL_NOT")
def logical_not(call: Call) -> AnyArray:
    """Import LOGICAL_NOT."""
    return ~call.input(0).value


@importer("SELECT", "SELECT_V2")
def select(call: Call) -> AnyArray:
    """Import SELECT and SELECT_V2; a one-dimensional condition of SELECT selects rows."""
    condition, x, y = (call.input(index).value for index in range(3))
    if call.operator.name == "SELECT" and condition.ndim == 1 and x.ndim > 1:
        condition = condition.reshape((-1, *(1,) * (x.ndim - 1)))
    return np.where(condition, x, y)
