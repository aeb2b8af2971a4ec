"""Fusion of reductions of the last axis with the elementwise operations around them.

A softmax or a normalization has one or two reductions and several elementwise operations of each
row. IREE 3.13 computes an expression that two operations read for each of them, and adds up each
vector of a row by itself. Here, expressions and reductions of the same rows become one kernel
(`subquant.kernels.cpu.row_program`)::

    %1 = stablehlo.reduce(%x) applies stablehlo.maximum across dimensions = [1]
    %2 = stablehlo.subtract %x, %1 (broadcast)
    %3 = stablehlo.exponential %2
    %4 = stablehlo.reduce(%3) applies stablehlo.add across dimensions = [1]
    %5 = stablehlo.divide %3, %4 (broadcast)

becomes::

    %5 = flow.dispatch @row_program::@row_program(%x)

Casts between f32 and integers with one scale are expressions, too: a softmax between two integer
products reads bytes and writes bytes.

Elements are computed by the same operations; sums add several vectors of partial sums. An operation
that depends on the kernel and precedes its last operation moves behind it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ...core._mlir import Operation, Value, ir
from ...emit import stablehlo as emit_stablehlo
from ...emit.kernel import KernelTable
from ...emit.operation import element_of, erase_unused, function_blocks, values_read
from ...numerics.element_types import F32, I8
from ..cpu.expression import ExpressionBody
from ..cpu.row_program import RowProgram, RowStage
from .dispatch_fusion import is_movable
from .elementwise_fusion import expressions_of
from .elementwise_match import FUSED_OPERATIONS, VIEWS, Expression, fold_of

_MAX_TOKENS = 1 << 16
"""The elements of a tensor, at most, in tokens of `elementwise_match`."""
_MAX_SCRATCH_BYTES = 16 << 10
"""Scratch memory of a row, at most."""
_MIN_ELEMENTS_TO_SPLIT = 1 << 12
"""Elements of a tensor, at least, whose extremum is reduced in two steps."""
_MAX_COLUMNS_OF_ONE_ROW = 1 << 13
"""Elements of a row without others, at most; a longer one is worth IREE's threads."""
_MAX_OPERANDS = 16
"""Operands of a kernel, at most; the results are further bindings, and IREE allows 32."""


def fuse_rows(kernels: KernelTable, module: Operation, lanes: int) -> None:
    """Replace reductions of rows, and the expressions around them, by kernels.

    This is for the functions of a module, without the bodies of loops; a vector has `lanes` f32
    lanes.
    """
    for block in list(function_blocks(module)):
        operations = [each.operation for each in block.operations]
        reductions = [op for op in operations if fold_of(op, _MAX_TOKENS)]
        if not reductions:
            continue
        for op in reductions:
            _split_extremum(op)
        _erase_dead(block)
        operations = [each.operation for each in block.operations]
        expressions = expressions_of(block, lanes, _MAX_TOKENS, (F32, I8), kernels.module_globals)
        groups = [each for each in _groups(operations, expressions) if each.pays]
        replaced: dict[Value, Value] = {}
        for group in groups:
            _replace(group, block, lanes, kernels, replaced)
        members = {each.op for group in groups for each in group.members}
        in_order = [op for op in operations if op in members]  # the last one is erased first
        erase_unused(*in_order, also=lambda each: each.name in FUSED_OPERATIONS)


def _split_extremum(op: Operation) -> None:
    """Reduce the last axis first where the greatest or least element of a tensor is reduced.

    The result is the same, and the extremum of a row joins the kernel that computes the row.
    """
    operand, start = op.operands
    axes = [axis for axis, size in enumerate(operand.type.shape) if size > 1]
    is_whole = len(axes) > 1 and math.prod(op.results[0].type.shape) == 1
    is_large = math.prod(operand.type.shape) >= _MIN_ELEMENTS_TO_SPLIT
    name = fold_of(op, _MAX_TOKENS)
    if name == "stablehlo.add" or not is_whole or not is_large:
        return
    function = str(name).removeprefix("stablehlo.")
    reduced = [int(axis) for axis in op.attributes["dimensions"]]
    outer_axes = [axis - (axis > axes[-1]) for axis in reduced if axis != axes[-1]]
    with ir.InsertionPoint(op), op.location:
        of_rows = emit_stablehlo.reduce(operand, [axes[-1]], function, start)
        result = emit_stablehlo.reduce(of_rows, outer_axes, function, start)
    op.results[0].replace_all_uses_with(result)
    op.erase()


def _erase_dead(block: ir.Block) -> None:
    """Erase operations whose results nobody reads: a dead view would keep a replaced reduction."""
    names = (*FUSED_OPERATIONS, *VIEWS, "stablehlo.reduce")
    erasable = [each.operation for each in block.operations if each.operation.name in names]
    erase_unused(*erasable, also=lambda each: each.name in names)


