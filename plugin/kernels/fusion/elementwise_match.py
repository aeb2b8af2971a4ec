"""Matcher of elementwise expressions: small tensors that one kernel can compute.

An expression is an operation with the producers of its operands that only it reads. Broadcasts,
reshapes and reversals become accesses: offsets and strides at which the kernel reads a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import constant_attribute
from ...dialects.quant import storage_of_any
from ...dialects.windows import reducing_operation
from ...emit.constant_values import is_invariant
from ...emit.operation import element_of, is_dynamic
from ...emit.parameters import ModuleGlobals
from ...emit.stablehlo_semantics import comparison_direction, reshape_source
from ...numerics.element_types import BOOL, F16, F32, I8, I16, I32, I64, ElementType
from ...numerics.parameters import ExpressedType, StorageType
from ..cpu.elementwise import ElementwiseKernel
from ..cpu.expression import (
    BITCAST,
    BITWISE_OPS,
    CONVERT,
    DEQUANTIZE,
    ELEMENT_OPS,
    FLOAT_OPS,
    QUANTIZE,
    REDUCTIONS,
    SELECT,
    SHIFTS,
    TRANSCENDENTALS,
    ConstantNode,
    ExpressionBody,
    ExpressionStep,
    Node,
    OperandRead,
    StepResult,
)

_MAX_ELEMENTS = 1 << 13
"""Elements of a result for each token, at most; more are worth IREE's threads."""
_MAX_OPERATIONS = 32
"""The greatest number of operations of an expression; a longer one is left to IREE."""

_EXPENSIVE = (*TRANSCENDENTALS, QUANTIZE, "stablehlo.divide", "stablehlo.sqrt")
"""Operations that are not recomputed for each element that reads a result."""
_COMPARE, CONSTANT = "stablehlo.compare", "stablehlo.constant"
_BROADCAST, _RESHAPE, _SLICE = "stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.slice"
VIEWS = (_BROADCAST, _RESHAPE, "stablehlo.reverse", _SLICE)
"""Operations that become accesses, in the forms that `_Access` has."""
_CASTS = (QUANTIZE, DEQUANTIZE)
FUSED_OPERATIONS = (*ELEMENT_OPS, *VIEWS, *_CASTS, BITCAST, _COMPARE, CONVERT, CONSTANT)
"""Operations that are erased when an expression has replaced their users."""

_SMALL_INTEGERS = (I8, I16)
_INTEGERS = (*_SMALL_INTEGERS, I32, I64)
LOADED_ELEMENTS = (F32, *_INTEGERS)
"""Element types of tensors that kernels read; they write f16 too."""
_ELEMENT_NAMES = frozenset(map(str, (*LOADED_ELEMENTS, F16, BOOL)))


# -- accesses --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Access:
    """The element of a tensor that is read at each position of an expression.

    The index along an axis is ``start + step * position[axis]``, with a step of 1, or of -1 where
    the axis is reversed.

    Attributes:
        axes: for each axis of the tensor, the axis of the position; None for a constant index.
        starts: for each axis, the index at position 0.
        is_reversed: for each axis, True if the step is -1.
    """

    axes: tuple[int | None, ...]
    starts: tuple[int, ...]
    is_reversed: tuple[bool, ...]

    @classmethod
    def identity(cls, rank: int) -> _Access:
        """The access of a tensor of the expression's shape."""
        return cls(tuple(range(rank)), (0,) * rank, (False,) * rank)

    def permuted(self, axes: Sequence[int | None]) -> _Access:
        """The access of a tensor whose axes are axes of this one, or have size 1 (None)."""
        return _Access(
            tuple(None if axis is None else self.axes[axis] for axis in axes),
            tuple(0 if axis is None else self.starts[axis] for axis in axes),
            tuple(axis is not None and self.is_reversed[axis] for axis in axes),
        )

    def through(self, op: Operation) -> _Access | None:
        """The access of a view's operand; None if it has no such form."""
        before, after = (_shape(v) for v in (op.operands[0], op.results[0]))
        if op.name == _SLICE:
            if any(int(stride) != 1 for stride in op.attributes["strides"]):
                return None
            first = map(int, op.attributes["start_indices"])
            starts = tuple(own + start for own, start in zip(self.starts, first, strict=True))
            return replace(self, starts=starts)
        if op.name == _RESHAPE:
            long = [axis for axis, size in enumerate(after) if size > 1]
            if [after[axis] for axis in long] != [size for size in before if size > 1]:
                return None
            remaining = iter(long)
            return self.permuted([next(remaining) if size > 1 else None for size in before])
        if op.name == _BROADCAST:
            dims = [int(axis) for axis in op.attributes["broadcast_dimensions"]]
            return self.permuted(
                [axis if size > 1 else None for axis, size in zip(dims, before, strict=True)]
            )
        reversed_axes = {int(axis) for axis in op.attributes["dimensions"]}
        starts = tuple(
            after[axis] - 1 - start if axis in reversed_axes else start
            for axis, start in enumerate(self.starts)
        )
        is_reversed = tuple(flag ^ (i in reversed_axes) for i, flag in enumerate(self.is_reversed))
        return replace(self, starts=starts, is_reversed=is_reversed)

    def read(self, operand: int, shape: Sequence[int], rank: int) -> OperandRead:
        """The read of an operand, by its number and shape, for positions of a rank."""
        offset, strides, stride = 0, [0] * rank, math.prod(shape)
        for axis, start, is_reversed, size in zip(
            self.axes, self.starts, self.is_reversed, shape, strict=True
        ):
            stride //= size
            offset += start * stride
            if axis is not None:
                strides[axis] += -stride if is_reversed else stride
        return OperandRead(operand, offset, tuple(strides))


