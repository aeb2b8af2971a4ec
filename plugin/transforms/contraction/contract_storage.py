"""``contract-storage``: a contraction of two dequantized operands contracts their integers.

PyTorch's quantized programs (PT2E) dequantize activations and weights, and contract floats::

    %x = "subquant.dequantize"(%qx, %sx, %zx) : (tensor<4x256xi8>, ...) -> tensor<4x256xf32>
    %w = "subquant.dequantize"(%qw, %sw) : (tensor<512x256xi8>, tensor<512x1xf32>) -> ...
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (...) -> tensor<4x512xf32>

After (``acc`` is an i32 sum, which `select-kernels` and ``correct-zero-points`` take)::

    %dx = "subquant.subtract_zero_point"(%qx) : (tensor<4x256x!qx>) -> tensor<4x256xi32>
    %dw = "subquant.subtract_zero_point"(%qw) : (tensor<512x256x!qw>) -> tensor<512x256xi32>
    %acc = stablehlo.dot_general %dx, %dw, contracting_dims = [1] x [1] : (...) -> tensor<4x512xi32>
    %y = convert(%acc) * (%sx * %sw)

The sum over ``k`` is exact. Three operations round after it: the conversion of ``acc`` to f32 (no
rounding up to 2**24), the product of the scales, and the last product. So ``y`` differs from the
exact result by at most ``3 * 2**-24 * |y|``. A sum of floats rounds each dequantized operand, each
product and each partial sum: it differs by up to ``(K + 2) * 2**-24 * sum_k |x[k] * w[k]|``, so the
difference between both is within the bound of the float sum. Results that are quantized afterwards
are equal unless they are that close to a tie.

Casts of quantized types (``quant.dcast``, ``stablehlo.uniform_dequantize``) are read likewise.
Scales may be computed, one for each tensor or for each index of an axis that the result has. Zero
points are constants, or computed ones of the left operand: they are subtracted after the sum, times
the sums of the weight, and a convolution pads the storage with them. Left alone: operands with
offsets, scales along contracted axes, sums that i32 may not hold, and batch dimensions. With
``explain=true`` each contraction that is left alone is reported with its place and the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import DCASTS, described_type, parameters_of
from ...dialects.stablehlo import CONTRACTIONS
from ...dialects.subquant import DEQUANTIZE, operands_of
from ...dialects.windows import dot_axes
from ...emit import ArrayLike, Tensors, like, stored, tensor, with_element
from ...emit import stablehlo as emit_stablehlo
from ...emit.constant_values import constant_elements
from ...emit.operation import erase_unused, mlir_type, value
from ...emit.parameters import ModuleGlobals
from ...errors import Remark
from ...numerics.array_functions import convert
from ...numerics.element_types import F32, I8, I32, AnyArray, Array, ElementType
from ...numerics.packed_integers import wrapped
from ...numerics.parameters import StorageType
from ..base import UNCHANGED, ModulePass, NoMatch, named, producer_of
from ..quantization.math.contraction import Contraction, Side
from .sink_reshapes import sink_reshapes
from .zero_points import pad_window

_MOVEMENTS = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose")
_CASTS = (*DCASTS, "stablehlo.uniform_dequantize")
_WIDTHS = (2, 4, 8)
"""Bits of storage that is contracted as i8."""
_MAX_WIDTH = 16
"""Wider storage is that of accumulators, which no contraction reads."""


@dataclass(frozen=True)
class ContractStorage(ModulePass):
    """Contract the integers of operands that are both dequantized.

    Options:
        explain: return a remark on each contraction of two dequantized operands that stays.
    """

    explain: bool = False

    def run(self, module: Operation) -> Sequence[Remark]:
        """Contract in `module`; never fails."""
        remarks: list[Remark] = []
        is_changed, module_globals = False, ModuleGlobals(module)
        for op in named(module, CONTRACTIONS):
            operands = list(op.operands)[:2]
            with ir.InsertionPoint(op), op.location:
                left, right = (_Dequantized.of(each, module_globals) for each in operands)
                if left is None or right is None:
                    continue
                result = _contract(op, left, right)
            if isinstance(result, NoMatch):
                producers = map(producer_of, (*left.written, *right.written))
                erase_unused(*filter(None, producers), also=_dequantizes)
                if self.explain:
                    message = f"does not contract the integers of its operands: {result.reason}"
                    remarks.append(Remark.about(op, message))
                continue
            is_changed = True
            op.results[0].replace_all_uses_with(result)
            op.erase()
            sink_reshapes(result, module_globals)
            erase_unused(*(operand.owner.operation for operand in operands), also=_dequantizes)
        return remarks if is_changed or remarks else UNCHANGED


def _dequantizes(op: Operation) -> bool:
    return op.name in (*_MOVEMENTS, *_CASTS, DEQUANTIZE)


@dataclass(frozen=True)
class _Dequantized:
    """A dequantized operand ``(q - z) * s``.

    Attributes:
        movements: operations that move its elements, the last one first.
        operands: those of ``subquant.dequantize``, by name.
        block_sizes: sizes of the blocks that share a scale.
        storage: the type of ``q``.
        written: operands that are written for a cast of a quantized type.
    """

    movements: tuple[Operation, ...]
    operands: dict[str, Value]
    block_sizes: list[int]
    storage: StorageType
    module_globals: ModuleGlobals
    written: tuple[Value, ...] = ()

    @classmethod
    def of(cls, operand: Value, module_globals: ModuleGlobals) -> _Dequantized | None:
        """The producers of an operand; None if it is not dequantized."""
        movements: list[Operation] = []
        op = producer_of(operand)
        while op is not None and op.name in _MOVEMENTS:
            movements.append(op)
            op = producer_of(op.operands[0])
        if op is not None and op.name in _CASTS:
            return cls._of_cast(op, tuple(movements), module_globals)
        if op is None or op.name != DEQUANTIZE:
            return None
        blocks = [int(size) for size in op.attributes["block_sizes"]]
        storage, _ = described_type(op)
        return cls(tuple(movements), operands_of(op), blocks, storage, module_globals)

    @classmethod
    def _of_cast(
        cls, op: Operation, movements: tuple[Operation, ...], module_globals: ModuleGlobals
    ) -> _Dequantized | None:
        """Write the operands of a cast, which its type has; None for blocks and accumulators."""
        [quantized] = op.operands
        parameters = parameters_of(quantized.type)
        if parameters is None or parameters.granularity == "sub-channel":
            return None
        if parameters.storage.width > _MAX_WIDTH:
            return None
        if not quantized.type.has_static_shape:
            return None
        shape, axes = [int(n) for n in quantized.type.shape], parameters.axes
        blocks = [1 if axis in axes else size for axis, size in enumerate(shape)]
        grid = [size if axis in axes else 1 for axis, size in enumerate(shape)]
        scales = parameters.scales.astype(np.float32).reshape(grid)
        width = parameters.storage.width
        zero_points = wrapped(parameters.zero_points, width).reshape(grid)
        operands = {
            "input": stored(quantized),
            "scales": emit_stablehlo.constant(scales, mlir_type(F32)),
            "zero_points": emit_stablehlo.constant(zero_points, ir.IntegerType.get_signless(width)),
        }
        written = tuple(operands.values())
        return cls(movements, operands, blocks, parameters.storage, module_globals, written)

    @cached_property
    def varying_axis(self) -> int | NoMatch | None:
        """The axis of the operand along which parameters vary; None if there are single ones."""
        shape = [int(n) for n in self.operands["input"].type.shape]
        sizes = self.block_sizes
        axes = [axis for axis, (n, size) in enumerate(zip(shape, sizes, strict=True)) if size < n]
        if not axes:
            return None
        if len(axes) > 1 or sizes[axes[0]] != 1:
            return NoMatch("an operand has scales of blocks")
        axis = axes[0]
        for op in reversed(self.movements):
            if op.name != "stablehlo.transpose":
                return NoMatch("an operand with several scales is reshaped")
            axis = [int(each) for each in op.attributes["permutation"]].index(axis)
        return axis

    @cached_property
    def zero_points(self) -> Array | None:
        """The zero points, which are constant; None for computed ones."""
        zero_points = self.operands.get("zero_points")
        if zero_points is None:
            return np.zeros(1, np.int64)
        numbers = constant_elements(zero_points, self.module_globals)
        if numbers is None:
            return None
        unsigned = numbers & self.storage.maximum
        return (numbers if self.storage.signed else unsigned).reshape(-1)

    @property
    def bound(self) -> int:
        """The greatest magnitude of ``q - z``."""
        low, high = self.storage.type_range
        zeros = np.array([low, high]) if self.zero_points is None else self.zero_points
        return max(high - int(zeros.min()), int(zeros.max()) - low)

    def stored(self) -> Value:
        """Emit ``q`` as i8, in the operand's shape."""
        storage = self.operands["input"]
        if self.storage.width < 8:
            storage = emit_stablehlo.convert(storage, mlir_type(I8))
            if not self.storage.signed:
                mask = tensor(storage) & np.int64(self.storage.maximum)
                storage = mask.value
        for op in reversed(self.movements):
            storage = like(
                op, [storage], [with_element(op.results[0].type, mlir_type(I8))]
            ).results[0]
        return storage

    def difference(self, storage: Value) -> Value:
        """Emit ``q - z`` of the storage ``q``, or ``q`` where the zero points are computed."""
        zeros, axis = self.zero_points, self.varying_axis
        name = "i8" if self.storage.signed or self.storage.width < 8 else "u8"
        numbers = np.zeros(1, np.int64) if zeros is None else zeros
        text = f"!quant.uniform<{name}:f32, 1.0:{int(numbers[0])}>"
        if (numbers != numbers[0]).any():
            pairs = ", ".join(f"1.0:{int(each)}" for each in numbers)
            text = f"!quant.uniform<{name}:f32:{axis}, {{{pairs}}}>"
        cast = value("subquant.scast", [storage], with_element(storage.type, ir.Type.parse(text)))
        return value(
            "subquant.subtract_zero_point", [cast], with_element(cast.type, mlir_type(I32))
        )

    def parameter(self, name: str, element: ElementType) -> ArrayLike:
        """Emit the scales or zero points of the operand, of one axis or of none."""
        parameter, axis = self.operands[name], self.varying_axis
        assert not isinstance(axis, NoMatch)  # `_why_not`
        numbers = constant_elements(parameter, self.module_globals)
        shape = [] if axis is None else [parameter.type.shape[self._stored_axis(axis)]]
        if numbers is not None:
            return numbers.astype(element.dtype).reshape(shape)
        own = ElementType.of_mlir(str(parameter.type.element_type))
        if own.is_integer and not self.storage.signed:
            own = ElementType.parse(f"u{own.bits}")
        reshaped = tensor(emit_stablehlo.reshape(parameter, shape), own)
        return convert(reshaped, element)

    def constant_difference(self, difference: Value) -> Array | None:
        """The elements of a constant operand's `difference`; None for other operands."""
        [cast] = difference.owner.operation.operands
        integers = constant_elements(cast, self.module_globals)
        if integers is None or self.zero_points is None:
            return None
        shape = [1] * integers.ndim
        if isinstance(self.varying_axis, int):
            shape[self.varying_axis] = -1
        unsigned = integers & self.storage.maximum
        return (integers if self.storage.signed else unsigned) - self.zero_points.reshape(shape)

    def result_axes(self, side: Side) -> list[int]:
        """The axes of the result along which parameters vary."""
        axis = self.varying_axis
        assert not isinstance(axis, NoMatch)  # `_why_not`
        return [] if axis is None else [side.to_result[axis]]

    def _stored_axis(self, axis: int) -> int:
        for op in self.movements:
            axis = int(op.attributes["permutation"][axis])
        return axis


