"""Evaluation of operations on constants, by the reference arithmetic of `stablehlo_semantics`.

The elements of a result have the dtype of its element type (`ElementType`): integers below 8 bits
are sign-extended bytes. Each user lists the operations that it evaluates; this module evaluates
`FUNCTIONS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from ..core._mlir import Operation, Value, ir
from ..dialects.dense import CONSTANTS, constant_attribute, dense_of_array, narrow_array_of_dense
from ..dialects.quant import SCASTS, described_type
from ..dialects.subquant import UNPACK, operands_of
from ..numerics.casts import dequantize_blocks
from ..numerics.element_types import Array
from ..numerics.packed_integers import unpack_planes, wrapped
from .operation import backward_slice, element_of, value
from .stablehlo_semantics import EVALUATED, MOVEMENT, broadcast_in_dim


def operations_on_constants(
    operations: Iterable[Operation], accepts: Callable[[Operation], bool]
) -> list[Operation]:
    """List the accepted operations whose operands are constants, or results of listed operations.

    Args:
        operations: each has one result, and comes after the producers of its operands.
    """
    listed: dict[Operation, None] = {}

    def is_known(operand: Value) -> bool:
        return constant_attribute(operand) is not None or (
            not isinstance(operand.owner, ir.Block) and operand.owner.operation in listed
        )

    for op in operations:
        if op.name not in CONSTANTS and accepts(op) and all(map(is_known, op.operands)):
            listed[op] = None
    return list(listed)


def evaluate(op: Operation, load: Callable[[Operation], Array] | None = None) -> Array:
    """Return the elements of a result that `FUNCTIONS` compute from constants.

    Args:
        load: returns the elements of an operation that is not one of `FUNCTIONS`.
    """
    order = backward_slice(op)
    reads = Counter(operand.owner.operation for each in order for operand in each.operands)
    arrays: dict[Operation, Array] = {}
    for each in order:
        producers = [operand.owner.operation for operand in each.operands]
        operands = [arrays[producer] for producer in producers]
        reads.subtract(producers)
        for producer in dict.fromkeys(producers):
            if not reads[producer]:
                del arrays[producer]  # free its memory
        if load is not None and each.name not in FUNCTIONS:
            arrays[each] = load(each)
            continue
        with np.errstate(all="ignore"):  # infinity * 0 is NaN, as it is when a program runs
            result = FUNCTIONS[each.name](each, *operands)
        arrays[each] = _of_type(result, each.results[0].type.element_type)
    return arrays[op]


def replace_by_constant(op: Operation) -> None:
    """Let the users of a result read its elements, as a constant; see `evaluate`."""
    result = op.results[0]
    attribute = dense_of_array(evaluate(op), result.type.element_type)
    with ir.InsertionPoint(op), op.location:
        constant = value("stablehlo.constant", [], result.type, {"value": attribute})
    result.replace_all_uses_with(constant)


def wide_elements(array: Array) -> Array:
    """Return evaluated integers in int64, where a true i1 is -1; floats as they are."""
    if array.dtype.kind == "b":
        return -array.astype(np.int64)
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else array


def reduction_of(op: Operation) -> str | None:
    """Return the operation by which `FUNCTIONS` reduce one tensor; None for other reductions."""
    if op.name != _REDUCE or len(op.results) != 1:
        return None
    names = [each.operation.name for each in op.regions[0].blocks[0].operations]
    return names[0] if len(names) == 2 and names[0] in _REDUCTIONS else None


def _of_type(array: Array, element: ir.Type) -> Array:
    """Return integers modulo the width of their type, and floats, in its dtype."""
    if not isinstance(element, (ir.IntegerType, ir.BF16Type, ir.F16Type, ir.F32Type, ir.F64Type)):
        return array  # storage values of a quantized type, or small floats
    type_ = element_of(element)
    array = np.asarray(array).astype(type_.dtype, copy=False)
    if not type_.is_integer or type_.bits == 8 * type_.dtype.itemsize:
        return array
    return wrapped(array, type_.bits) if type_.kind == "int" else array & ((1 << type_.bits) - 1)


def _reduce(op: Operation, array: Array, initial: Array) -> Array:
    reduction = reduction_of(op)
    assert reduction is not None  # the user asked for it
    axes = tuple(int(axis) for axis in op.attributes["dimensions"])
    return _REDUCTIONS[reduction](EVALUATED[reduction](op, array, initial), axis=axes)


def _shift_right_logical(op: Operation, words: Array, counts: Array) -> Array:
    bits = element_of(op.results[0].type).bits
    unsigned = words.view(f"u{words.dtype.itemsize}") & ((1 << bits) - 1)
    is_overlong = (counts < 0) | (counts >= bits)
    shifted = unsigned >> np.where(is_overlong, 0, counts).astype(unsigned.dtype)
    return np.where(is_overlong, 0, shifted).astype(unsigned.dtype).view(words.dtype)


def _unpack(op: Operation, *planes: Array) -> Array:
    low, *high = (plane.astype(np.uint8) for plane in planes)
    codes = np.asarray(unpack_planes(low, [int(n) for n in op.attributes["bits"]], *high))
    return codes.view(np.int8)


def _dequantize(op: Operation, *arrays: Array) -> Array:
    storage, expressed = described_type(op)
    operands = operands_of(op)
    arrays_of = dict(zip(operands, arrays, strict=True))
    for name in ("input", "zero_points"):
        if name in arrays_of and not storage.signed:
            mask = (1 << operands[name].type.element_type.width) - 1
            arrays_of[name] = arrays_of[name].astype(np.int64) & mask
    return dequantize_blocks(
        arrays_of["input"],
        arrays_of["scales"],
        arrays_of.get("zero_points"),
        [int(size) for size in op.attributes["block_sizes"]],
        expressed,
        arrays_of.get("offsets"),
    )


_REDUCE = "stablehlo.reduce"
_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "stablehlo.maximum": np.max,
    "stablehlo.minimum": np.min,
}

FUNCTIONS: dict[str, Callable[..., Array]] = {
    **dict.fromkeys(CONSTANTS, lambda op: narrow_array_of_dense(op.attributes["value"])),
    **dict.fromkeys((*SCASTS, "stablehlo.bitcast_convert"), lambda op, array: array),
    **MOVEMENT,
    "stablehlo.broadcast_in_dim": broadcast_in_dim,
    "stablehlo.concatenate": lambda op, *arrays: np.concatenate(
        arrays, axis=int(op.attributes["dimension"])
    ),
    "stablehlo.gather": lambda op, table, indices: np.take(table, indices, mode="clip"),
    **{
        f"stablehlo.{name}": EVALUATED[f"stablehlo.{name}"]
        for name in (
            *("abs", "add", "and", "clamp", "compare", "convert", "divide", "maximum", "minimum"),
            *("multiply", "negate", "or", "round_nearest_even", "select", "shift_left"),
            *("shift_right_arithmetic", "subtract", "xor"),
        )
    },
    "stablehlo.power": lambda op, base, exponent: np.power(base, exponent),
    _REDUCE: _reduce,
    "stablehlo.shift_right_logical": _shift_right_logical,
    UNPACK: _unpack,
    "subquant.dequantize": _dequantize,
}
"""Functions of an operation and its constant operands.

A ``bitcast_convert`` is between integers of one width, a ``gather`` one of elements, a ``reduce``
one that `reduction_of` knows. NumPy's quotients and powers of integers are not those of StableHLO.
"""
