"""Constants of a program: values that the compiler can evaluate, and values equal at each call.

The compiler packs a constant weight for its kernel once. Between a constant and its use there are
perhaps operations that sort its bytes, change its zero point, or multiply or divide scales::

    %q = stablehlo.reshape %c : (tensor<512x16x16xi8>) -> tensor<512x256xi8>
    %d = "subquant.dequantize"(%scales, %super) {...} : (...) -> tensor<512x16xf32>

They are evaluated by the reference arithmetic (`constant_evaluation`). A parameter that the
compiler reads is a constant too (`emit.parameters`). One function computes with constants and with
other tensors: arrays of the former are NumPy's, those of the latter are traced (`array_of`).
"""

from __future__ import annotations

import functools
import re

import numpy as np

from ..core._mlir import Operation, Value, ir
from ..dialects.dense import CONSTANTS, dense_of_array, splat_attribute
from ..dialects.quant import SCASTS
from ..dialects.subquant import UNPACK
from ..numerics.array_functions import convert, is_known
from ..numerics.element_types import I8, U8, AnyArray, Array, ElementType
from . import linalg, operation, scalar
from . import stablehlo as emit_stablehlo
from .constant_evaluation import evaluate, wide_elements
from .gathers import AxisGather
from .operation import mlir_type
from .parameters import LOAD, ModuleGlobals, is_prepacked_argument
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

    Integers are in int64, floats have their own type (`array_of_dense`).
    """
    if not is_constant(value, module_globals):
        return None
    return wide_elements(evaluate(value.owner.operation, module_globals.elements))


def constant_bytes(value: Value, module_globals: ModuleGlobals) -> Array | None:
    """Return integers of at most 8 bits as uint8, in less memory than `constant_elements`."""
    if not is_constant(value, module_globals):
        return None
    array = evaluate(value.owner.operation, module_globals.elements)
    return array.view(np.uint8) if array.dtype == np.int8 else wide_elements(array).astype(np.uint8)


def _is_of_numpy(op: Operation) -> bool:
    """True if NumPy's arithmetic is the operation's: on floats, and on signless integers.

    NumPy's quotients of integers are floats.
    """
    elements = [str(each.type.element_type) for each in (*op.operands, *op.results)]
    is_float = elements[-1][0] == "f"
    if op.name == _DIVIDE and not is_float:
        return False
    return all((element[0] == "f" and is_float) or _SIGNLESS.match(element) for element in elements)


def uniform_number(value: Value) -> Array | None:
    """Return the number that all elements of a constant are, without axes; None for other values.

    Broadcasts, reshapes and casts of storage keep elements equal.
    """
    attribute = splat_attribute(value, _SPREADS)
    if attribute is None:
        return None
    element = operation.element_of(attribute.type)
    return np.asarray(attribute.get_splat_value().value).astype(element.dtype)


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


def erase_unused(*values: Value) -> None:
    """Erase the operations that evaluate or pad unused values, and their unused producers."""
    producers = [operation.producer_of(each) for each in values]
    erasable = [op for op in producers if op is not None and _is_erasable(op)]
    operation.erase_unused(*erasable, also=_is_erasable)


def _is_erasable(op: Operation) -> bool:
    return op.name in (*_EVALUATED, LOAD, "stablehlo.pad")


_BITCAST = "stablehlo.bitcast_convert"
_DIVIDE = "stablehlo.divide"
_GATHER = "stablehlo.gather"
_SPREADS = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", *SCASTS)
_ARITHMETIC = (
    *("stablehlo.add", "stablehlo.convert", _DIVIDE),
    *("stablehlo.multiply", "stablehlo.subtract"),
)
_SIGNLESS = re.compile(r"i([2-9]|[1-6]\d)$")
_EVALUATED = frozenset(
    (
        *CONSTANTS,
        *SCASTS,
        linalg.BARRIER,
        *("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.reverse"),
        *("stablehlo.slice", "stablehlo.transpose", "stablehlo.and", "stablehlo.xor"),
        *(_BITCAST, _GATHER),
        *_ARITHMETIC,
        *(UNPACK, "subquant.dequantize"),
    )
)
"""The operations that are evaluated, among those of `constant_evaluation.FUNCTIONS`."""
