"""``estimate-work``: estimate the single-threaded time of each function (llvm-cpu).

A worker pool costs time for each call and dispatch, more than a small program gains: the runtime
runs it on the caller's thread (`subquant.signature.WorkEstimate.gains_from_threads`). This pass
estimates the time of a function in nanoseconds, and its number of dispatches, from shapes::

    func.func @main(%x: tensor<128x4096xi8>) -> tensor<128x4096xi32> {
      %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ...
      return %y : tensor<128x4096xi32>
    }

After, with ``instructions=avx512vnni``::

    func.func @main(%x: tensor<128x4096xi8>) -> tensor<128x4096xi32>
        attributes {subquant.work = "4720857 1"} ...

``check-hand-off`` writes the estimate into the reflection of the function. Functions with dynamic
shapes, loops, or operations of other dialects than StableHLO's get none.

The rates are those of an Emerald Rapids core: the kernel's for a contraction (IREE's loops without
a kernel), at most the memory bandwidth of the weight; and a small time for each element of other
operations, which are fused. An error of a factor of two matters only where both ways take about the
same time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, Value, ir, stablehlo
from ...dialects.block_contraction import BlockContraction
from ...dialects.quant import element_type, parameters_of
from ...dialects.subquant import BLOCK_CONTRACTION
from ...dialects.windows import dot_axes
from ...errors import Remark
from ...kernels.isa.registry import INSTRUCTION_SETS
from ...signature import WorkEstimate
from ..base import UNCHANGED, WORK_ATTRIBUTE, ModulePass, is_public, named

_INT8_MACS_PER_NS = {
    "amx": 1350.0,
    "avx512vnni": 460.0,
    "avxvnni": 200.0,
    "avx2": 80.0,
    "neon-dotprod": 100.0,
    "portable": 15.0,
}
"""int8 multiply-accumulates a nanosecond of kernels for an instruction set."""
_MAX_DEPTHWISE_MACS_PER_NS = 40.0
"""Upper bound of the int8 multiply-accumulates a nanosecond of depthwise convolutions."""
_MAX_BLOCKWISE_MACS_PER_NS = {"int8": 200.0, "float": 30.0}
"""Upper bound of the multiply-accumulates a nanosecond of blockwise GEMMs, by activations."""
_MAX_F32_MACS_PER_NS, _INT8_MACS_PER_F32_MAC = 60.0, 4
"""Upper bound of the f32 multiply-accumulates a nanosecond, and int8 ones that take as long as one.

They are those of kernels, which computed weights do not have.
"""
_IREE_MACS_PER_NS = 10.0
"""Multiply-accumulates a nanosecond of IREE's loops."""
_WEIGHT_BYTES_PER_NS = 25.0
"""Memory bandwidth of a core in bytes a nanosecond (GB/s), which limits a GEMV."""
_NS_PER_OUTPUT, _NS_PER_ELEMENT, _NS_PER_ARGUMENT_ELEMENT = 0.05, 0.01, 0.02
"""Nanoseconds for each output of a contraction, element of another operation and of an argument.

A chain of elementwise operations is one loop, or the epilogue of a kernel.
"""
_FREE = (
    *("arith.constant", "func.return", "quant.scast", "stablehlo.broadcast_in_dim"),
    *("stablehlo.constant", "stablehlo.reshape", "stablehlo.return", "subquant.scast"),
    *("tensor.cast", "tensor.collapse_shape", "tensor.expand_shape", "util.global.load"),
)
"""Operations without a cost: they are folded or fused."""
_CONTRACTIONS = (
    "stablehlo.convolution",
    "stablehlo.dot",
    "stablehlo.dot_general",
    BLOCK_CONTRACTION,
)
_OWN_DISPATCH = (
    *("stablehlo.gather", "stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.scatter"),
    *("stablehlo.concatenate", "stablehlo.sort", "stablehlo.fft"),
)
"""Further operations that are dispatches of their own."""
_INDEXED_FACTOR = 10.0
"""Cost of an element of a sort, gather or scatter, relative to an elementwise operation."""
_WIDENED = (
    *("stablehlo.and", "stablehlo.convert", "stablehlo.pad", "stablehlo.subtract"),
    "subquant.subtract_zero_point",
)
"""Operations between int8 operands and their contraction in wider integers."""
_ESTIMATED_DIALECTS = ("chlo.", "quant.", "stablehlo.", "subquant.")
_WITHOUT_ESTIMATE = (
    *("stablehlo.case", "stablehlo.custom_call", "stablehlo.if", "stablehlo.while"),
    "subquant.attention",
)