def _contract(op: Operation, left: _Dequantized, right: _Dequantized) -> Value | NoMatch:
    """Emit the contraction of integers and its scale; NoMatch with the reason otherwise."""
    contraction = Contraction.of(op)
    reason = _why_not(contraction, left, right)
    if reason is not None:
        return NoMatch(reason)
    storage = left.stored()
    changed: dict[str, ir.Attribute] = {}
    if left.zero_points is None and contraction.is_window:
        zero_point = emit_stablehlo.convert(left.parameter("zero_points", I32).value, mlir_type(I8))
        storage, changed = pad_window(op, storage, zero_point)
    x, w = left.difference(storage), right.difference(right.stored())
    acc: ArrayLike = tensor(contraction.create(x, w, mlir_type(I32), changed))
    form = acc.form
    assert isinstance(form, Tensors)
    if left.zero_points is None:
        zero_points = left.parameter("zero_points", I32)
        summed = sorted(contraction.right.contracted)
        free = [axis for axis in range(w.type.rank) if axis not in summed]
        weights = right.constant_difference(w)
        if weights is None:
            totals: AnyArray = tensor(emit_stablehlo.reduce(w, summed))
        else:
            totals = weights.sum(tuple(summed))
        targets = [contraction.right.to_result[axis] for axis in free]
        weight_sums = _spread(totals, targets, form)
        acc = acc - _spread(zero_points, left.result_axes(contraction.left), form) * weight_sums
    real: ArrayLike = convert(acc, F32)
    scales = [
        _spread(operand.parameter("scales", F32), operand.result_axes(side), form)
        for operand, side in ((left, contraction.left), (right, contraction.right))
    ]
    known = [each for each in scales if isinstance(each, np.ndarray)]
    if len(known) == 2:
        scales = [np.asarray(known[0] * known[1])]
    for scale in scales:
        real = real * scale
    return convert(real, ElementType.of_mlir(str(op.results[0].type.element_type))).value