def _viewed(value: Value, access: _Access | None = None) -> tuple[Value, _Access]:
    """The value that views lead to, and its access."""
    access = access or _Access.identity(len(_shape(value)))
    while not isinstance(value.owner, ir.Block) and value.owner.operation.name in VIEWS:
        operand_access = access.through(value.owner.operation)
        if operand_access is None:
            break
        value, access = value.owner.operation.operands[0], operand_access
    return value, access


def _operand_access(operand: Value, op: Operation, access: _Access) -> _Access:
    """The access of an operand; scales and zero points of casts have one element."""
    if op.name in _CASTS and operand != op.operands[0]:
        return access.permuted([None] * len(_shape(operand)))
    return access


# -- operations ------------------------------------------------------------------------------------


def _shape(value: Value) -> list[int]:
    return [int(size) for size in value.type.shape]


def small_element(value: Value, tokens: int) -> ElementType | None:
    """The element type of a static tensor with few elements for each of a number of tokens.

    It is None for other tensors, and those without elements.
    """
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType) or str(type_.element_type) not in _ELEMENT_NAMES:
        return None
    shape = _shape(value)
    if any(map(is_dynamic, shape)) or not 0 < math.prod(shape) <= tokens * _MAX_ELEMENTS:
        return None
    return element_of(type_)


def is_elementwise(op: Operation, tokens: int) -> bool:
    """True for an elementwise operation that a kernel can compute for a number of tokens."""
    if op.name in _CASTS:
        return _storage_of_cast(op, tokens) is not None
    if op.name not in (*ELEMENT_OPS, BITCAST, _COMPARE, CONVERT):
        return False
    values = (*op.operands, *op.results)
    *operands, result = elements = [small_element(value, tokens) for value in values]
    if None in elements or any(_shape(value) != _shape(values[-1]) for value in values):
        return False
    if op.name == CONVERT:
        is_to_f16 = (operands[0], result) == (F32, F16)
        return is_to_f16 or (operands[0] in (*LOADED_ELEMENTS, BOOL) and result in LOADED_ELEMENTS)
    if op.name == BITCAST:
        return {operands[0], result} <= {F32, I32}
    if op.name == _COMPARE:
        kind = str(op.attributes["compare_type"]) if "compare_type" in op.attributes else "SIGNED"
        is_signed_or_float = kind.split()[-1].rstrip(">") in ("FLOAT", "SIGNED")
        return operands[0] in LOADED_ELEMENTS and is_signed_or_float
    if op.name == SELECT:
        return result in LOADED_ELEMENTS
    if op.name in BITWISE_OPS:
        return result in (*_INTEGERS, BOOL)
    if op.name in SHIFTS:
        count = _uniform_number(_viewed(op.operands[1])[0], tokens)
        return result in _INTEGERS and count is not None and 0 <= int(count.text) < result.bits
    return result == F32 if op.name in FLOAT_OPS else result in LOADED_ELEMENTS


