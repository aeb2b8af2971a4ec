"""Einsum, Det and CenterCropPad.

Einsum contracts its operands one after the other. A label that occurs twice in a term takes a
diagonal; a label of one term that no other term and no result has is summed first.

Sources: ONNX, Einsum 28, Det 22, CenterCropPad 18.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ....numerics.array_functions import convert, take
from ....numerics.convolutions import contract
from ....numerics.element_types import I32, I64, AnyArray, DType, ElementType
from ..call import Call, Operand, importer
from ..elementwise.float_operands import computing_dtype
from ..movement.padding import pad_constant
from ..movement.shapes import moved

_MAX_PIVOTS = 64
"""Rows of a matrix for Det, at most; each is a step of elimination in the program."""


@importer("Einsum")
def einsum(call: Call) -> Operand:
    """Einsum-28: the sum of products of the equation."""
    operands = [call.array(index) for index in range(len(call.inputs))]
    terms, target = _terms(call, [each.ndim for each in operands])
    dtype = _dtype(operands[0].dtype)
    values = [
        _without_repeats(list(term), convert(operand, ElementType.of_dtype(dtype)))
        for term, operand in zip(terms, operands, strict=True)
    ]
    sizes: dict[str, int] = {}
    for labels, value in values:
        for label, length in zip(labels, value.shape, strict=True):
            known = sizes.get(label, 1)
            if 1 not in (known, length) and known != length:
                raise call.error(f"has the label {label!r} for {known} and {length} elements")
            sizes[label] = max(known, length) if length else 0
    values = [_squeezed(labels, value, sizes) for labels, value in values]
    while len(values) > 1:
        (left, x), (right, y) = values[:2]
        later_labels = {label for labels, _ in values[2:] for label in labels} | set(target)
        values[:2] = [_product(left, x, right, y, later_labels, dtype)]
    labels, value = _summed(*values[0], set(target), dtype)
    order = [labels.index(label) for label in target if label in labels]
    value = value.transpose(*order) if len(order) > 1 else value
    shape = tuple(sizes[label] if label in labels else 1 for label in target)
    value = np.broadcast_to(value.reshape(shape), tuple(sizes[label] for label in target))
    return call.typed(convert(value, ElementType.of_dtype(operands[0].dtype)))


def _dtype(dtype: DType) -> DType:
    """Return the dtype of accumulators: f32 for smaller floats, i32 for smaller integers."""
    element = ElementType.of_dtype(np.dtype(dtype))
    if element.is_float:
        return np.dtype(np.float64 if element.bits == 64 else np.float32)
    return (I64 if element.bits > 32 else I32).dtype


def _terms(call: Call, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the labels of each operand and of the result; an ellipsis becomes further labels."""
    equation = str(call.attribute("equation", "")).replace(" ", "")
    left, arrow, target = equation.partition("->")
    operand_terms = left.split(",")
    if len(operand_terms) != len(ranks):
        raise call.error(f"has the equation {equation[:80]!r} for {len(ranks)} operands")
    spare = [
        rank - len(term.replace("...", "")) for term, rank in zip(operand_terms, ranks, strict=True)
    ]
    most = max(
        (n for term, n in zip(operand_terms, spare, strict=True) if "..." in term), default=0
    )
    terms = []
    for term, count in zip(operand_terms, spare, strict=True):
        labels = term.replace("...", "".join(chr(0x100 + most - count + n) for n in range(count)))
        plain = term.replace("...", "", 1)
        if count < 0 or (count and "..." not in term) or (plain and not plain.isalpha()):
            raise call.error(f"has the equation {equation[:80]!r} for operands of {ranks} axes")
        terms.append(labels)
    everywhere = "".join(chr(0x100 + n) for n in range(most))
    if arrow:
        target = target.replace("...", everywhere)
    else:
        counts = Counter("".join(operand_terms).replace(".", ""))
        target = everywhere + "".join(sorted(n for n in counts if counts[n] == 1))
    if len(set(target)) != len(target) or not set(target) <= set("".join(terms)):
        raise call.error(f"has the equation {equation[:80]!r}, whose result has other labels")
    return terms, target


