"""``convolution`` in the forms that IREE compiles, and compiles right.

Symptom (all targets): IREE refuses

* ``window_reversal``, like `reversal`: the kernel is reversed instead.
* one position along a window that leaves a part of the operand unread: the operand is padded and
  dilated first, and then cut.
* a depthwise convolution into wider elements: the operands are widened first; and one of widened
  operands: a barrier separates the conversions.

Symptom (Vulkan, where a convolution is written as loops before IREE reads it): wrong results for

* another layout than ``[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]``: operands and result are
  transposed.
* a few groups: each becomes a convolution of its own.
* a depthwise convolution with three spatial axes and several outputs per channel: the first outputs
  of all channels are one convolution, the second another, and so on.

Symptom (all targets): a convolution of f32 whose windows share no element (the patches of a vision
transformer) is slow: 224x224x3 in patches of 16x16 into 192 features take 15.3 ms, and 1.2 ms as a
product of matrices (one thread of a Zen 5).

Cause: the verifier of IREE 3.13 computes other sizes for the second form ("expected collapsed type"
for the third).
Test: `test_a_widened_depthwise_convolution` and
`test_depthwise_convolutions_of_three_axes_are_still_wrong` in tests/test_iree_limits*.py.

Source: StableHLO specification, ``convolution``.
"""

from __future__ import annotations

import math

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...core._mlir import stablehlo as bindings
from ...dialects.quant import element_type
from ...dialects.windows import window_padding, window_steps
from ...emit import stablehlo
from ...emit.operation import integer, is_dynamic, parse_attribute, with_shape
from ...numerics.element_types import Array
from ..base import NoMatch, Replacement, producer_named, replace_uses
from .loop_nests import dilated_size, is_static
from .reversal import reversed_along
from .unsigned_multiplicands import is_narrower


def expand_convolution(op: Operation) -> NoMatch | None:
    """Rewrite the forms that IREE refuses, in place."""
    changed = [
        _transpose_to_layout(op),
        _reverse_kernel(op),
        _cut_unread_end(op),
        _widen_depthwise(op),
    ]
    return None if any(changed) else NoMatch("has a form that IREE takes")


def _dimension_numbers(op: Operation) -> bindings.ConvDimensionNumbers:
    return bindings.ConvDimensionNumbers(op.attributes["dimension_numbers"])


# -- layout ---------------------------------------------------------------------------------------


def _transpose_to_layout(op: Operation) -> bool:
    """Transpose a convolution to ``[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]``."""
    numbers = _dimension_numbers(op)
    left = [
        numbers.input_batch_dimension,
        *numbers.input_spatial_dimensions,
        numbers.input_feature_dimension,
    ]
    right = [
        *numbers.kernel_spatial_dimensions,
        numbers.kernel_input_feature_dimension,
        numbers.kernel_output_feature_dimension,
    ]
    out = [
        numbers.output_batch_dimension,
        *numbers.output_spatial_dimensions,
        numbers.output_feature_dimension,
    ]
    if all(order == sorted(order) for order in (left, right, out)):
        return False
    for number, order in enumerate((left, right)):
        op.operands[number] = stablehlo.transpose(op.operands[number], order)
    spatial = "".join(f"{axis}, " for axis in range(len(out) - 2))
    layout = f"[b, {spatial}f]x[{spatial}i, o]->[b, {spatial}f]"
    op.attributes["dimension_numbers"] = parse_attribute(f"#stablehlo.conv<{layout}>")
    result = op.results[0]
    result.set_type(with_shape(result.type, [int(result.type.shape[axis]) for axis in out]))
    with ir.InsertionPoint.after(op):
        order = [out.index(axis) for axis in range(len(out))]
        replace_uses(result, lambda value: stablehlo.transpose(value, order))
    return True


def _reverse_kernel(op: Operation) -> bool:
    """Reverse the kernel instead of the windows."""
    if "window_reversal" not in op.attributes:
        return False
    spatial = list(_dimension_numbers(op).kernel_spatial_dimensions)
    flags = list(op.attributes["window_reversal"])
    axes = [axis for axis, flag in zip(spatial, flags, strict=True) if flag]
    op.operands[1] = reversed_along(op.operands[1], axes)
    del op.attributes["window_reversal"]
    return True