def _storage_of_cast(op: Operation, tokens: int) -> StorageType | None:
    """The storage type of a cast between f32 and integers with one scale; None for others."""
    if op.name not in _CASTS:
        return None
    operand, scale, *zero_points = (small_element(each, tokens) for each in op.operands)
    described = storage_of_any(op.attributes["quantized_type"].value, op)
    if described is None or described[1] is not ExpressedType.F32 or scale != F32:
        return None
    if any(math.prod(_shape(each)) != 1 for each in [*op.operands][1:]):
        return None
    storage, result = described[0], small_element(op.results[0], tokens)
    if op.name == QUANTIZE:
        is_known = operand == F32 and result in LOADED_ELEMENTS and not zero_points
        return storage if is_known and storage.signed else None
    has_offsets = int(op.attributes["operandSegmentSizes"][3]) > 0
    is_known = operand in _SMALL_INTEGERS and result == F32 and not has_offsets
    has_own_type = all(each == operand for each in zero_points)
    return storage if is_known and has_own_type else None


def fold_of(op: Operation, tokens: int) -> str | None:
    """The operation that a reduction folds the last axes with; None for other operations.

    It starts from the operation's neutral element.
    """
    if op.name != "stablehlo.reduce" or len(op.operands) != 2:
        return None
    elements = {small_element(value, tokens) for value in (*op.operands, *op.results)}
    if elements not in ({F32}, {I32}):
        return None
    name = reducing_operation(op)
    if name not in REDUCTIONS or (elements == {I32} and name != "stablehlo.add"):
        return None
    start = _uniform_number(op.operands[1], tokens)
    if start is None or start.number != REDUCTIONS[name].neutral:
        return None
    axes = sorted(int(axis) for axis in op.attributes["dimensions"])
    rank = op.operands[0].type.rank
    return name if axes and axes == list(range(rank - len(axes), rank)) else None


def _uniform_number(value: Value, tokens: int) -> ConstantNode | None:
    """The number of all elements of a constant; None for other values."""
    attribute = constant_attribute(value, (CONSTANT,))
    if attribute is None or not attribute.is_splat:
        return None
    if small_element(value, tokens) not in LOADED_ELEMENTS:
        return None
    element, number = element_of(value.type), attribute.get_splat_value().value
    return ConstantNode(float(number).hex() if element.is_float else str(int(number)), element)


def buffer_of(value: Value) -> Value:
    """The value whose buffer holds the elements of a value, in the same order."""
    return reshape_source(value, through_whole_slices=True)


# -- expressions -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Expression:
    """A kernel that replaces an operation and its producers, and reads the tensors `operands`.

    Attributes:
        absorbed: the producers.
        shape, body: the shape that the expression is evaluated on, and the expression, before axes
            are merged.
    """

    op: Operation
    kernel: ElementwiseKernel
    operands: tuple[Value, ...]
    absorbed: tuple[Operation, ...]
    shape: tuple[int, ...]
    body: ExpressionBody


