"""Pooling of images that a kernel computes: ``reduce_window`` of maxima and sums.

Before, for bytes that are widened for the reduction::

    %w = stablehlo.convert %q : (tensor<1x20x20x128xi8>) -> tensor<1x20x20x128xi32>
    %p = stablehlo.pad %w, %low, low = [0, 2, 2, 0], high = [0, 2, 2, 0], interior = [0, 0, 0, 0]
    %y = "stablehlo.reduce_window"(%p, %low) <{window_dimensions = array<i64: 1, 5, 5, 1>}> ...

After::

    %z = flow.dispatch @pooling::@pooling(%q)
    %y = stablehlo.convert %z : (tensor<1x20x20x128xi8>) -> tensor<1x20x20x128xi32>
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.windows import reducing_operation, window_padding, window_steps
from ...emit import stablehlo
from ...emit.constant_values import uniform_number
from ...emit.kernel import KernelTable
from ...emit.operation import element_of, erase_unused, mlir_type, producer_of, with_element
from ...numerics.element_types import F32, I8, I32, U8
from ..conv_geometry import ConvAxis
from ..cpu.pooling import PoolingKernel
from .images import READ_THROUGH, Images

_CONVERT, _TRANSPOSE = "stablehlo.convert", "stablehlo.transpose"
_MAXIMUM, _ADD = "stablehlo.maximum", "stablehlo.add"
_MIN_CHANNELS = 4
"""With fewer channels, vectors of channels are not worth a kernel."""


def replace_pooling(kernels: KernelTable, pools: list[Operation], lanes: int) -> None:
    """Replace operations ``reduce_window`` by calls of kernels, with vectors of `lanes` f32."""
    for op in pools:
        match = _PoolingMatch.of(op)
        if match is not None:
            operands = list(op.operands)
            op.results[0].replace_all_uses_with(match.call(kernels, lanes))
            op.erase()
            producers = [producer_of(each) for each in operands]
            erase_unused(*filter(None, producers), also=lambda each: each.name in READ_THROUGH)


@dataclass(frozen=True)
class _PoolingMatch:
    """A ``reduce_window`` of NHWC images, or of NWC, along the spatial axes."""

    op: Operation
    images: Images
    axes: tuple[ConvAxis, ConvAxis]
    is_sum: bool

    @classmethod
    def of(cls, op: Operation) -> _PoolingMatch | None:
        """Match an operation; None if it has no kernel."""
        if len(op.operands) != 2 or not all(v.type.has_static_shape for v in op.operands):
            return None
        rank = op.operands[0].type.rank
        windows, strides, dilations, base = (
            window_steps(op, name, rank)
            for name in (
                "window_dimensions",
                "window_strides",
                "window_dilations",
                "base_dilations",
            )
        )
        is_plain = set(dilations) == set(base) == {1} and windows[0] == windows[-1] == 1
        reduction = reducing_operation(op)
        images = Images.of(op.operands[0]) if is_plain and rank in (3, 4) else None
        if (
            images is None
            or reduction not in (_MAXIMUM, _ADD)
            or strides[0] != 1
            or strides[-1] != 1
        ):
            return None
        shape = [int(images.value.type.shape[axis]) for axis in images.order]
        padding = images.padding + window_padding(op, rank)
        axes = [
            ConvAxis(shape[axis], windows[axis], strides[axis], 1, *map(int, padding[axis]))
            for axis in range(1, rank - 1)
        ]
        axes = [ConvAxis(1, 1, 1, 1, 0, 0)] * (2 - len(axes)) + axes
        is_inside = all(each.outputs > 0 and each.min_taps_inside > 0 for each in axes)
        has_own_channels = not padding[[0, -1]].any() and shape[-1] >= _MIN_CHANNELS
        match = cls(op, images, (axes[0], axes[1]), reduction == _ADD)
        return match if is_inside and has_own_channels and match._is_neutral else None

    @property
    def _is_neutral(self) -> bool:
        """True if padding and the initial value change no result."""
        initial = uniform_number(self.op.operands[1])
        if initial is None:
            return False
        numbers = [*self.images.padding_values, initial.item()]
        element = element_of(self.op.results[0].type)
        if self.is_sum:
            has_negative_zero = any(math.copysign(1, number) < 0 for number in numbers)
            return element in (F32, I32) and set(numbers) == {0} and not has_negative_zero
        if element == F32:
            return all(number == -math.inf for number in numbers)
        least = 0 if self.images.is_unsigned else np.iinfo(np.int8).min
        return bool(max(numbers) <= least - self.images.zero_point)

    def call(self, kernels: KernelTable, lanes: int) -> Value:
        """Emit the call of the kernel, and return the operation's result."""
        images, (vertical, horizontal) = self.images, self.axes
        element = element_of(images.value.type)
        if images.is_unsigned:
            element = U8
        count, channels = (int(images.value.type.shape[images.order[axis]]) for axis in (0, -1))
        kernel = PoolingKernel(
            *(count, vertical, horizontal, channels, element, self.is_sum),
            *(images.zero_point if self.is_sum else 0, lanes),
        )
        type_ = self.op.results[0].type
        own_type = with_element(type_, mlir_type(kernel.result_element))
        with ir.InsertionPoint(self.op), self.op.location:
            operand = images.value
            if images.order != sorted(images.order):
                operand = stablehlo.transpose(operand, images.order)
            [result] = kernels.call(kernel, kernel.kernel(), [operand], [own_type], 0)
            if own_type == type_:
                return result
            if not images.zero_point:
                _replace_narrowed(self.op.results[0], result)
            return images.as_read(result, type_)


def _replace_narrowed(wide: Value, narrow: Value) -> None:
    """Let the users of a result that is converted back to bytes read the bytes."""
    for op in [use.owner.operation for use in wide.uses]:
        if op.name == _CONVERT and element_of(op.results[0].type) == I8:
            op.results[0].replace_all_uses_with(narrow)
        elif op.name == _TRANSPOSE:
            with ir.InsertionPoint(op), op.location:
                permutation = [int(axis) for axis in op.attributes["permutation"]]
                moved = stablehlo.transpose(narrow, permutation)
            _replace_narrowed(op.results[0], moved)
