"""Pad: padding of a tensor, constant or copied from its elements.

Negative pads crop first. In the modes ``reflect``, ``edge`` and ``wrap``, each output element along
an axis is a copy of one input element, whose position NumPy's ``pad`` computes when the program is
written: runs of positions that ascend, descend or repeat become slices.

Source: ONNX, Pad 25.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....numerics.array_functions import is_known, take
from ....numerics.element_types import AnyArray, Array
from ..call import Call, Operand, importer
from ..quantization.expressed import Quantized
from ..reading.model import element_of
from .shapes import moved

_MAX_RUNS = 8
"""Slices whose concatenation replaces a gather, at most; with more, it stays a gather."""


def take_constant(array: AnyArray, positions: Array, axis: int) -> AnyArray:
    """Return ``np.take(array, positions, axis)`` for positions in range, as slices if few."""
    length = array.shape[axis]
    if positions.tolist() == list(range(length)):
        return array
    runs = _runs(positions.tolist())
    if not runs or len(runs) > _MAX_RUNS:
        return take(array, positions.astype(np.int32), axis)
    sliced = [_run(array, axis, *run) for run in runs]
    return sliced[0] if len(sliced) == 1 else np.concatenate(sliced, axis=axis)


def _runs(positions: Sequence[int]) -> list[tuple[int, int, int]]:
    """Split positions into runs: first position, step (-1, 0 or 1), number of positions."""
    runs: list[tuple[int, int, int]] = []
    for position in positions:
        if runs:
            first, step, count = runs[-1]
            difference = position - (first + step * (count - 1))
            if abs(difference) <= 1 and (count == 1 or difference == step):
                runs[-1] = (first, difference, count + 1)
                continue
        runs.append((position, 1, 1))
    return runs


def _run(array: AnyArray, axis: int, first: int, step: int, count: int) -> AnyArray:
    before = (slice(None),) * axis
    if step == 0:
        return np.repeat(array[(*before, slice(first, first + 1))], count, axis)
    low = first if step > 0 else first - count + 1
    part = array[(*before, slice(low, low + count))]
    return part if step > 0 or count == 1 else np.flip(part, axis)


def pad_constant(array: AnyArray, widths: Sequence[tuple[int, int]], fill: AnyArray) -> AnyArray:
    """Add elements of one value before and after each axis; negative widths crop."""
    crops = [
        slice(max(-low, 0), length - max(-high, 0))
        for (low, high), length in zip(widths, array.shape, strict=True)
    ]
    array = array[tuple(crops)]
    added = [(max(low, 0), max(high, 0)) for low, high in widths]
    return np.pad(array, added, constant_values=fill) if any(map(any, added)) else array


@importer("Pad")
def pad(call: Call) -> Operand:
    """Pad-25: ``data`` with padding; a quantized operand with one scale stays integers."""
    operand, mode = call.input(0), call.attribute("mode", "constant")
    widths = _widths(call, operand.shape)
    has_value = call.optional(2) is not None  # other modes ignore it
    if mode != "constant":
        positions = [
            _positions(call, length, pair, mode)
            for length, pair in zip(operand.shape, widths, strict=True)
        ]

        def move(value: AnyArray) -> AnyArray:
            for axis, along in enumerate(positions):
                value = take_constant(value, along, axis)
            return value

        return moved(call, move)
    fill = np.zeros((), element_of(operand.type).dtype)
    if has_value:
        fill = call.scalar(2)
    value = operand.value
    if isinstance(value, Quantized) and is_known(fill) and not fill:
        zero = value.zero_points
        if value.is_per_tensor and (zero is None or is_known(zero)):
            storage_fill = 0 if zero is None else int(np.asarray(zero).reshape(-1)[0])
            return Operand(
                operand.type, value.moved(lambda x: pad_constant(x, widths, storage_fill))
            )
    if isinstance(value, Quantized):
        call.with_floats("the constant is not 0, or the zero point is computed")
    array = call.array(0) if is_known(fill) else call.lifted(call.array(0))
    return Operand(operand.type, pad_constant(array, widths, fill))


def _widths(call: Call, shape: Sequence[int]) -> list[tuple[int, int]]:
    """Return the padding before and after each axis."""
    rank, pads = len(shape), call.constant_list(1)
    axes = list(range(rank))
    if call.optional(3) is not None:
        axes = [call.checked_axis(int(a), rank) for a in call.constant(3).reshape(-1)]
    if len(pads) != 2 * len(axes) or len(set(axes)) != len(axes):
        raise call.error(f"has {len(pads)} pads for the axes {axes}, expected two for each")
    widths = [(0, 0)] * rank
    for number, axis in enumerate(axes):
        low, high = pads[number], pads[number + len(axes)]
        if max(-low, 0) + max(-high, 0) > shape[axis]:
            raise call.error(f"crops {-low} and {-high} of {shape[axis]} elements")
        widths[axis] = low, high
    return widths


def _positions(call: Call, length: int, pair: tuple[int, int], mode: str) -> Array:
    """Return the position of the input element that each output element along an axis copies."""
    low, high = pair
    inside = np.arange(length)[max(-low, 0) : length - max(-high, 0)]
    added = (max(low, 0), max(high, 0))
    if not any(added):
        return inside
    if not inside.size:
        raise call.unsupported(
            f"pads an axis without elements in mode {mode}; use the mode constant"
        )
    positions: Array = np.pad(inside, added, mode=mode)  # type: ignore[call-overload]
    return positions