class ExpressionBuilder:
    """Builder of the expression of an operation, in vectors of `lanes` f32 lanes.

    `order` has the positions of operations in their block, which computes a number of `tokens`.
    """

    def __init__(
        self,
        op: Operation,
        order: Mapping[Operation, int],
        lanes: int,
        tokens: int,
        module_globals: ModuleGlobals,
    ) -> None:
        self._op, self._order, self._lanes, self._tokens = op, order, lanes, tokens
        self._module_globals = module_globals
        self._fold = fold_of(op, tokens)
        self._operands: list[Value] = []
        self._shape = _shape(op.operands[0])
        self._accesses: dict[Operation, _Access] = {}

    def build(self) -> Expression | None:
        """Return the expression; None if the operation has none."""
        op, identity = self._op, _Access.identity(len(self._shape))
        roots = list(op.operands)[:1] if self._fold else list(op.operands)
        self._absorb([(operand, _operand_access(operand, op, identity)) for operand in roots])
        if self._fold is None:
            self._accesses[op] = identity
        order = sorted(self._accesses, key=self._order.__getitem__)
        indices = {each: index for index, each in enumerate(order)}
        steps = tuple(self._step(each, indices) for each in order)
        last = self._node(roots[0], identity, indices) if self._fold else StepResult(len(steps) - 1)
        if any(small_element(each, self._tokens) not in LOADED_ELEMENTS for each in self._operands):
            return None
        expression = ExpressionBody(steps, last)
        result_shape = _shape(op.results[0])
        groups = _merged_axes(self._shape, expression.reads(), len(result_shape))
        if self._fold and len([group for group in groups if group[0] >= len(result_shape)]) != 1:
            return None
        kernel = ElementwiseKernel(
            tuple(math.prod(self._shape[axis] for axis in group) for group in groups),
            expression.with_strides(lambda strides: tuple(strides[group[-1]] for group in groups)),
            tuple(math.prod(_shape(each)) for each in self._operands),
            tuple(element_of(each.type) for each in self._operands),
            math.prod(result_shape),
            element_of(op.results[0].type),
            self._fold,
            self._lanes,
        )
        absorbed = tuple(each for each in order if each != op)
        operands, shape = tuple(self._operands), tuple(self._shape)
        return Expression(op, kernel, operands, absorbed, shape, expression)

    def _absorb(self, roots: Sequence[tuple[Value, _Access]]) -> None:
        """Find the producers that are computed where they are read, from the last to the first."""
        pending: dict[Operation, list[_Access]] = {}

        def visit(value: Value, access: _Access) -> None:
            value, access = _viewed(value, access)
            if not isinstance(value.owner, ir.Block) and value.owner.operation in self._order:
                pending.setdefault(value.owner.operation, []).append(access)

        for value, access in roots:
            visit(value, access)
        while pending:
            op = max(pending, key=self._order.__getitem__)
            accesses = pending.pop(op)
            if self._absorbs(op, accesses):
                self._accesses[op] = accesses[0]
                for operand in op.operands:
                    visit(operand, _operand_access(operand, op, accesses[0]))

    def _absorbs(self, op: Operation, accesses: Sequence[_Access]) -> bool:
        """True if a producer is computed where it is read, by one access."""
        result = op.results[0]
        is_full = len(self._accesses) == _MAX_OPERATIONS
        if not is_elementwise(op, self._tokens) or is_full:
            return False
        if is_invariant(result, self._module_globals):
            return False
        if any(access != accesses[0] for access in accesses):
            return False
        if small_element(result, self._tokens) == BOOL:  # kernels store no booleans
            return True
        is_read_once = math.prod(_shape(result)) == math.prod(self._shape)
        if not is_read_once and op.name in _EXPENSIVE:
            return False
        reads, pending = 0, [result]  # reads through views count too
        while pending:
            for user in [use.owner.operation for use in pending.pop().uses]:
                pending += [user.results[0]] if user.name in VIEWS else []
                reads += user.name not in VIEWS
        return reads == len(accesses)

    def _step(self, op: Operation, indices: Mapping[Operation, int]) -> ExpressionStep:
        access = self._accesses[op]
        nodes = tuple(
            self._node(operand, _operand_access(operand, op, access), indices)
            for operand in op.operands
        )
        name = comparison_direction(op) if op.name == _COMPARE else op.name
        storage = _storage_of_cast(op, self._tokens)
        return ExpressionStep(name, nodes, element_of(op.results[0].type), storage)

    def _node(self, value: Value, access: _Access, indices: Mapping[Operation, int]) -> Node:
        """The node of a value that is read by an access."""
        value, access = _viewed(value, access)
        number = _uniform_number(value, self._tokens)
        if number is not None:
            return number
        if not isinstance(value.owner, ir.Block) and value.owner.operation in indices:
            return StepResult(indices[value.owner.operation])
        buffer = buffer_of(value)
        if buffer not in self._operands:
            self._operands.append(buffer)
        return access.read(self._operands.index(buffer), _shape(value), len(self._shape))


def _merged_axes(shape: Sequence[int], reads: Sequence[OperandRead], end: int) -> list[list[int]]:
    """Groups of axes that every read treats as one axis.

    Axes of size 1 are left out; axes before `end` are not merged with later ones.
    """
    groups: list[list[int]] = []
    for axis, size in enumerate(shape):
        last = groups[-1][-1] if groups else axis
        is_mergeable = last < axis and (last < end) == (axis < end)
        if size == 1:
            continue
        if is_mergeable and all(r.strides[last] == r.strides[axis] * size for r in reads):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups
