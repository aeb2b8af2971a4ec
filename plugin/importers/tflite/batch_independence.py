"""Proof that a model computes the elements of its batch independently, as a loop over them does.

The batch axis of each value is followed from the inputs through the operators that the program of
one element computes. An operator that combines or reorders elements along the axis is refused, and
so is one that is not known here. A shape or a slice that the file states for a batch of 1 is that
of each element, as in `operators.shapes`. After a reshape that no other batch has, there is no axis
to follow: the rest of the model has a meaning for one element alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import SubquantError
from ...numerics.array_functions import is_known
from ...numerics.element_types import AnyArray
from .batch_constants import BatchConstants, refusal
from .call import Call
from .operand import ComplexValue
from .operators.shapes import reshaped_sizes

_NO_AXIS = -1
"""The batch axis after a reshape that other batches do not have."""
_PROBE_BATCH = 1_000_003
"""A batch that is no dimension size of a model: shapes of this batch show its axis."""


class BatchAxes:
    """Batch axes of the values of a program for one element.

    Args:
        compute: the computation of an operator, for constants of another batch.
    """

    def __init__(self, compute: Callable[[Call], Sequence[AnyArray]]) -> None:
        self._axes: dict[int, tuple[Any, int]] = {}  # by identity; the value is kept alive
        self._constants = BatchConstants(compute)

    def start(self, argument: AnyArray) -> None:
        """Record an argument with the batch in front."""
        self._axes[id(argument)] = (argument, 0)

    def follow(self, call: Call, results: Sequence[AnyArray]) -> None:
        """Record the batch axes of an operator's results.

        Raises:
            UnsupportedError: the operator is not known to compute each element of the batch alone.
        """
        pairs = [(n, each) for n, each in enumerate(call.inputs) if each is not None]
        entries = {n: self._axes.get(id(each.value)) for n, each in pairs}
        axes = {n: entry[1] for n, entry in entries.items() if entry is not None}
        computed = [each for each in results if not _is_constant(each)]
        if not computed:
            self._constants.record(call, results, axes.get(0, _NO_AXIS))
        else:
            self._constants.check_uses(call)
        if not axes or not computed:
            return
        if call.operator.name in _CALLS and all(id(each) in self._axes for each in computed):
            return  # the operators of the other graph were followed
        rule = _RULES.get(call.operator.name)
        if _NO_AXIS in axes.values():
            axis: int | None = _NO_AXIS
        else:
            axis = None if rule is None else rule(call, axes)
        if axis is None:
            raise refusal(call)
        for each in computed:
            self._axes[id(each)] = (each, axis)

    def is_in_front(self, result: AnyArray) -> bool:
        """True unless a result has the batch on another axis than the first."""
        return self._axes.get(id(result), (None, 0))[1] in (0, _NO_AXIS)


def _is_constant(value: Any) -> bool:
    return is_known(value.real if isinstance(value, ComplexValue) else value)


_Rule = Callable[[Call, dict[int, int]], int | None]
"""A rule returns the batch axis of all results, from those of the inputs; None to refuse."""


def _elementwise(call: Call, axes: dict[int, int]) -> int | None:
    """Inputs broadcast, with the batch on one axis, which no other input has."""
    ranks = {n: len(each.shape) for n, each in enumerate(call.inputs) if each is not None}
    rank = max(ranks.values())
    aligned = {rank - ranks[n] + axis for n, axis in axes.items()}
    if len(aligned) != 1:
        return None
    (result,) = aligned
    sizes = {n: call.input(n).shape[result - rank + ranks[n]] for n in axes}
    unbatched_sizes = [
        call.input(n).shape[result - rank + ranks[n]]
        for n in ranks
        if n not in axes and result - rank + ranks[n] >= 0
    ]
    return result if all(size in (1, min(sizes.values())) for size in unbatched_sizes) else None


def _selected(call: Call, axes: dict[int, int]) -> int | None:
    """A condition of one dimension selects whole elements of the batch."""
    if len(call.input(0).shape) == len(call.input(1).shape):
        return _elementwise(call, axes)
    return 0 if set(axes.values()) == {0} else None


def _images(index: int) -> _Rule:
    """Only the images, an input, have the batch, which is N."""
    return lambda call, axes: 0 if axes == {index: 0} else None


def _unchanged(call: Call, axes: dict[int, int], *combined: int, index: int = 0) -> int | None:
    """Only an input has a batch, which is no combined axis, and stays."""
    rank = len(call.input(index).shape)
    if set(axes) != {index} or axes[index] in {axis % rank for axis in combined}:
        return None
    return axes[index]


def _last_axis(call: Call, axes: dict[int, int]) -> int | None:
    """Elements along the last axis are combined."""
    return _unchanged(call, axes, -1)


def _last_axes(call: Call, axes: dict[int, int]) -> int | None:
    """Elements along the last two axes are combined."""
    return _unchanged(call, axes, -1, -2)


def _option_axis(call: Call, axes: dict[int, int]) -> int | None:
    """All inputs with a batch have it on one axis, and the option ``axis`` is another."""
    (batch, *unlike) = set(axes.values())
    axis = call.checked_axis(call.options.axis, len(call.input(0).shape))
    return None if unlike or batch == axis else batch


def _packed(call: Call, axes: dict[int, int]) -> int | None:
    """A new axis before the batch moves it."""
    (batch, *unlike) = set(axes.values())
    axis = call.checked_axis(call.options.axis, len(call.input(0).shape) + 1)
    return None if unlike else batch + (axis <= batch)


def _unpacked(call: Call, axes: dict[int, int]) -> int | None:
    axis = call.checked_axis(call.options.axis, len(call.input(0).shape))
    batch = _unchanged(call, axes, axis)
    return None if batch is None else batch - (axis < batch)


def _split(index: int, axis_index: int) -> _Rule:
    return lambda call, axes: _unchanged(
        call, axes, call.constant_axis(axis_index, len(call.input(index).shape)), index=index
    )


def _reduced(call: Call, axes: dict[int, int]) -> int | None:
    """Input 1 has the axes that are reduced."""
    rank = len(call.input(0).shape)
    reduced = call.constant_axes(1, rank)
    batch = _unchanged(call, axes, *reduced)
    if batch is None or call.options.keep_dims:
        return batch
    return batch - sum(axis < batch for axis in reduced)


def _arg_extremum(call: Call, axes: dict[int, int]) -> int | None:
    axis = call.constant_axis(1, len(call.input(0).shape))
    batch = _unchanged(call, axes, axis)
    return None if batch is None else batch - (axis < batch)


def _reversed(call: Call, axes: dict[int, int]) -> int | None:
    return _unchanged(call, axes, *call.constant_axes(1, len(call.input(0).shape)))


def _reversed_sequences(call: Call, axes: dict[int, int]) -> int | None:
    """The lengths have the batch if the sequences are its elements."""
    batch, options = axes.get(0), call.options
    if batch is None or batch == options.seq_dim or (1 in axes and batch != options.batch_dim):
        return None
    return batch


def _transposed(call: Call, axes: dict[int, int]) -> int | None:
    order = [axis % len(call.input(0).shape) for axis in call.constant_list(1)]
    return order.index(axes[0]) if set(axes) == {0} else None


def _reshaped(call: Call, axes: dict[int, int]) -> int | None:
    """The batch has as many elements in front as before; see `reshaped_sizes` for its axis."""
    if set(axes) != {0}:
        return None
    shape = call.input(0).shape
    count = math.prod(shape)
    one = reshaped_sizes(call, count)
    try:
        many = reshaped_sizes(call, count * _PROBE_BATCH)
    except SubquantError:
        return _NO_AXIS
    differing = [axis for axis, size in enumerate(one) if size != many[axis]]
    if len(differing) != 1:
        return None
    (axis,) = differing
    return axis if math.prod(one[:axis]) == math.prod(shape[: axes[0]]) else None


def _squeezed(call: Call, axes: dict[int, int]) -> int | None:
    """The options list the removed axes; without a list, the batch of other sizes stays."""
    shape = call.input(0).shape
    listed = {int(axis) % len(shape) for axis in call.options.squeeze_dims}
    batch = axes[0]
    if batch in listed or (not listed and shape[batch] == 1):
        return _NO_AXIS
    removed: set[int] = listed or {axis for axis, size in enumerate(shape) if size == 1}
    return batch - sum(axis < batch for axis in removed)


def _expanded(call: Call, axes: dict[int, int]) -> int | None:
    axis = call.constant_axis(1, len(call.input(0).shape) + 1)
    return axes[0] + (axis <= axes[0]) if set(axes) == {0} else None


def _sliced(call: Call, axes: dict[int, int]) -> int | None:
    """The whole batch is taken; a size of 1 is that of the file's batch."""
    batch = _unchanged(call, axes)
    if batch is None or (call.input(1).is_constant and call.constant_list(1)[batch]):
        return None
    return batch if call.constant_list(2)[batch] in (-1, call.input(0).shape[batch]) else None


