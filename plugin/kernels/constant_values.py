"""What is known of a value when a program is compiled: constants, and what is computed from them.

A weight that is a constant is laid out for a kernel once, by the compiler. Between a constant and
its use there may be what sorts its bytes, turns its zero point, or multiplies scales::

    %q = stablehlo.reshape %c : (tensor<512x16x16xi8>) -> tensor<512x256xi8>
    %d = "subquant.dequantize"(%scales, %super) {...} : (...) -> tensor<512x16xf32>

These operations are computed by the reference arithmetic, which is what they mean. A parameter that
the compiler is given (`given_parameters`) is known like a constant.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import numpy as np

from ..core._mlir import Operation, Value, ir
from ..dialects.dense import CONSTANTS, array_of_dense
from ..dialects.quant import described_type
from ..dialects.subquant import UNPACK, operands_of
from ..emit import linalg, operation
from ..emit.gathers import AxisGather
from ..emit.stablehlo_semantics import ELEMENTWISE, EVALUATED, MOVEMENT, wrapped
from ..numerics.casts import dequantize_blocks
from ..numerics.element_types import Array, ElementType
from ..numerics.packed_integers import unpack_planes
from .pack.parameters import LOAD, given_parameter, is_immutable, loaded_elements
from .pack.prepack_arguments import is_weight

__all__ = ["constant_bytes", "constant_elements", "erase_unused", "is_constant", "is_invariant"]


def is_constant(value: Value) -> bool:
    """True if the elements of a value follow from constants by `constant_elements`."""
    return operation.all_producers(value, _is_known)


def _is_known(value: Value) -> bool | None:
    """The same of a value, or None where it depends on operands."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name not in _RULES:
        return False
    op = owner.operation
    if op.name in CONSTANTS:
        return isinstance(op.attributes["value"], ir.DenseElementsAttr)
    if op.name == LOAD:
        return given_parameter(op) is not None
    if op.name == _GATHER and not _takes_elements(op):
        return False
    return False if op.name in _ARITHMETIC and not _is_plain(op) else None


def is_invariant(value: Value) -> bool:
    """True if the elements of a value follow from what is the same at each call.

    That is constants, and globals that nothing changes, of which a program computes once, when it
    is loaded; and weights that are laid out before the call.
    """
    return operation.all_producers(value, _is_fixed)


def _is_fixed(value: Value) -> bool | None:
    """The same of a value, or None where it depends on operands."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return is_weight(value)
    op = owner.operation
    if op.name not in _RULES:
        return False
    if op.name == _GATHER and not _takes_elements(op):
        return False
    return is_immutable(op) if op.name == LOAD else None


def constant_elements(value: Value) -> Array | None:
    """Return the elements of a value, or None if they are known at run time only.

    Integers are signed numbers of 64 bits, floats of their own type, as of `array_of_dense`.
    """
    if not is_constant(value):
        return None
    array = _computed(value.owner.operation)
    return array.astype(np.int64, copy=False) if array.dtype.kind == "i" else array


def constant_bytes(value: Value) -> Array | None:
    """Return integers of at most 8 bits as bytes, as `constant_elements`, in less memory."""
    if not is_constant(value):
        return None
    array = _computed(value.owner.operation)
    return array.view(np.uint8) if array.dtype == np.int8 else array.astype(np.uint8)


def _is_plain(op: Operation) -> bool:
    """True if NumPy's arithmetic is that of an operation: on floats, and on signless integers."""
    elements = [str(each.type.element_type) for each in (*op.operands, *op.results)]
    is_float = elements[-1][0] == "f"
    return all((element[0] == "f" and is_float) or _INTEGER.match(element) for element in elements)


def _computed(op: Operation) -> Array:
    """The elements of a result; integers of 8 bits may be int8."""
    order = _in_order(op)
    readers = Counter(operand.owner.operation for each in order for operand in each.operands)
    found: dict[Operation, Array] = {}
    for each in order:
        behind = [operand.owner.operation for operand in each.operands]
        arrays = [found[given] for given in behind]
        readers.subtract(behind)
        for given in dict.fromkeys(behind):  # what nobody reads any more gives its memory back
            if not readers[given]:
                del found[given]
        found[each] = _RULES[each.name](each, *arrays)
    return found[op]


