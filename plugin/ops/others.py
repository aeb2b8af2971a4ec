"""Look-ups, normalizations and elementwise operations.

``embedding_lookup`` of a layout whose planes have the rows as first axis takes rows of the planes,
and dequantizes only those (*rows*). The others compute with the float values (*dequantized*), a
look-up with those of the rows where the table is of floats.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import UsageError
from ..layouts import QuantizedLayout
from ..numerics.array_functions import barrier, take
from ..numerics.element_types import AnyArray
from .registry import Op, Operand, real

_MAX_FUSED_ELEMENTS = 4096
"""The greatest number of elements of rows that are fused with their users, half of IREE's limit."""

embedding_lookup = Op("embedding_lookup")
"""``embedding_lookup(ids, table)``: rows of ``table [N, K]`` for integers ``ids``, in float32."""

rms_norm = Op("rms_norm")
"""``rms_norm(x, weight, epsilon=1e-6)``: ``x / sqrt(mean(x**2) + epsilon) * weight``, last axis."""

add, subtract, multiply, silu = Op("add"), Op("subtract"), Op("multiply"), Op("silu")


def _is_table(ids: AnyArray, table: Operand) -> bool:
    if np.dtype(ids.dtype).kind not in "iu" or len(table.shape) != 2:
        raise UsageError(
            f"embedding_lookup takes integers and a table [N, K], got {np.dtype(ids.dtype).name} "
            f"and {tuple(table.shape)}"
        )
    return True


def _has_rows(ids: AnyArray, table: Operand) -> bool:
    if not _is_table(ids, table) or not isinstance(table, QuantizedLayout):
        return False
    return "order" not in table.planes and all(
        plane.shape[:1] == table.shape[:1] for plane in table.planes.values()
    )


@embedding_lookup.implementation("rows", _has_rows)
def _rows(ids: AnyArray, table: QuantizedLayout) -> AnyArray:
    flat = ids.reshape(-1)
    planes = {name: take(plane, flat) for name, plane in table.planes.items()}
    rows = type(table)((flat.shape[0], table.shape[1]), planes, table.metadata)
    return _separate(rows.dequant()).reshape((*ids.shape, table.shape[1]))


def _separate(rows: AnyArray) -> AnyArray:
    """Return rows, which a program computes before their users if they are many.

    IREE 3.13 fuses a look-up with a reduction of the rows, as that of a norm: it computes 8 rows at
    a time on the stack, which holds 32 KiB, and refuses longer rows.
    """
    elements = rows.shape[0] * rows.shape[1]
    is_small = isinstance(elements, int) and elements <= _MAX_FUSED_ELEMENTS
    return rows if is_small else barrier(rows)


@embedding_lookup.implementation("dequantized", _is_table)
def _lookup(ids: AnyArray, table: Operand) -> AnyArray:
    if isinstance(table, QuantizedLayout):
        table = real(table)
    rows = take(table, ids.reshape(-1)).astype(np.float32)
    return _separate(rows).reshape((*ids.shape, table.shape[1]))


def _normalizes(x: Operand, weight: Operand, epsilon: float = 1e-6) -> bool:
    if tuple(weight.shape) != tuple(x.shape)[-1:]:
        raise UsageError(
            f"rms_norm takes a weight of the last axis of x, got {tuple(weight.shape)} for "
            f"{tuple(x.shape)}"
        )
    return True


@rms_norm.implementation("dequantized", _normalizes)
def _rms_norm(x: Operand, weight: Operand, epsilon: float = 1e-6) -> AnyArray:
    values = real(x)
    squares = (values * values).sum(axis=-1, dtype=np.float32, keepdims=True)
    mean = squares / np.float32(values.shape[-1])
    return values / np.sqrt(mean + np.float32(epsilon)) * real(weight)


def _broadcasts(x: Operand, y: Operand) -> bool:
    try:
        np.broadcast_shapes(tuple(x.shape), tuple(y.shape))
    except ValueError:
        raise UsageError(
            f"operands of the shapes {tuple(x.shape)} and {tuple(y.shape)} do not broadcast"
        ) from None
    return True


def _elementwise(op: Op, function: Callable[[AnyArray, AnyArray], AnyArray]) -> None:
    op.implementation("dequantized", _broadcasts)(lambda x, y: function(real(x), real(y)))


_elementwise(add, lambda x, y: x + y)
_elementwise(subtract, lambda x, y: x - y)
_elementwise(multiply, lambda x, y: x * y)


@silu.implementation("dequantized", lambda x: True)
def _silu(x: Operand) -> AnyArray:
    values = real(x)
    return values / (1 + np.exp(-values))
