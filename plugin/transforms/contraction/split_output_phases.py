"""Transposed convolutions of floats as convolutions whose output channels are the output phases.

A transposed convolution with stride ``s`` convolves an image with ``s - 1`` zeros between its
pixels. An output pixel ``s * q + r`` of an axis has phase ``r``. With ``low`` padding, tap ``t`` of
it reads a pixel of the image, and no zero, where ``t + r - low`` is a multiple of ``s``::

    y[s * q + r] = sum_j x[q + b + j] * w[t + s * j]    t = (low - r) mod s,  b = (r + t - low) / s

So each phase is a convolution of the image itself, with every s-th tap. Consecutive phases that
read the same pixels are a *run*, and one convolution, whose output channels are those of all its
phases. No weight is a zero for another phase's pixels: its product with an infinity would be NaN.
The results are concatenated, and transposed to the order of pixels. ``select-kernels`` calls this:
the kernel then reads no zeros between pixels, and nobody writes them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, Value, ir, stablehlo
from ...dialects.windows import has_reversal, pad_amounts, window_padding, window_steps
from ...emit import stablehlo as emit_stablehlo
from ...emit.constant_values import constant_elements
from ...emit.operation import dense, producer_named, tensor_type
from ...emit.parameters import ModuleGlobals
from ...numerics.element_types import Array


@dataclass(frozen=True)
class _Axis:
    """A spatial axis of a transposed convolution.

    `stride` is the distance of image pixels, of which there are `size`; `low` the padding before
    them, `taps` the size of the filter, and `outputs` that of the result.
    """

    size: int
    stride: int
    low: int
    taps: int
    outputs: int

    def phase(self, number: int) -> tuple[int, int, int]:
        """The first tap of a phase, the first image pixel of its first output, and its taps."""
        tap = (self.low - number) % self.stride
        count = max(0, -(-(self.taps - tap) // self.stride))
        return tap, (number + tap - self.low) // self.stride, count

    @property
    def runs(self) -> list[_Run]:
        """The phases, from the first on, whose outputs read the same image pixels together."""
        runs: list[_Run] = []
        for number in range(self.stride):
            tap, first, count = self.phase(number)
            if runs and (runs[-1].first, runs[-1].count) == (first, count):
                runs[-1].taps.append(tap)
            else:
                runs.append(_Run(first, count, [tap]))
        return runs

    @property
    def positions(self) -> int:
        """The outputs of the first phase."""
        return -(-self.outputs // self.stride)


@dataclass(frozen=True)
class _Run:
    """Phases of an axis that have one window.

    The first output of each reads `count` image pixels, from `first` on; `taps` are the first taps.
    """

    first: int
    count: int
    taps: list[int]

    def padding(self, axis: _Axis) -> tuple[int, int]:
        """Low and high padding of the image, so that there are enough outputs."""
        low = max(0, -self.first)
        return low, max(0, self.first + axis.positions - 1 + self.count - axis.size)


def split_output_phases(op: Operation, module_globals: ModuleGlobals) -> Value | None:
    """Emit a float convolution of an image with zeros between its pixels as one without.

    None for other operations, several groups, strides, and weights that are not constant.
    """
    types = [each.type for each in (*op.operands, *op.results)]
    if op.name != "stablehlo.convolution" or not all(
        isinstance(type_.element_type, ir.FloatType) and type_.has_static_shape for type_ in types
    ):
        return None
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = list(numbers.input_spatial_dimensions)
    rank = len(spatial)
    groups = [int(op.attributes[f"{kind}_group_count"].value) for kind in ("feature", "batch")]
    steps = [window_steps(op, name, rank) for name in ("window_strides", "rhs_dilation")]
    if has_reversal(op):
        return None
    if groups != [1, 1] or any(step != 1 for each in steps for step in each):
        return None
    image, strides, low = _image(op, spatial, module_globals)
    weight = constant_elements(op.operands[1], module_globals)
    if weight is None or 0 in weight.shape or all(stride == 1 for stride in strides):
        return None
    if not np.isfinite(weight.astype(np.float32)).all():  # their products with zeros are NaN
        return None
    order = [
        *numbers.kernel_spatial_dimensions,
        numbers.kernel_input_feature_dimension,
        numbers.kernel_output_feature_dimension,
    ]
    weight = weight.transpose(order)
    outputs = [int(types[2].shape[axis]) for axis in numbers.output_spatial_dimensions]
    sizes = [int(image.type.shape[axis]) for axis in spatial]
    axes = [
        _Axis(*each) for each in zip(sizes, strides, low, weight.shape[:-2], outputs, strict=True)
    ]
    layout = ["b"] * (rank + 2)
    for name, axis in zip(map(str, range(rank)), spatial, strict=True):
        layout[axis] = name
    layout[numbers.input_feature_dimension] = "f"
    value = _convolve_phases(image, weight, axes, layout, types[2].element_type)
    result_axes = [numbers.output_batch_dimension, *numbers.output_spatial_dimensions]
    result_axes.append(numbers.output_feature_dimension)
    return emit_stablehlo.transpose(value, [result_axes.index(axis) for axis in range(rank + 2)])


def _image(
    op: Operation, spatial: list[int], module_globals: ModuleGlobals
) -> tuple[Value, list[int], list[int]]:
    """The image without zeros between its pixels, their distances, and the low padding.

    The zeros are those of ``pad`` operations or of the convolution's own ``lhs_dilation``.
    """
    rank, image = len(spatial), op.operands[0]
    strides = window_steps(op, "lhs_dilation", rank)
    low = [int(each) for each, _ in window_padding(op, rank)]
    while all(stride == 1 for stride in strides):
        pad = producer_named(image, "stablehlo.pad")
        if pad is None:
            break
        fill = constant_elements(pad.operands[1], module_globals)
        before, after, between = pad_amounts(pad)
        batch_and_channels = [axis for axis in range(rank + 2) if axis not in spatial]
        pads_others = (
            before[batch_and_channels].any()
            or after[batch_and_channels].any()
            or between[batch_and_channels].any()
        )
        crops = (before < 0).any() or (after < 0).any()
        if fill is None or fill.item() != 0 or pads_others or crops:
            break
        strides = [int(between[axis]) + 1 for axis in spatial]
        low = [own + int(before[axis]) for own, axis in zip(low, spatial, strict=True)]
        image = pad.operands[0]
    return image, strides, low


def _convolve_phases(
    image: Value, weight: Array, axes: list[_Axis], layout: list[str], element: ir.Type
) -> Value:
    """Emit the convolutions of all phases, and order their results as ``N x spatial... x OC``."""
    rank, n = len(axes), weight.shape[-1]

    def phases_of(runs: list[_Run]) -> Value:
        """Results of some runs: ``N x positions... x phases... x OC``."""
        if len(runs) == rank:
            return _convolve_runs(image, weight, axes, runs, layout, element)
        results = [phases_of([*runs, run]) for run in axes[len(runs)].runs]
        axis = 1 + rank + len(runs)
        return results[0] if len(results) == 1 else emit_stablehlo.concatenate(results, axis)

    value = phases_of([])
    pairs = [axis for number in range(1, rank + 1) for axis in (number, number + rank)]
    value = emit_stablehlo.transpose(value, [0, *pairs, 2 * rank + 1])
    images = int(value.type.shape[0])
    full = [axis.positions * axis.stride for axis in axes]
    value = emit_stablehlo.reshape(value, [images, *full, n])
    ends = [images, *(axis.outputs for axis in axes), n]
    return emit_stablehlo.slice_(value, [0] * len(ends), ends, [1] * len(ends))


def _convolve_runs(
    image: Value,
    weight: Array,
    axes: list[_Axis],
    runs: list[_Run],
    layout: list[str],
    element: ir.Type,
) -> Value:
    """Emit the convolution of a run of phases of each axis."""
    *_, channels, n = weight.shape
    images = int(image.type.shape[layout.index("b")])
    phases, shape = [len(run.taps) for run in runs], [run.count for run in runs]
    positions = [axis.positions for axis in axes]
    if 0 in shape:
        return emit_stablehlo.constant(
            np.zeros([images, *positions, *phases, n], weight.dtype), element
        )
    combined = np.empty((*shape, channels, math.prod(phases), n), weight.dtype)
    for number, taps in enumerate(itertools.product(*(run.taps for run in runs))):
        own = (slice(tap, None, axis.stride) for tap, axis in zip(taps, axes, strict=True))
        combined[..., number, :] = weight[tuple(own)]
    combined = combined.reshape((*shape, channels, -1))
    padding = [run.padding(axis) for run, axis in zip(runs, axes, strict=True)]
    computed = [
        axis.size + low + high - run.count + 1
        for axis, run, (low, high) in zip(axes, runs, padding, strict=True)
    ]
    spatial = [str(axis) for axis in range(len(axes))]
    numbers = (
        f"[{', '.join(layout)}]x[{', '.join([*spatial, 'i', 'o'])}]"
        f"->[{', '.join(['b', *spatial, 'f'])}]"
    )
    type_ = tensor_type([images, *computed, combined.shape[-1]], element)
    window = {"padding": dense(np.array(padding, np.int64), ir.IntegerType.get_signless(64))}
    constant = emit_stablehlo.constant(combined, element)
    value = emit_stablehlo.convolution(image, constant, type_, numbers, window, 1)
    starts = [0, *(max(0, run.first) for run in runs), 0]
    ends = [start + size for start, size in zip(starts, type_.shape, strict=True)]
    ends[1:-1] = [start + size for start, size in zip(starts[1:-1], positions, strict=True)]
    value = emit_stablehlo.slice_(value, starts, ends, [1] * len(ends))
    return emit_stablehlo.reshape(value, [images, *positions, *phases, n])