def _in_order(op: Operation) -> list[Operation]:
    """An operation, and those behind it, each once, after those behind its operands."""
    order: dict[Operation, None] = {}
    pending = [op]
    while pending:
        last = pending[-1]
        behind = [operand.owner.operation for operand in last.operands]
        missing = [each for each in behind if each not in order]
        if missing:
            pending += missing
        else:
            order[pending.pop()] = None
    return list(order)


def erase_unused(value: Value) -> None:
    """Erase what computes a value from constants, or pads it, where nobody uses it."""
    owner = value.owner
    if not isinstance(owner, ir.Block) and _is_erased(owner.operation):
        operation.erase_unused(owner.operation, _is_erased)


def _is_erased(op: Operation) -> bool:
    return op.name in (*_RULES, "stablehlo.pad")


def _constant(op: Operation) -> Array:
    return array_of_dense(op.attributes["value"])


def _convert(op: Operation, array: Array) -> Array:
    type_ = op.results[0].type.element_type
    if isinstance(type_, ir.IntegerType):
        return _wrapped(op, array)
    return array.astype(ElementType.of_mlir(str(type_)).dtype)


def _wrapped(op: Operation, array: Array) -> Array:
    """Integers modulo ``2**bits`` of the result's type; floats unchanged."""
    type_ = op.results[0].type.element_type
    return wrapped(array, type_.width) if isinstance(type_, ir.IntegerType) else array


def _takes_elements(op: Operation) -> bool:
    taking = AxisGather.of(op)
    return taking is not None and taking.is_of_elements


def _gather(op: Operation, table: Array, numbers: Array) -> Array:
    return np.take(table, numbers, mode="clip")


def _unpack(op: Operation, *planes: Array) -> Array:
    width = op.results[0].type.element_type.width
    low, *high = (plane.astype(np.uint8) for plane in planes)
    codes = np.asarray(unpack_planes(low, [int(n) for n in op.attributes["bits"]], *high))
    return codes.view(np.int8) if width == 8 else wrapped(codes.view(np.int8), width)


def _dequantize(op: Operation, *arrays: Array) -> Array:
    storage, expressed = described_type(op)
    operands = operands_of(op)
    given = dict(zip(operands, arrays, strict=True))
    for name in ("input", "zero_points"):
        if name in given and not storage.signed:
            mask = (1 << operands[name].type.element_type.width) - 1
            given[name] = given[name].astype(np.int64) & mask
    return dequantize_blocks(
        given["input"],
        given["scales"],
        given.get("zero_points"),
        [int(size) for size in op.attributes["block_sizes"]],
        expressed,
        given.get("offsets"),
    )


_GATHER = "stablehlo.gather"
_ARITHMETIC = ("stablehlo.add", "stablehlo.convert", "stablehlo.multiply", "stablehlo.subtract")
_INTEGER = re.compile(r"i([2-9]|[1-6]\d)$")
_RULES: dict[str, Callable[..., Array]] = {
    **dict.fromkeys(CONSTANTS, _constant),
    LOAD: loaded_elements,
    **dict.fromkeys(("quant.scast", "subquant.scast"), lambda op, array: array),
    **{
        name: MOVEMENT[name]
        for name in (linalg.BARRIER, "stablehlo.reshape", "stablehlo.slice", "stablehlo.transpose")
    },
    "stablehlo.convert": _convert,
    _GATHER: _gather,
    **{
        name: lambda op, *arrays: _wrapped(op, ELEMENTWISE[op.name](*arrays))
        for name in (*("stablehlo.add", "stablehlo.multiply", "stablehlo.subtract"),)
    },
    **{name: EVALUATED[name] for name in ("stablehlo.and", "stablehlo.xor")},
    UNPACK: _unpack,
    "subquant.dequantize": _dequantize,
}
"""Operations, and what they compute from known operands."""
