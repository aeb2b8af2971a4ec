"""Constants of a program: values that the compiler can evaluate, and values equal at each call.

The compiler packs a constant weight for its kernel once. Between a constant and its use there are
perhaps operations that sort its bytes, change its zero point, or multiply or divide scales::

    %q = stablehlo.reshape %c : (tensor<512x16x16xi8>) -> tensor<512x256xi8>
    %d = "subquant.dequantize"(%scales, %super) {...} : (...) -> tensor<512x16xf32>

They are evaluated by the reference arithmetic, which defines them. A parameter that the compiler
reads is a constant too (`emit.parameters`). One function computes with constants and with other
tensors: arrays of the former are NumPy's, those of the latter are traced (`array_of`).
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable

import numpy as np

from ..core._mlir import Operation, Value, ir
from ..dialects.dense import CONSTANTS, array_of_dense, dense_of_array
from ..dialects.quant import described_type
from ..dialects.subquant import UNPACK, operands_of
from ..numerics.array_functions import convert, is_known
from ..numerics.casts import dequantize_blocks
from ..numerics.element_types import I8, U8, AnyArray, Array, ElementType
from ..numerics.packed_integers import unpack_planes, wrapped
from . import linalg, operation, scalar
from . import stablehlo as emit_stablehlo
from .gathers import AxisGather
from .operation import mlir_type
from .parameters import LOAD, ModuleGlobals, is_prepacked_argument
from .stablehlo_semantics import ELEMENTWISE, EVALUATED, MOVEMENT, broadcast_in_dim
from .trace import traced


def is_constant(value: Value, module_globals: ModuleGlobals) -> bool:
    """True if `constant_elements` can evaluate a value."""
    return operation.all_producers(value, functools.partial(_is_constant, module_globals))


def _is_constant(module_globals: ModuleGlobals, value: Value) -> bool | None:
    """True or False for a value; None where its operands decide."""
    op = _evaluated_producer(value)
    if op is None:
        return False
    if op.name in CONSTANTS:
        return isinstance(op.attributes["value"], ir.DenseElementsAttr)
    if op.name == LOAD:
        return module_globals.source_parameter(op) is not None
    return False if op.name in _ARITHMETIC and not _is_of_numpy(op) else None


def is_invariant(value: Value, module_globals: ModuleGlobals) -> bool:
    """True if a value has the same elements at each call.

    It is computed from constants, from globals that are never stored, which a program evaluates
    once when it is loaded, and from weights that are packed ahead of the call.
    """
    return operation.all_producers(value, functools.partial(_is_invariant, module_globals))


def _is_invariant(module_globals: ModuleGlobals, value: Value) -> bool | None:
    """True or False for a value; None where its operands decide."""
    if isinstance(value.owner, ir.Block):
        return is_prepacked_argument(value)
    op = _evaluated_producer(value)
    if op is None:
        return False
    return module_globals.is_immutable(op) if op.name == LOAD else None


def _evaluated_producer(value: Value) -> Operation | None:
    """The operation that computes a value, if it can be evaluated."""
    if isinstance(value.owner, ir.Block):
        return None
    op = value.owner.operation
    if op.name not in _EVALUATED and op.name != LOAD:
        return None
    if op.name == _BITCAST and not _keeps_integers(op):
        return None
    if op.name == _GATHER:
        gather = AxisGather.of(op)
        return op if gather is not None and gather.is_of_elements else None
    return op


def _keeps_integers(op: Operation) -> bool:
    """True for a cast between integers of one width, to signless ones."""
    source, target = (each.type.element_type for each in (op.operands[0], op.results[0]))
    are_integers = isinstance(source, ir.IntegerType) and isinstance(target, ir.IntegerType)
    return are_integers and source.width == target.width and target.is_signless


def constant_elements(value: Value, module_globals: ModuleGlobals) -> Array | None:
    """Return the elements of a constant; None for other values.

    Integers are signed in int64, floats have their own type (`array_of_dense`).
    """
    if not is_constant(value, module_globals):
        return None
    array = _evaluate(value.owner.operation, module_globals)
    return array.astype(np.int64, copy=False) if array.dtype.kind == "i" else array


def constant_bytes(value: Value, module_globals: ModuleGlobals) -> Array | None:
    """Return integers of at most 8 bits as uint8, in less memory than `constant_elements`."""
    if not is_constant(value, module_globals):
        return None
    array = _evaluate(value.owner.operation, module_globals)
    return array.view(np.uint8) if array.dtype == np.int8 else array.astype(np.uint8)


def _is_of_numpy(op: Operation) -> bool:
    """True if NumPy's arithmetic is the operation's: on floats, and on signless integers.

    NumPy's quotients of integers are floats.
    """
    elements = [str(each.type.element_type) for each in (*op.operands, *op.results)]
    is_float = elements[-1][0] == "f"
    if op.name == _DIVIDE and not is_float:
        return False
    return all((element[0] == "f" and is_float) or _SIGNLESS.match(element) for element in elements)


def _evaluate(op: Operation, module_globals: ModuleGlobals) -> Array:
    """The elements of a result; integers of 8 bits may be int8."""
    order = operation.backward_slice(op)
    reads = Counter(operand.owner.operation for each in order for operand in each.operands)
    arrays: dict[Operation, Array] = {}
    for each in order:
        producers = [operand.owner.operation for operand in each.operands]
        operands = [arrays[producer] for producer in producers]
        reads.subtract(producers)
        for producer in dict.fromkeys(producers):
            if not reads[producer]:
                del arrays[producer]  # free its memory
        if each.name == LOAD:
            arrays[each] = module_globals.elements(each)
        else:
            with np.errstate(all="ignore"):  # infinity * 0 is NaN, as it is when a program runs
                arrays[each] = _EVALUATED[each.name](each, *operands)
    return arrays[op]


def array_of(value: Value, module_globals: ModuleGlobals) -> AnyArray:
    """Return the elements of a constant, or a traced array of another tensor."""
    elements = constant_elements(value, module_globals)
    return traced(value) if elements is None else elements


def bytes_of(value: Value, module_globals: ModuleGlobals) -> AnyArray:
    """Return integers of at most 8 bits as sign-extended bytes."""
    constant = constant_bytes(value, module_globals)
    if constant is not None:
        return constant
    if value.type.element_type.width == 8:
        return convert(traced(value), U8)
    # StableHLO converts no integers of 3, 5 or 6 bits.
    identity = linalg.identity_map(value.type.rank)
    output = linalg.empty([int(n) for n in value.type.shape], mlir_type(I8))
    extended = linalg.generic(
        [value], output, [identity] * 2, lambda each, _: scalar(each).convert(I8).value
    )
    return traced(extended, U8)


def materialize(array: AnyArray, element: ElementType) -> Value:
    """Return the value of an array: a constant, or the result that was traced."""
    type_ = mlir_type(element)
    if not is_known(array):
        return emit_stablehlo.convert(array.value, type_)
    elements = to_storage(array, element)
    attribute = dense_of_array(elements, type_)
    if attribute.is_splat:
        # IREE keeps no splat in an executable: each call allocates memory and fills it before the
        # first kernel starts, which takes 1 us (IREE 3.13, one thread). It keeps a resource.
        data = np.ascontiguousarray(elements)
        attribute = ir.DenseResourceElementsAttr.get_from_buffer(data, "splat", attribute.type)
    return linalg.constant(attribute)


def to_storage(array: Array, element: ElementType) -> Array:
    """Convert an array to the dtype of its element type, 8-bit integers to signless int8."""
    signless = array.view(np.int8) if array.dtype == np.uint8 else array
    dtype = np.int8 if element.bits == 8 else element.dtype
    return np.ascontiguousarray(signless.astype(dtype, copy=False))


def erase_unused(value: Value) -> None:
    """Erase the operations that evaluate or pad an unused value, and their unused producers."""
    owner = value.owner
    if not isinstance(owner, ir.Block) and _is_erasable(owner.operation):
        operation.erase_unused(owner.operation, _is_erasable)


def _is_erasable(op: Operation) -> bool:
    return op.name in (*_EVALUATED, LOAD, "stablehlo.pad")


def _convert(op: Operation, array: Array) -> Array:
    type_ = op.results[0].type.element_type
    if isinstance(type_, ir.IntegerType):
        return _wrapped(op, array)
    return array.astype(ElementType.of_mlir(str(type_)).dtype)


def _wrapped(op: Operation, array: Array) -> Array:
    """Integers modulo ``2**bits`` of the result's type; floats unchanged."""
    type_ = op.results[0].type.element_type
    return wrapped(array, type_.width) if isinstance(type_, ir.IntegerType) else array