# -- windows --------------------------------------------------------------------------------------


def _cut_unread_end(op: Operation) -> bool:
    """Cut the unread end of the left operand, where the result has one position."""
    operand, kernel, result = op.operands[0], op.operands[1].type, op.results[0].type
    sizes = [*list(operand.type.shape)[1:-1], *kernel.shape, *list(result.shape)[1:-1]]
    if any(is_dynamic(int(size)) for size in sizes):
        return False
    if not isinstance(operand.type.element_type, (ir.IntegerType, ir.FloatType)):
        return False
    numbers = _dimension_numbers(op)
    spatial = list(numbers.input_spatial_dimensions)
    positions = [int(result.shape[axis]) for axis in numbers.output_spatial_dimensions]
    if 0 in positions:  # nothing is read: negative padding may exceed the operand
        return False
    windows = [int(kernel.shape[axis]) for axis in numbers.kernel_spatial_dimensions]
    padding = window_padding(op, len(spatial))
    dilations = window_steps(op, "lhs_dilation", len(spatial))
    window_dilations = window_steps(op, "rhs_dilation", len(spatial))
    dilates, cuts = any(step != 1 for step in dilations), False
    for number, axis in enumerate(spatial):
        dilated = dilated_size(int(operand.type.shape[axis]), dilations[number])
        read = dilated_size(windows[number], window_dilations[number])
        unread = dilated + int(padding[number].sum()) - read
        if positions[number] == 1 and (unread > 0 or dilates):
            padding[number, 1] -= unread
            if padding[number, 1] < -dilated:  # only the low padding is read
                padding[number] = read, -dilated
            cuts = True
    if cuts:
        _pad_before(op, spatial, padding, dilations)
    return cuts


def _pad_before(op: Operation, spatial: list[int], padding: Array, dilations: list[int]) -> None:
    """Write padding and left dilation as one ``pad``: IREE gets two pads wrong."""
    low, high, interior = ([0] * op.operands[0].type.rank for _ in range(3))
    for axis, (before, after), step in zip(spatial, padding, dilations, strict=True):
        low[axis], high[axis], interior[axis] = int(before), int(after), step - 1
    op.operands[0] = stablehlo.pad(op.operands[0], low, high, interior)
    for name in ("padding", "lhs_dilation"):
        if name in op.attributes:
            del op.attributes[name]