def _without_repeats(labels: list[str], value: AnyArray) -> tuple[list[str], AnyArray]:
    """Take the diagonal of each pair of axes with one label."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            order = [first, second, *(a for a in range(len(labels)) if a not in (first, second))]
            moved_ = value.transpose(*order)
            length, rest = moved_.shape[0], tuple(moved_.shape[2:])
            flat = moved_.reshape((length * moved_.shape[1], *rest))
            value = take(flat, (np.arange(length) * (length + 1)).astype(np.int32), 0)
            labels = [label, *(labels[a] for a in order[2:])]
    return labels, value


def _squeezed(
    labels: list[str], value: AnyArray, sizes: dict[str, int]
) -> tuple[list[str], AnyArray]:
    """Remove axes of one element that are longer in other terms."""
    remaining = [axis for axis, label in enumerate(labels) if value.shape[axis] == sizes[label]]
    shape = tuple(value.shape[axis] for axis in remaining)
    return [labels[axis] for axis in remaining], value.reshape(shape)


def _summed(
    labels: list[str], value: AnyArray, needed: set[str], dtype: DType
) -> tuple[list[str], AnyArray]:
    """Sum over labels that nothing else needs."""
    axes = tuple(axis for axis, label in enumerate(labels) if label not in needed)
    if axes:
        value = value.sum(axis=axes, dtype=dtype)
    return [label for label in labels if label in needed], value


def _product(
    left: list[str],
    x: AnyArray,
    right: list[str],
    y: AnyArray,
    later_labels: set[str],
    dtype: DType,
) -> tuple[list[str], AnyArray]:
    """Multiply two terms, and sum over labels that no other term has."""
    left, x = _summed(left, x, later_labels | set(right), dtype)
    right, y = _summed(right, y, later_labels | set(left), dtype)
    shared = [label for label in left if label in right and label in later_labels]
    summed = [label for label in left if label in right and label not in later_labels]
    axes, batch = (
        ([left.index(n) for n in group], [right.index(n) for n in group])
        for group in (summed, shared)
    )
    result = contract(x, y, axes, batch, dtype=dtype)
    free = [n for n in (*left, *right) if n not in (*shared, *summed)]
    return [*shared, *free], result


@importer("Det")
def determinant(call: Call) -> Operand:
    """Det-22: the determinant, by Gaussian elimination with the greatest pivot of each column."""
    value = call.array(0)
    if value.ndim < 2 or value.shape[-1] != value.shape[-2]:
        raise call.error(f"is of a tensor of shape {list(value.shape)}, expected square matrices")
    size = value.shape[-1]
    if size > _MAX_PIVOTS:
        raise call.unsupported(
            f"of matrices of {size} rows is not lowered, expected {_MAX_PIVOTS} at most"
        )
    dtype = computing_dtype(value.dtype)
    one, zero = np.ones((), dtype), np.zeros((), dtype)
    matrices = value.astype(dtype).reshape((-1, size, size))
    result: AnyArray = np.ones(matrices.shape[0], dtype)
    for rows in range(size, 0, -1):
        row_numbers = np.arange(rows, dtype=np.int32)
        column = np.abs(matrices[:, :, 0])
        is_best = column == column.max(axis=1, keepdims=True)
        best = np.where(is_best, row_numbers, np.int32(rows - 1)).min(axis=1)
        is_pivot = row_numbers == best[:, None]
        pivot_row = np.where(is_pivot[:, :, None], matrices, zero).sum(axis=1, dtype=dtype)
        pivot = pivot_row[:, 0]
        result = result * np.where(best == 0, pivot, -pivot)
        if rows == 1:
            break
        later_labels = np.where(is_pivot[:, :, None], matrices[:, :1, :], matrices)[:, 1:, :]
        factors = later_labels[:, :, :1] / np.where(pivot == 0, one, pivot)[:, None, None]
        matrices = later_labels[:, :, 1:] - factors * pivot_row[:, None, 1:]
    return call.typed(result.astype(value.dtype).reshape(tuple(value.shape[:-2])))


@importer("CenterCropPad")
def center_crop_pad(call: Call) -> Operand:
    """CenterCropPad-18: ``input_data`` cropped or padded with zeros at both ends."""
    before, sizes = call.input(0).shape, call.constant_list(1)
    rank = len(before)
    axes = [call.checked_axis(n, rank) for n in call.attribute("axes", list(range(rank)))]
    if len(sizes) != len(axes) or min(sizes, default=0) < 0:
        raise call.error(f"has the shape {sizes} for the axes {axes}")
    widths = [(0, 0)] * rank
    for axis, size in zip(axes, sizes, strict=True):
        more = size - before[axis]
        low = more // 2 if more > 0 else -(-more // 2)
        widths[axis] = low, more - low
    if all(max(pair) <= 0 for pair in widths):
        return moved(call, lambda value: pad_constant(value, widths, 0))
    value = call.array(0)
    return call.typed(pad_constant(value, widths, np.zeros((), value.dtype)))