def _unpack(op: Operation, *planes: Array) -> Array:
    width = op.results[0].type.element_type.width
    low, *high = (plane.astype(np.uint8) for plane in planes)
    codes = np.asarray(unpack_planes(low, [int(n) for n in op.attributes["bits"]], *high))
    return codes.view(np.int8) if width == 8 else wrapped(codes.view(np.int8), width)


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


_BITCAST = "stablehlo.bitcast_convert"
_DIVIDE = "stablehlo.divide"
_GATHER = "stablehlo.gather"
_ARITHMETIC = (
    *("stablehlo.add", "stablehlo.convert", _DIVIDE),
    *("stablehlo.multiply", "stablehlo.subtract"),
)
_SIGNLESS = re.compile(r"i([2-9]|[1-6]\d)$")
_EVALUATED: dict[str, Callable[..., Array]] = {
    **dict.fromkeys(CONSTANTS, lambda op: array_of_dense(op.attributes["value"])),
    **dict.fromkeys(("quant.scast", "subquant.scast"), lambda op, array: array),
    **{
        name: MOVEMENT[name]
        for name in (linalg.BARRIER, "stablehlo.reshape", "stablehlo.slice", "stablehlo.transpose")
    },
    _BITCAST: _wrapped,
    "stablehlo.broadcast_in_dim": broadcast_in_dim,
    "stablehlo.convert": _convert,
    _GATHER: lambda op, table, indices: np.take(table, indices, mode="clip"),
    **{
        name: lambda op, *arrays: _wrapped(op, ELEMENTWISE[op.name](*arrays))
        for name in ("stablehlo.add", _DIVIDE, "stablehlo.multiply", "stablehlo.subtract")
    },
    **{name: EVALUATED[name] for name in ("stablehlo.and", "stablehlo.xor")},
    UNPACK: _unpack,
    "subquant.dequantize": _dequantize,
}
"""Functions of an operation and its constant operands."""