def _strided(call: Call, axes: dict[int, int]) -> int | None:
    """The whole batch is taken, in its order, and no axis is added or removed before it."""
    batch, options = _unchanged(call, axes), call.options
    if batch is None or options.new_axis_mask or options.ellipsis_mask:
        return None
    starts, stops, steps = (call.constant_list(n) for n in (1, 2, 3))
    if batch < len(starts):
        size, bit = call.input(0).shape[batch], 1 << batch
        stop = stops[batch] + (starts[batch] if options.offset else 0)
        is_whole = (options.begin_mask & bit or not starts[batch]) and (
            options.end_mask & bit or stop == size
        )
        if steps[batch] != 1 or options.shrink_axis_mask & bit or not is_whole:
            return None
    return batch - (int(options.shrink_axis_mask) & ((1 << batch) - 1)).bit_count()


def _padded(call: Call, axes: dict[int, int]) -> int | None:
    batch = _unchanged(call, axes)
    if batch is None:
        return None
    return None if any(call.constant(1).reshape(-1, 2)[batch]) else batch


def _broadcast(call: Call, axes: dict[int, int]) -> int | None:
    """The batch is as long in the result, whose shape is input 1."""
    if set(axes) != {0}:
        return None
    shape, sizes = call.input(0).shape, call.constant_list(1)
    axis = len(sizes) - len(shape) + axes[0]
    return axis if sizes[axis] == shape[axes[0]] else None


