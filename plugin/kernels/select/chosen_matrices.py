"""Weights that are chosen among several matrices: those of experts, which a router chooses.

A mixture of experts gathers the matrices of a stacked weight, and contracts each with its rows of
activations. Before::

    %q = util.global.load @experts : tensor<8x512x64xi8>
    %s = util.global.load @scales : tensor<8x512x2xf16>
    %1 = "stablehlo.gather"(%q, %choices) ... -> tensor<2x512x64xi8>
    %2 = "stablehlo.gather"(%s, %choices) ... -> tensor<2x512x2xf16>
    %y = "subquant.block_contraction"(%x, %1, %2) ... -> tensor<2x1x512xf32>

The kernel reads the chosen matrices from the packed weight of all. After::

    %y = flow.dispatch @blockwise_gemm::@blockwise_gemm(%tiles, %choices, %x) -> tensor<2x512xf32>

Each tensor of the weight has to be gathered with the same numbers along its first axis, and then
only be changed by operations that compute a matrix from the same matrix of their operands. These
operations are cloned for all matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...core._mlir import Operation, Value, ir
from ...dialects.block_contraction import BlockContraction
from ...dialects.dense import CONSTANTS
from ...dialects.windows import dot_loops
from ...emit import linalg
from ...emit.constant_values import is_invariant
from ...emit.gathers import AxisGather
from ...emit.operation import is_used, with_shape
from ...emit.parameters import ModuleGlobals
from .gather_rows import GATHER, ROWWISE

_BROADCAST = "stablehlo.broadcast_in_dim"
_MATRIXWISE = {
    *ROWWISE,
    *("stablehlo.and", "stablehlo.bitcast_convert", "stablehlo.compare", "stablehlo.divide"),
    *("stablehlo.or", "stablehlo.select", "stablehlo.shift_left", _BROADCAST),
    *("stablehlo.shift_right_arithmetic", "stablehlo.shift_right_logical"),
}
"""Operations that compute a matrix of the result from the same matrix of each operand."""


@dataclass(frozen=True)
class ChosenMatrices:
    """Tensors of all matrices, in place of the chosen ones.

    Attributes:
        choices: the number of the matrix of each batch, ``[B]`` of i32.
        clones: the operations that compute the tensors of all matrices, in order.
    """

    tensors: dict[str, Value]
    choices: Value
    clones: list[Operation]

    @classmethod
    def of(cls, tensors: Mapping[str, Value], chosen: int) -> ChosenMatrices | None:
        """Match gathered tensors, and clone the operations after the gathers for all matrices.

        The clones are emitted at the insertion point.

        Args:
            chosen: the number of batches, the extent of the first axis of each tensor.
        """
        stack = _Stack(chosen)
        # Constants last: the first gather says how many matrices there are.
        in_order = sorted(tensors.items(), key=lambda item: _is_constant(item[1]))
        stacked = {name: stack.of(tensor) for name, tensor in in_order}
        all_matrices = {name: tensor for name, tensor in stacked.items() if tensor is not None}
        if stack.choices is None or len(all_matrices) < len(tensors):
            stack.erase()
            return None
        return cls(all_matrices, stack.choices, stack.clones)

    def is_invariant(self, module_globals: ModuleGlobals) -> bool:
        """True if no call changes the tensors."""
        return all(is_invariant(each, module_globals) for each in self.tensors.values())

    def erase_unused(self) -> None:
        """Erase the clones that nothing uses."""
        for op in reversed(self.clones):
            if not is_used(op.results[0]):
                op.erase()


def match_chosen_matrices(
    contraction: BlockContraction,
) -> tuple[BlockContraction, ChosenMatrices | None]:
    """Return the contraction with the weight of all matrices, and these, if they are chosen."""
    activations, storage, result = contraction.indices
    [batch] = storage[0]
    if batch not in [each for [each] in result] or [batch] not in activations:
        return contraction, None
    names = ("storage", "storage_high", "scales", "zero_points", "offsets")
    tensors = {name: getattr(contraction, name) for name in names}
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    chosen = ChosenMatrices.of(present, contraction.storage_shape[0])
    if chosen is None:
        return contraction, None
    all_matrices: Any = chosen.tensors
    return replace(contraction, **all_matrices), chosen


def match_chosen_weight(op: Operation) -> ChosenMatrices | None:
    """Match the right operand of a ``dot_general``, with a matrix for each batch.

    Its name among the tensors is ``weight``.
    """
    weight = op.operands[1]
    if op.name != "stablehlo.dot_general" or not weight.type.has_static_shape:
        return None
    (left, right, result), _ = dot_loops(op)
    if not right:
        return None
    if right[0] not in left or right[0] not in result:
        return None
    return ChosenMatrices.of({"weight": weight}, int(weight.type.shape[0]))


@dataclass
class _Stack:
    """Tensors of all matrices, from tensors of the chosen ones.

    Attributes:
        chosen: the number of chosen matrices.
        count: the number of all matrices, once a gather says it.
    """

    chosen: int
    count: int = 0
    choices: Value | None = None
    clones: list[Operation] = field(default_factory=list)
    stacked: dict[Value, Value | None] = field(default_factory=dict)

    def of(self, tensor: Value) -> Value | None:
        """Return the tensor of all matrices; None where it is not gathered."""
        if tensor not in self.stacked:
            self.stacked[tensor] = self._of(tensor)
        return self.stacked[tensor]

    def erase(self) -> None:
        """Erase all clones."""
        for op in reversed(self.clones):
            op.erase()

    def _of(self, tensor: Value) -> Value | None:
        type_ = tensor.type
        is_stack = type_.has_static_shape and type_.rank > 0 and type_.shape[0] == self.chosen
        if isinstance(tensor.owner, ir.Block) or not is_stack:
            return None
        op = tensor.owner.operation
        if op.name == GATHER:
            return self._gathered(op)
        if op.name in CONSTANTS:
            return self._constant(op)
        if op.name == _BROADCAST:
            return self._broadcast(op)
        return self._cloned(op, list(op.operands)) if op.name in _MATRIXWISE else None

    def _gathered(self, op: Operation) -> Value | None:
        """Return the table of a gather of matrices, or the entries of a codebook."""
        gather, table = AxisGather.of(op), op.operands[0]
        if gather is None:
            return None
        indices = gather.indices.type
        if gather.is_of_elements and indices.rank > 1:
            return self._cloned(op, [gather.indices], first=1)
        if gather.axis or gather.offsets != list(range(1, len(gather.shape))):
            return None
        if str(indices.element_type) != "i32" or [int(n) for n in indices.shape] != [self.chosen]:
            return None
        count = int(table.type.shape[0])
        if self.choices is None:
            self.choices, self.count = gather.indices, count
        return table if self.choices == gather.indices and self.count == count else None

    def _constant(self, op: Operation) -> Value | None:
        """Return a constant of equal elements for all matrices."""
        elements = op.attributes["value"]
        if not isinstance(elements, ir.DenseElementsAttr) or not elements.is_splat:
            return None
        if not self.count:
            return None
        splat = elements.get_splat_value()
        type_ = self._type(op.results[0].type)
        constant = linalg.constant(ir.DenseElementsAttr.get_splat(type_, splat))
        self.clones.append(constant.owner.operation)
        return constant

    def _broadcast(self, op: Operation) -> Value | None:
        """Return a broadcast for all matrices: of a tensor with one for each, or of none."""
        axes = [int(axis) for axis in op.attributes["broadcast_dimensions"]]
        if 0 in axes:
            return self._cloned(op, list(op.operands)) if axes[0] == 0 else None
        return self._cloned(op, []) if self.count else None

    def _cloned(self, op: Operation, operands: list[Value], first: int = 0) -> Value | None:
        """Clone an operation for the operands of all matrices, from the operand `first` on."""
        order = sorted(operands, key=_is_constant)
        stacked = {operand: self.of(operand) for operand in order}
        if any(each is None for each in stacked.values()):
            return None
        clone = op.clone().operation
        for number, operand in enumerate(operands, first):
            clone.operands[number] = stacked[operand]
        clone.results[0].set_type(self._type(op.results[0].type))
        self.clones.append(clone)
        return clone.results[0]

    def _type(self, type_: ir.Type) -> ir.Type:
        return with_shape(type_, [self.count, *(int(n) for n in list(type_.shape)[1:])])


def _is_constant(value: Value) -> bool:
    """True for a constant, or one that is broadcast."""
    if isinstance(value.owner, ir.Block):
        return False
    op = value.owner.operation
    return op.name in CONSTANTS or (op.name == _BROADCAST and _is_constant(op.operands[0]))