def _spread(parameter: AnyArray, axes: Sequence[int], form: Tensors) -> AnyArray:
    """A tensor, or a grid of numbers, whose axes are those of the result at `axes`."""
    if not isinstance(parameter, np.ndarray):
        return form.emitted(form.broadcast(parameter.value, axes), parameter.element)
    shape = [1] * form.rank
    for axis, size in zip(axes, parameter.shape, strict=True):
        shape[axis] = size
    order = sorted(range(len(axes)), key=axes.__getitem__)
    return parameter.transpose(order).reshape(shape)


def _why_not(contraction: Contraction, left: _Dequantized, right: _Dequantized) -> str | None:
    """The reason why the integers are not contracted; None if they are."""
    op = contraction.op
    for operand, side in ((left, contraction.left), (right, contraction.right)):
        axis = operand.varying_axis
        if isinstance(axis, NoMatch):
            return axis.reason
        if axis is not None and axis not in side.to_result:
            return "an operand has scales along an axis that is summed over"
        if "offsets" in operand.operands:
            return "an operand has offsets"
        if operand.storage.width not in _WIDTHS:
            return f"an operand has storage of {operand.storage}"
    if str(op.results[0].type.element_type) not in ("f16", "bf16", "f32"):
        return "its result is no f16, bf16 or f32"
    if right.zero_points is None:
        return "its right operand has computed zero points"
    if contraction.is_window:
        if op.name != "stablehlo.convolution":
            return "its padding is an operand"
    elif dot_axes(op)[1][0]:
        return "it has batch dimensions"
    products = contraction.products
    if products is None:
        return "its number of products is dynamic, and i32 may overflow"
    if left.bound * right.bound * products >= 1 << 31:
        return f"{products} products may overflow i32"
    return None
