"""Elementwise operations after a contraction that its kernel computes: the fused epilogue.

After an integer contraction come a bias, the rounding to the result's scale and a clamp::

    %acc = stablehlo.convolution(%x, %w) ... : (...) -> tensor<1x56x56x64xi32>
    %sum = stablehlo.add %acc, %bias : tensor<1x56x56x64xi32>
    %y = "subquant.requantize"(%sum) ... : (tensor<1x56x56x64xi32>) -> tensor<1x56x56x64xi8>

The matcher collects operations as long as their other operands are constants that vary along N at
most. The kernel computes them on the vectors of N that hold its accumulators, and reads constants
that vary from tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import array_of_dense
from ...dialects.grids import zero_point_grid
from ...dialects.quant import SCASTS, parameters_of
from ...dialects.subquant import REQUANTIZE
from ...emit import ArrayLike
from ...emit.constant_values import constant_elements
from ...emit.operation import element_of, producer_of, tensor_type
from ...emit.parameters import ModuleGlobals
from ...emit.stablehlo_semantics import EVALUATED, storage_element
from ...numerics.array_functions import bits_of, convert
from ...numerics.element_types import BOOL, F32, I8, I32, U8, Array
from ...numerics.requantization import Requantization

_MAX_OPERATIONS = 64
"""Operations of an epilogue, at most; IREE computes further ones."""


def _subtract_zero_point(op: Operation, x: ArrayLike) -> ArrayLike:
    type_ = op.operands[0].type
    parameters = parameters_of(type_)
    assert parameters is not None  # verified before
    zero_points = zero_point_grid(parameters, len(type_.shape))
    return convert(x, element_of(op.results[0].type)) - zero_points


def _bitcast(op: Operation, x: ArrayLike) -> ArrayLike:
    element = storage_element(op.results[0].type)
    assert element is not None  # `_is_elementwise`
    return bits_of(x, element)


OPERATIONS: dict[str, Callable[..., ArrayLike]] = {
    "stablehlo.bitcast_convert": _bitcast,
    **{
        f"stablehlo.{name}": EVALUATED[f"stablehlo.{name}"]
        for name in (
            *("abs", "add", "and", "clamp", "compare", "convert", "maximum", "minimum", "multiply"),
            *("negate", "not", "or", "round_nearest_even", "select", "shift_left"),
            *("shift_right_arithmetic", "subtract", "xor"),
        )
    },
    **{name: EVALUATED[name] for name in (*SCASTS, "subquant.saturate")},
    "subquant.subtract_zero_point": _subtract_zero_point,
}
"""Operations of epilogues and their functions; requantization has its own emitters."""

_F32_OPERATIONS = frozenset(  # of f32 alone
    f"stablehlo.{name}"
    for name in ("abs", "add", "clamp", "maximum", "minimum", "multiply", "negate", "subtract")
)


@dataclass(frozen=True, eq=False)
class EpilogueMatch:
    """Elementwise operations that follow a contraction.

    Attributes:
        accumulators: the result of the contraction.
        operations: the operations, each after its operands.
        result: the result of the last operation.
        axis: the axis of `accumulators` that is N.
        constants: the other operands, as grids: arrays with one axis at most longer than 1, N.
        integer_only: f32 estimates are not allowed.
        accumulator_bounds: returns the greatest magnitude of the accumulators for each N, if known.
        folds_bias: the kernel can initialize accumulators with numbers that differ by N.
    """

    accumulators: Value
    operations: tuple[Operation, ...]
    result: Value
    axis: int
    constants: Mapping[Value, Array]
    requantization: Requantization
    integer_only: bool
    accumulator_bounds: Callable[[], Array] | None = None
    folds_bias: bool = False

    @classmethod
    def of(
        cls,
        accumulators: Value,
        axis: int,
        requantization: Requantization,
        module_globals: ModuleGlobals,
        *,
        integer_only: bool,
        accumulator_bounds: Callable[[], Array] | None = None,
        folds_bias: bool = False,
    ) -> EpilogueMatch | None:
        """Match the longest sequence of operations that a kernel can compute; None for none.

        The arguments are attributes, and the globals of the module.
        """
        operations: list[Operation] = []
        values, constants = {accumulators}, dict[Value, Array]()
        pending, block = [accumulators], _block_of(accumulators.owner)
        is_f32 = storage_element(accumulators.type) == F32
        while pending and len(operations) < _MAX_OPERATIONS:
            for use in pending.pop(0).uses:
                op = use.owner.operation
                if op in operations or not _is_elementwise(op, is_f32) or _block_of(op) != block:
                    continue
                operands = [value for value in op.operands if value not in values]
                shape = accumulators.type.shape
                grids = [constant_grid(value, shape, axis, module_globals) for value in operands]
                if any(grid is None for grid in grids):
                    continue  # its last operand may be matched later
                constants |= {
                    v: grid for v, grid in zip(operands, grids, strict=True) if grid is not None
                }
                operations.append(op)
                values.add(op.results[0])
                pending.append(op.results[0])
        candidates = _closed_sequences(accumulators, operations)
        if not candidates:
            return None
        narrowest = min(
            reversed(candidates), key=lambda each: each[-1].results[0].type.element_type.width
        )
        return cls(
            accumulators,
            tuple(narrowest),
            narrowest[-1].results[0],
            axis,
            constants,
            requantization,
            integer_only,
            accumulator_bounds,
            folds_bias,
        )

    @property
    def n(self) -> int:
        """The size of N."""
        return int(self.accumulators.type.shape[self.axis])


def _block_of(op: Operation) -> ir.Block:
    return ir.InsertionPoint(op).block


def _is_elementwise(op: Operation, is_f32: bool) -> bool:
    """True for an operation of epilogues on integers, or on f32."""
    if op.name not in OPERATIONS and op.name not in REQUANTIZE:
        return False
    values = (*op.operands, *op.results)
    if any(not isinstance(value.type, ir.RankedTensorType) for value in values):
        return False
    elements = [storage_element(value.type) for value in values]
    if op.name == "stablehlo.bitcast_convert" and set(elements) != {I8, U8}:
        return False
    if None not in elements and not any(each.is_float for each in elements if each):
        return not is_f32
    if is_f32 and op.name in ("stablehlo.compare", "stablehlo.select"):
        return set(elements) == {BOOL, F32} and len({value.type.rank for value in values}) == 1
    if is_f32 or op.name not in ("stablehlo.convert", "stablehlo.round_nearest_even"):
        return op.name in _F32_OPERATIONS and all(each == F32 for each in elements)
    return F32 in elements and all(each in (F32, I32, I8, U8) for each in elements)


def constant_grid(
    value: Value, shape: Sequence[int], axis: int, module_globals: ModuleGlobals
) -> Array | None:
    """Return constants that vary along one axis at most, of the rank of a shape; else None."""
    op = producer_of(value)
    if op is None:
        return None
    array: Array | None
    if op.name in SCASTS:
        return constant_grid(op.operands[0], shape, axis, module_globals)
    if op.name == "stablehlo.constant" and op.attributes["value"].is_splat:
        attribute = op.attributes["value"]
        type_ = tensor_type([1] * len(shape), attribute.type.element_type)
        array = array_of_dense(ir.DenseElementsAttr.get_splat(type_, attribute.get_splat_value()))
        array = array.astype(np.int64) if array.dtype.kind == "i" else array
    elif op.name == "stablehlo.broadcast_in_dim":
        array, sizes = constant_elements(op.operands[0], module_globals), [1] * len(shape)
        axes = [int(each) for each in op.attributes["broadcast_dimensions"]]
        for each, size in zip(axes, op.operands[0].type.shape, strict=True):
            sizes[each] = int(size)
        order = np.argsort(axes)  # the operand's axes may come in any order
        array = array if array is None else array.transpose(order).reshape(sizes)
    else:
        array = constant_elements(value, module_globals)
    if array is None:
        return None
    if storage_element(value.type) == BOOL:
        array = array.astype(np.bool_)
    if array.ndim != len(shape):
        return array.reshape(()) if array.size == 1 else None
    for each in range(array.ndim):
        if each != axis and array.shape[each] > 1:
            first = array.take([0], each)
            if not (array == first).all():
                return None
            array = first
    return array


def _closed_sequences(
    accumulators: Value, operations: Sequence[Operation]
) -> list[list[Operation]]:
    """Sequences of operations whose intermediate results have no other users.

    Each ends with a result of 8, 16 or 32 bits, which a kernel can store.
    """
    results = [op.results[0] for op in operations]
    index_of = {value: index for index, value in enumerate(results)}
    reads = [{index_of[value] for value in op.operands if value in index_of} for op in operations]
    indices = {op: index for index, op in enumerate(operations)}
    users = [
        {indices.get(use.owner.operation, -1) for use in value.uses}
        for value in (accumulators, *results)
    ]
    sequences = []
    for last, result in enumerate(results):
        element = result.type.element_type
        is_integer = isinstance(element, ir.IntegerType) and element.is_signless
        if not (is_integer or isinstance(element, ir.F32Type)) or element.width not in (8, 16, 32):
            continue
        needed, pending = {last}, [last]
        while pending:
            more = reads[pending.pop()] - needed
            needed |= more
            pending += more
        if all(users[0 if index == last else index + 1] <= needed for index in needed):
            sequences.append([operations[index] for index in sorted(needed)])
    return sequences