@dataclass(frozen=True)
class EstimateWork(ModulePass):
    """Record an estimate of the work of each public function.

    Options:
        instructions: the instruction set of kernels; ``none`` without kernels.
    """

    instructions: str = "none"

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Estimate; adds attributes, and never fails."""
        functions = {op.attributes["sym_name"].value: op for op in named(module, ["func.func"])}
        for op in functions.values():
            if is_public(op):
                work = _Estimate(self.instructions, functions).of_function(op)
                if work is not None:
                    op.attributes[WORK_ATTRIBUTE] = ir.StringAttr.get(str(work))
        return UNCHANGED  # the attribute is not verified


def nanoseconds_of(op: Operation, instructions: str) -> float | None:
    """Estimate the time of an operation; None for one that has no estimate."""
    try:
        return _Estimate(instructions, {}).of_operation(op)
    except _NoEstimate:
        return None


class _NoEstimate(Exception):
    """The work of an operation cannot be estimated."""


@dataclass(frozen=True)
class _Estimate:
    """Estimator of the functions of a module, which calls find by name."""

    instructions: str
    functions: Mapping[str, Operation]

    def of_function(self, function: Operation) -> WorkEstimate | None:
        """Return the work of a function, or None."""
        try:
            nanoseconds, dispatches = self._of_body(function, frozenset())
            block = function.regions[0].blocks[0]
            values = [*block.arguments, *block.operations[len(block.operations) - 1].operands]
            nanoseconds += sum(map(_elements, values)) * _NS_PER_ARGUMENT_ELEMENT
        except _NoEstimate:
            return None
        return WorkEstimate(math.ceil(nanoseconds), max(1, dispatches))

    def _of_body(self, function: Operation, callers: frozenset[str]) -> tuple[float, int]:
        nanoseconds, dispatches = 0.0, 0
        if len(function.regions[0].blocks) != 1:
            raise _NoEstimate  # a declaration, or branches
        for each in function.regions[0].blocks[0].operations:
            op = each.operation
            if op.name == "func.call":
                name = op.attributes["callee"].value
                if name in callers or name not in self.functions:
                    raise _NoEstimate
                time, calls = self._of_body(self.functions[name], callers | {name})
                dispatches += calls
            else:
                time = self.of_operation(op)
                dispatches += op.name in _CONTRACTIONS or op.name in _OWN_DISPATCH
            nanoseconds += time
        return nanoseconds, dispatches

    def of_operation(self, op: Operation) -> float:
        """Return the time of an operation; raise `_NoEstimate` for one without an estimate."""
        if op.name in _FREE:
            return 0.0
        if op.name in _WITHOUT_ESTIMATE or not op.name.startswith(_ESTIMATED_DIALECTS):
            raise _NoEstimate
        if op.name in _CONTRACTIONS:
            return self._of_product(op) + _elements(op.results[0]) * _NS_PER_OUTPUT
        elements = max(_elements(value) for value in (*op.operands, *op.results))
        if op.name == "stablehlo.reduce_window":
            elements = _elements(op.results[0]) * math.prod(op.attributes["window_dimensions"])
        if op.name in ("stablehlo.gather", "stablehlo.scatter", "stablehlo.sort"):
            elements = round(_INDEXED_FACTOR * sum(_elements(value) for value in op.results))
        return elements * _NS_PER_ELEMENT

    def _of_product(self, op: Operation) -> float:
        target = INSTRUCTION_SETS.get(self.instructions)
        of_bytes = _INT8_MACS_PER_NS[target.family] if target else 0.0
        if op.name == BLOCK_CONTRACTION:
            contraction = BlockContraction.of(op)
            rate = min(_MAX_BLOCKWISE_MACS_PER_NS[contraction.activation_type], of_bytes)
            bits = sum(contraction.plane_bits or (contraction.storage_type.width,))
            read = math.prod(contraction.storage_shape) * bits / 8
            _, stored, in_result = ([terms[0][0] for terms in axes] for axes in contraction.indices)
            extents = zip(stored, contraction.storage_shape, strict=True)
            reduced = math.prod(n for loop, n in extents if loop not in in_result)
            products = _elements(op.results[0]) * reduced
            return max(products / (rate or _IREE_MACS_PER_NS), read / _WEIGHT_BYTES_PER_NS)
        left, right = op.operands[:2]
        of_result, of_weight = _elements(op.results[0]), _elements(right)
        rate = of_bytes if _is_of_bytes(left) and _is_of_bytes(right) else 0.0
        bytes_per_weight = 1 if rate else 4
        has_kernel = target is not None and target.has_fma and not isinstance(right.owner, ir.Block)
        if has_kernel and isinstance(op.results[0].type.element_type, ir.FloatType):
            rate = min(_MAX_F32_MACS_PER_NS, of_bytes / _INT8_MACS_PER_F32_MAC)
        if op.name == "stablehlo.convolution":
            numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
            columns = int(right.type.shape[numbers.kernel_output_feature_dimension])
            summed = of_weight // max(1, columns)
            if int(op.attributes["feature_group_count"].value) > 1:
                rate = min(rate, _MAX_DEPTHWISE_MACS_PER_NS)
        else:
            _elements(left)
            summed = math.prod(int(left.type.shape[axis]) for axis in dot_axes(op)[0][0])
        read = of_weight * bytes_per_weight
        return max(of_result * summed / (rate or _IREE_MACS_PER_NS), read / _WEIGHT_BYTES_PER_NS)


def _elements(value: Value) -> int:
    """Return the number of elements of a value; raise `_NoEstimate` if its shape is dynamic."""
    type_ = value.type
    if not isinstance(type_, ir.ShapedType):
        return 1
    if not type_.has_rank or not type_.has_static_shape:
        raise _NoEstimate
    return math.prod(int(extent) for extent in type_.shape)


def _is_of_bytes(value: Value) -> bool:
    """Return True for int8 values, also minus a zero point, which kernels correct for."""
    while not _is_byte(value.type):
        if isinstance(value.owner, ir.Block) or value.owner.operation.name not in _WIDENED:
            return False
        value = value.owner.operation.operands[0]
    return True


def _is_byte(type_: ir.Type) -> bool:
    parameters = parameters_of(type_)
    if parameters is not None:
        return parameters.storage.width == 8
    return str(element_type(type_)) in ("i8", "ui8")