def _tiled(call: Call, axes: dict[int, int]) -> int | None:
    batch = _unchanged(call, axes)
    return batch if batch is not None and call.constant_list(1)[batch] == 1 else None


def _gathered(call: Call, axes: dict[int, int]) -> int | None:
    """Elements are gathered at indices of a batch, or of a batch along another axis."""
    rank, index_rank = len(call.input(0).shape), len(call.input(1).shape)
    axis = call.checked_axis(getattr(call.options, "axis", 0), rank)
    count = getattr(call.options, "batch_dims", 0) % max(index_rank, 1)
    if count:
        return axes[0] if axes.get(0) == axes.get(1, -1) and axes[0] < count else None
    if set(axes) == {1}:
        return axis + axes[1]
    batch = _unchanged(call, axes, axis)
    return batch if batch is None or batch < axis else batch + index_rank - 1


def _gathered_nd(call: Call, axes: dict[int, int]) -> int | None:
    """Vectors of indices have a batch."""
    is_leading = set(axes) == {1} and axes[1] < len(call.input(1).shape) - 1
    return axes[1] if is_leading else None


def _one_hot(call: Call, axes: dict[int, int]) -> int | None:
    if set(axes) != {0}:
        return None
    axis = int(call.options.axis)
    return axes[0] + (0 <= axis <= axes[0])


def _updated(call: Call, axes: dict[int, int]) -> int | None:
    """The whole batch is updated by one of as many elements, or is an update of constants."""
    batches = set(axes.values())
    if 2 in axes or len(batches) != 1:
        return None
    (batch,) = batches
    return batch if call.input(0).shape[batch] == call.input(1).shape[batch] else None


def _fully_connected(call: Call, axes: dict[int, int]) -> int | None:
    """Vectors of K elements are multiplied, which no two elements of the batch share."""
    if set(axes) != {0}:
        return None
    batch, shape = axes[0], call.input(0).shape
    if call.options.keep_num_dims:
        return batch if batch < len(shape) - 1 else None
    k = call.input(1).shape[-1]
    is_whole = math.prod(shape[batch:]) % max(k, 1) == 0
    return 0 if is_whole and math.prod(shape[:batch]) == 1 else None