def multiply_patches(op: Operation) -> Replacement:
    """Write a convolution whose windows share no element as a product of matrices.

    The operand ``[b, n w, f]`` becomes ``[b n, w f]``, for windows of ``w`` positions.
    """
    left, right = op.operands
    type_ = op.results[0].type
    numbers = _dimension_numbers(op)
    axes = len(list(numbers.input_spatial_dimensions))
    windows = [int(right.type.shape[axis]) for axis in numbers.kernel_spatial_dimensions]
    groups = (op.attributes[f"{name}_group_count"].value for name in ("feature", "batch"))
    steps = [window_steps(op, f"{side}_dilation", axes) for side in ("lhs", "rhs")]
    if (
        any(int(count) != 1 for count in groups)
        or any(element_type(each.type) != ir.F32Type.get() for each in (left, right, *op.results))
        or not is_static(left, right, *op.results)
        or list(window_steps(op, "window_strides", axes)) != windows
        or all(window == 1 for window in windows)
        or any(step != 1 for each in steps for step in each)
        or window_padding(op, axes).any()
    ):
        return NoMatch("has windows that share elements, or no f32")
    batch, *sizes, features = (int(size) for size in left.type.shape)
    counts = [size // window for size, window in zip(sizes, windows, strict=True)]
    if [count * window for count, window in zip(counts, windows, strict=True)] != sizes:
        return NoMatch("leaves a part of the operand unread")
    pairs = [size for pair in zip(counts, windows, strict=True) for size in pair]
    patches = stablehlo.reshape(left, [batch, *pairs, features])
    order = [0, *range(1, 2 * axes, 2), *range(2, 2 * axes + 1, 2), 2 * axes + 1]
    k = math.prod(windows) * features
    rows = stablehlo.reshape(stablehlo.transpose(patches, order), [batch * math.prod(counts), k])
    outputs = int(type_.shape[axes + 1])
    matrix = stablehlo.reshape(right, [k, outputs])
    product_type = with_shape(type_, [batch * math.prod(counts), outputs])
    product = stablehlo.dot_general(rows, matrix, product_type, ([1], [0]))
    return stablehlo.reshape(product, [int(size) for size in type_.shape])


# -- groups ---------------------------------------------------------------------------------------


def _widen_depthwise(op: Operation) -> bool:
    """Give the operands of a depthwise convolution the elements of its result.

    The same goes for integer operands of any other grouped convolution. Barriers keep these
    conversions, and conversions of the program, apart: IREE would move them back into a depthwise
    convolution, and refuse it.
    """
    element, wide = (element_type(each.type) for each in (op.operands[0], op.results[0]))
    if int(op.attributes["feature_group_count"].value) == 1:
        return False
    if not is_static(*op.operands, *op.results):
        return False  # `dynamic_contractions`
    kernel = op.operands[1].type
    is_depthwise = kernel.shape[_dimension_numbers(op).kernel_input_feature_dimension] == 1
    kinds = (ir.IntegerType, ir.FloatType) if is_depthwise else ir.IntegerType
    is_narrow = element != wide and isinstance(element, kinds)
    changed = False
    for number in (0, 1):
        operand = op.operands[number]
        conversion = producer_named(operand, "stablehlo.convert")
        if is_narrow:
            operand = stablehlo.convert(operand, wide)
        elif (
            not is_depthwise
            or conversion is None
            or not is_narrower(conversion.operands[0].type, operand.type)
        ):
            continue
        op.operands[number] = emit.value("stablehlo.optimization_barrier", [operand], operand.type)
        changed = True
    return changed


_MAX_SPLIT_GROUPS = 16
"""Groups of a convolution, at most, that become convolutions of their own."""


def split_groups(op: Operation) -> Replacement:
    """Write one convolution for each group, and concatenate the results."""
    feature_groups = int(op.attributes["feature_group_count"].value)
    batch_groups = int(op.attributes["batch_group_count"].value)
    groups = max(feature_groups, batch_groups)
    left, right = op.operands
    type_ = op.results[0].type
    features = type_.rank - 1
    are_static = is_static(left, right, *op.results)
    is_depthwise = feature_groups > 1 and int(right.type.shape[features - 1]) == 1
    if is_depthwise and are_static and features > 3 and int(type_.shape[features]) > feature_groups:
        return _split_channel_outputs(op, feature_groups)
    if not 1 < groups <= _MAX_SPLIT_GROUPS or is_depthwise or not are_static:
        return NoMatch("has no groups to split")
    shape = [int(size) for size in type_.shape]
    shape[features] //= groups
    one_group = {"feature_group_count": integer(1), "batch_group_count": integer(1)}
    results = []
    for group in range(groups):
        operands = [
            _group_slice(left, 0 if batch_groups > 1 else features, group, groups),
            _group_slice(right, features, group, groups),
        ]
        results.append(emit.like(op, operands, [with_shape(type_, shape)], one_group).results[0])
    return stablehlo.concatenate(results, features)


def _split_channel_outputs(op: Operation, channels: int) -> Value:
    """Split a depthwise convolution by the number of the output of a channel."""
    left, right = op.operands
    type_, last = op.results[0].type, op.results[0].type.rank - 1
    shape, kernel = ([int(n) for n in each.shape] for each in (type_, right.type))
    outputs = shape[last] // channels
    results = []
    for number in range(outputs):
        starts, steps = [0] * len(kernel), [1] * len(kernel)
        starts[-1], steps[-1] = number, outputs
        weights = stablehlo.slice_(right, starts, kernel, steps)
        each = with_shape(type_, [*shape[:last], channels])
        result = emit.like(op, [left, weights], [each]).results[0]
        results.append(stablehlo.reshape(result, [*shape[:last], channels, 1]))
    return stablehlo.reshape(stablehlo.concatenate(results, last + 1), shape)


def _group_slice(tensor: Value, axis: int, number: int, count: int) -> Value:
    """Part `number` of `count` equal parts of a tensor along an axis."""
    limits = [int(size) for size in tensor.type.shape]
    starts, size = [0] * len(limits), limits[axis] // count
    starts[axis], limits[axis] = number * size, (number + 1) * size
    return stablehlo.slice_(tensor, starts, limits)