# -- groups ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Group:
    """Expressions of the same rows, which read results of each other in the same row only.

    Attributes:
        rows: the sizes of the row axes, without those of size 1.
        columns: the size of the last axis.
        results: the results of members, with the number of the member.
        views: reshapes, broadcasts, reversals and slices of results.
        dependents: values of other operations that depend on results, and all values of the
            dependent groups: a kernel computes all its results after all its operands.
        dependent_groups: the groups with a member that depends on results.
        end: the index in the block of the last operation or expression that reads a result or a
            view: no expression after it joins the group.
    """

    rows: tuple[int, ...]
    columns: int
    members: list[Expression] = field(default_factory=list)
    results: dict[Value, int] = field(default_factory=dict)
    views: set[Value] = field(default_factory=set)
    dependents: set[Value] = field(default_factory=set)
    dependent_groups: set[_Group] = field(default_factory=set)
    end: float = -1

    @classmethod
    def of(cls, expression: Expression) -> _Group | None:
        """The group of one expression; None if it is not reduced to rows, or is one long row.

        A row alone has the bits that it has among others: those of a token in a step of several.
        """
        *rows, columns = _sizes(expression.shape) or [0]
        group = cls(tuple(rows), columns)
        is_short = bool(rows) or 0 < columns <= _MAX_COLUMNS_OF_ONE_ROW
        return group if is_short and group._has_kind(expression) else None

    @property
    def pays(self) -> bool:
        """True for a reduction with another expression, whose kernel has few enough bindings."""
        operands = {value for each in self.members for value in each.operands}
        has_reduction = any(each.kernel.reduction for each in self.members)
        return has_reduction and len(self.members) > 1 and len(operands) <= _MAX_OPERANDS

    def accepts(self, expression: Expression) -> bool:
        """True if an expression reads results, in the same row only, and none of `dependents`."""
        operands = expression.operands
        if self.results.keys().isdisjoint(operands) or not self._has_kind(expression):
            return False
        if not (self.dependents.isdisjoint(operands) and self.views.isdisjoint(operands)):
            return False
        if any(each.reaches(operands) for each in self.dependent_groups):
            return False
        return all(
            self._is_of_row(expression, number)
            for number, operand in enumerate(operands)
            if operand in self.results
        )

    def add(self, expression: Expression, groups: Sequence[_Group]) -> None:
        """Add an expression; `groups` are all groups."""
        for each in groups:
            if each is not self and each.reaches(expression.operands):
                each.dependent_groups |= {self, *self.dependent_groups}
                each.dependents |= {*self.results, *self.views, *self.dependents}
            if self in each.dependent_groups:
                each.dependents.add(expression.op.results[0])
        self.results[expression.op.results[0]] = len(self.members)
        self.members.append(expression)

    def reaches(self, operands: Sequence[Value]) -> bool:
        """True if one of some operands depends on a result."""
        known = (self.results.keys(), self.views, self.dependents)
        return not all(each.isdisjoint(operands) for each in known)

    def skip(self, op: Operation, operands: Sequence[Value]) -> None:
        """Record an operation that is no member, and reads operands."""
        if not self.dependents.isdisjoint(operands):
            self.dependents.update(op.results)
        elif self.reaches(operands):
            (self.views if op.name in VIEWS else self.dependents).update(op.results)

    def _has_kind(self, expression: Expression) -> bool:
        """True for an expression or a reduction of rows, or an expression of a row's numbers."""
        sizes = _sizes(expression.shape)
        result_sizes = _sizes(expression.op.results[0].type.shape)
        if expression.kernel.reduction:
            return sizes == [*self.rows, self.columns] and result_sizes == list(self.rows)
        return sizes in ([*self.rows, self.columns], list(self.rows))

    def is_number(self, expression: Expression) -> bool:
        """True for an expression that has one value for each row, without a reduction."""
        return not expression.kernel.reduction and _sizes(expression.shape) == list(self.rows)

    def _is_of_row(self, expression: Expression, operand: int) -> bool:
        """True if a result of a member is read in the row that is computed."""
        number = self.results[expression.operands[operand]]
        member = self.members[number]
        has_elements = not member.kernel.reduction and not self.is_number(member)
        inner = self.columns if has_elements else 1
        strides = [math.prod(self.rows[axis + 1 :]) * inner for axis in range(len(self.rows))]
        if not self.is_number(expression):
            strides.append(1 if has_elements else 0)
        elif has_elements:
            return False
        axes = [axis for axis, size in enumerate(expression.shape) if size > 1]
        return all(
            read.offset == 0 and [read.strides[axis] for axis in axes] == strides
            for read in expression.body.reads()
            if read.operand == operand
        )


def _sizes(shape: Sequence[int]) -> list[int]:
    """The sizes of axes that have more than one element."""
    return [int(size) for size in shape if size > 1]