def _matrix_product(call: Call, axes: dict[int, int]) -> int | None:
    """The batch is a leading axis, or M or N of the only operand that has one."""
    ranks = [len(call.input(n).shape) for n in (0, 1)]
    rank = max(ranks)
    aligned = {rank - ranks[n] + axis for n, axis in axes.items()}
    if len(aligned) != 1:
        return None
    (batch,) = aligned
    if batch < rank - 2:
        return batch
    if len(axes) != 1:
        return None
    (operand,) = axes
    is_swapped = bool(call.options.adj_y if operand else call.options.adj_x)
    outer = rank - 1 if bool(operand) != is_swapped else rank - 2
    return rank - 2 + operand if batch == outer else None


_CALLS = ("CALL", "CALL_ONCE", "IF", "STABLEHLO_COMPOSITE", "WHILE")
"""Operators whose results another graph computes."""

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        ("ABS", "ADD", "ADD_N", "ATAN2", "BITWISE_XOR", "BUCKETIZE", "CAST", "CEIL", "COMPLEX_ABS",
         "COS", "DEQUANTIZE", "DIV", "ELU", "EQUAL", "EXP", "FAKE_QUANT", "FLOOR", "FLOOR_DIV",
         "FLOOR_MOD", "GELU", "GREATER", "GREATER_EQUAL", "HARD_SWISH", "IMAG", "LEAKY_RELU",
         "LESS", "LESS_EQUAL", "LOG", "LOGICAL_AND", "LOGICAL_NOT", "LOGICAL_OR", "LOGISTIC",
         "MAXIMUM", "MINIMUM", "MUL", "NEG", "NOT_EQUAL", "POW", "PRELU", "QUANTIZE", "REAL",
         "RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1", "RIGHT_SHIFT", "ROUND", "RSQRT",
         "SELECT_V2", "SIGN", "SIN", "SQRT", "SQUARE", "SQUARED_DIFFERENCE", "STABLEHLO_ADD",
         "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM", "STABLEHLO_MULTIPLY", "SUB", "TANH"),
        _elementwise,
    ),
    **dict.fromkeys(
        ("AVERAGE_POOL_2D", "BATCH_TO_SPACE_ND", "CONV_2D", "CONV_3D", "Convolution2DTransposeBias",
         "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE", "L2_POOL_2D", "LOCAL_RESPONSE_NORMALIZATION",
         "MAX_POOL_2D", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "SPACE_TO_BATCH_ND",
         "SPACE_TO_DEPTH"),
        _images(0),
    ),
    **dict.fromkeys(("CONV_3D_TRANSPOSE", "TRANSPOSE_CONV"), _images(2)),
    **dict.fromkeys(
        ("BITCAST", "L2_NORMALIZATION", "LOG_SOFTMAX", "MATRIX_DIAG", "SOFTMAX", "TOPK_V2",
         "aeq.hadamard_rotation"),
        _last_axis,
    ),
    **dict.fromkeys(("SUM", "MEAN", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN",
                     "REDUCE_PROD"), _reduced),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), _arg_extremum),
    **dict.fromkeys(("CUMSUM", "REVERSE_V2"), _reversed),
    **dict.fromkeys(("MIRROR_PAD", "PAD", "PADV2"), _padded),
    "BATCH_MATMUL": _matrix_product,
    "BROADCAST_TO": _broadcast,
    "CONCATENATION": _option_axis,
    "DYNAMIC_UPDATE_SLICE": _updated,
    "EMBEDDING_LOOKUP": _images(0),
    "EXPAND_DIMS": _expanded,
    "FULLY_CONNECTED": _fully_connected,
    "GATHER": _gathered,
    "GATHER_ND": _gathered_nd,
    "ONE_HOT": _one_hot,
    "PACK": _packed,
    "RESHAPE": _reshaped,
    "REVERSE_SEQUENCE": _reversed_sequences,
    "RFFT2D": _last_axes,
    "SELECT": _selected,
    "SLICE": _sliced,
    "SPLIT": _split(1, 0),
    "SPLIT_V": _split(0, 2),
    "SQUEEZE": _squeezed,
    "STRIDED_SLICE": _strided,
    # Its images are a batch of 1, and so are its results.
    "TFLite_Detection_PostProcess": lambda call, axes: _NO_AXIS,
    "TILE": _tiled,
    "TRANSPOSE": _transposed,
    "UNPACK": _unpacked,
}  # fmt: skip