def _groups(operations: Sequence[Operation], expressions: Sequence[Expression]) -> list[_Group]:
    """The groups of a block, in the order of their first members."""
    by_op = {each.op: each for each in expressions}
    absorbed = {op for each in expressions for op in each.absorbed}
    indices = {op: index for index, op in enumerate(operations)}
    for each in expressions:
        for op in each.absorbed:  # it reads where the expression does
            indices[op] = max(indices[op], indices[each.op])
    groups: list[_Group] = []
    open_groups: list[_Group] = []
    for index, op in enumerate(operations):
        open_groups = [each for each in open_groups if each.end >= index]
        if op in absorbed:
            continue
        expression, own = by_op.get(op), None
        if expression is not None:
            own = next((each for each in reversed(open_groups) if each.accepts(expression)), None)
            if own is None:
                own = _Group.of(expression)
                groups += [] if own is None else [own]
                open_groups += [] if own is None else [own]
            if own is not None:
                own.add(expression, open_groups)
                own.end = max(own.end, _last_reader(op.results[0], indices))
        operands = values_read(op) if expression is None else expression.operands
        for group in open_groups:
            if group is not own:
                group.skip(op, operands)
    return groups


def _last_reader(value: Value, indices: Mapping[Operation, int]) -> float:
    """The index of the last operation that reads a value or a view; infinite if it is in a loop."""
    last, pending = -1.0, [value]
    while pending:
        for user in [use.owner.operation for use in pending.pop().uses]:
            last = max(last, indices.get(user, math.inf))
            pending += [user.results[0]] if user.name in VIEWS else []
    return last


# -- the call --------------------------------------------------------------------------------------


def _replace(
    group: _Group,
    block: ir.Block,
    lanes: int,
    kernels: KernelTable,
    replaced: dict[Value, Value],
) -> None:
    """Replace the results of a group by those of a call; the operations stay.

    `replaced` has the new values of earlier groups, and gets those of this one.
    """
    own = _own_operations(group)
    members = {each.op for each in group.members}
    # Not the order of the group: an earlier group may have moved some of them.
    in_order = [each.operation for each in block.operations if each.operation in members]
    later = _later_operations(group, block, own, in_order)
    if later is None:
        return
    written = [each.op.results[0] for each in group.members if _is_read_by_others(each.op, own)]
    operands: list[Value] = []
    stages = []
    for member in group.members:
        sources = []
        for operand in member.operands:
            if operand in group.results:
                sources.append(-1 - group.results[operand])
                continue
            value = replaced.get(operand, operand)
            if value not in operands:
                operands.append(value)
            sources.append(operands.index(value))
        result = member.op.results[0]
        stages.append(
            RowStage(
                _by_row(group, member),
                tuple(sources),
                member.kernel.reduction,
                group.is_number(member),
                written.index(result) if result in written else None,
                element_of(result.type),
            )
        )
    program = RowProgram(
        group.rows,
        group.columns,
        tuple(stages),
        tuple(math.prod(map(int, each.type.shape)) for each in operands),
        tuple(element_of(each.type) for each in operands),
        lanes,
    )
    if program.scratch_bytes > _MAX_SCRATCH_BYTES:
        return
    last = in_order[-1]
    with ir.InsertionPoint(last), last.location:
        types = [each.type for each in written]
        values = kernels.call(program, program.kernel(), operands, types, 0)
    for old, new in zip(written, values, strict=True):
        old.replace_all_uses_with(new)
        replaced[old] = new
    position = last
    for op in later:
        op.move_after(position)
        position = op


def _own_operations(group: _Group) -> set[Operation]:
    """The operations that are dead when the members are replaced.

    An absorbed operation may have other readers, also in another group.
    """
    members = {each.op for each in group.members}
    own = members.union(*(each.absorbed for each in group.members))
    while True:
        alive = {op for op in own - members if _is_read_by_others(op, own)}
        if not alive:
            return own
        own -= alive


def _later_operations(
    group: _Group, block: ir.Block, own: Collection[Operation], in_order: Sequence[Operation]
) -> list[Operation] | None:
    """The operations before the last member that depend on a member; `in_order` are the members.

    None if one of them cannot move behind it.
    """
    dependents, later = set(group.results), []
    first, last = in_order[0], in_order[-1]
    is_inside = False
    for op in [each.operation for each in block.operations]:
        is_inside = is_inside or op == first
        if op == last:
            break
        if is_inside and op not in own and not dependents.isdisjoint(values_read(op)):
            if not is_movable(op):
                return None
            dependents.update(op.results)
            later.append(op)
    return later


def _is_read_by_others(op: Operation, own: Collection[Operation]) -> bool:
    """True if an operation outside of a group reads a result, also through views."""
    pending = [op.results[0]]
    while pending:
        for user in [use.owner.operation for use in pending.pop().uses]:
            if user.name in VIEWS:
                pending.append(user.results[0])
            elif user not in own:
                return True
    return False


def _by_row(group: _Group, member: Expression) -> ExpressionBody:
    """The expression with a stride for each row axis, and one for the last axis."""
    axes = [axis for axis, size in enumerate(member.shape) if size > 1]
    end = (0,) if group.is_number(member) else ()
    return member.body.with_strides(lambda strides: (*(strides[axis] for axis in axes), *end))
