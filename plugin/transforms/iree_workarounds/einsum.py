"""``einsum`` and ``unary_einsum`` as diagonals, reductions and one ``dot_general``.

Symptom: IREE refuses integers on Vulkan, and a result of another element type than the operands
(all targets).
Cause: IREE 3.13 rewrites ``einsum`` as a ``dot_general`` itself, after the workarounds for
contractions here have run (`unsigned_multiplicands`, `long_loops`).
Test: none; the forms are in tests/test_stablehlo_rare_forms.py.

A label that one operand has twice is a diagonal; a label that neither the other operand nor the
result has is reduced before the product::

    %r = stablehlo.einsum %x, %y, config = "aab,bcd->ca"

becomes ::

    %d = ... where the two positions of a are equal, of %x, else 0, summed over the second a
    %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [2]
    %p = stablehlo.dot_general %d, %s, contracting_dims = [1] x [0]
    %r = stablehlo.transpose %p, dims = [1, 0]

Source: MLIR's documentation of the StableHLO dialect, ``einsum`` and ``unary_einsum`` (which the
specification leaves out); ``numpy.einsum`` of a ``config`` with an arrow.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...emit import Tensors, stablehlo
from ...emit.operation import is_dynamic, tensor_type
from ...errors import UnsupportedError
from ...numerics.element_types import I32
from ..base import NoMatch, Replacement
from .unsigned_multiplicands import is_narrower

EINSUMS = ("stablehlo.einsum", "stablehlo.unary_einsum")


def expand_einsum(op: Operation) -> Replacement:
    """Rewrite an ``einsum`` or ``unary_einsum`` with reductions and a ``dot_general``.

    Raises:
        UnsupportedError: the labels do not fit the operands, or have different sizes.
    """
    type_ = op.results[0].type
    if any(isinstance(element_type(value.type), ir.ComplexType) for value in op.operands):
        return NoMatch("multiplies complex numbers")
    labels, result = _labels_of(op)
    terms = []
    for number, (value, names) in enumerate(zip(op.operands, labels, strict=True)):
        other_labels = itertools.chain(*labels[:number], *labels[number + 1 :])
        terms.append(
            _reduced_to_labels(value, names, {*other_labels, *result}, element_type(type_))
        )
    product, names = terms[0]
    if len(terms) == 2:
        product, names = _product(terms[0], terms[1], result)
    product = stablehlo.convert(product, element_type(type_))
    product = stablehlo.transpose(product, [names.index(name) for name in result])
    if product.type != type_:  # a size that is static on one side only
        product = emit.value("tensor.cast", [product], type_)
    return product


def _labels_of(op: Operation) -> tuple[list[list[str]], list[str]]:
    """The label of each axis of the operands, and of the result.

    Axes of an ellipsis are counted from the last, as NumPy counts them.
    """
    config = ir.StringAttr(op.attributes["einsum_config"]).value
    inputs, arrow, output = config.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if not arrow or len(terms) != len(op.operands):
        raise _refused(op, f"expected {len(op.operands)} operands and an arrow")
    ranks = [value.type.rank for value in op.operands]
    labels = [_labels_of_term(op, term, rank) for term, rank in zip(terms, ranks, strict=True)]
    result = _labels_of_term(op, output, op.results[0].type.rank)
    sizes: dict[str, int] = {}
    values = [*op.operands, op.results[0]]
    for value, names in zip(values, [*labels, result], strict=True):
        for name, size in zip(names, map(int, value.type.shape), strict=True):
            if value is values[-1] and name not in sizes:
                raise _refused(op, f"expected that an operand has '{name}', too")
            if is_dynamic(sizes.get(name, size)):
                sizes[name] = size
            elif not is_dynamic(size) and sizes.setdefault(name, size) != size:
                raise _refused(op, f"expected one size of '{name}', got {sizes[name]} and {size}")
    if len(set(result)) != len(result):
        raise _refused(op, "expected that the result has a label once")
    return labels, result


def _labels_of_term(op: Operation, term: str, rank: int) -> list[str]:
    """The labels of one operand, or of the result."""
    before, dots, after = term.partition("...")
    hidden = rank - len(before) - len(after)
    if not all(each.isalpha() or not each for each in (before, after)):
        raise _refused(op, f"expected letters and one ellipsis in '{term}'")
    if hidden < 0 or (hidden and not dots):
        raise _refused(op, f"expected {rank} labels in '{term}'")
    return [*before, *(f"...{number}" for number in reversed(range(hidden))), *after]


def _refused(op: Operation, message: str) -> UnsupportedError:
    return UnsupportedError(f"has the config {op.attributes['einsum_config']}; {message}", op)


def _reduced_to_labels(
    value: Value, names: Sequence[str], needed: set[str], element: ir.Type
) -> tuple[Value, list[str]]:
    """Reduce a tensor to one axis for each label in `needed`; return it and its labels."""
    if not is_narrower(element, value.type):
        value = stablehlo.convert(value, element)
    axes = [axis for axis, name in enumerate(names) if name not in needed]
    for axis, name in enumerate(names):
        if (first := names.index(name)) < axis:
            value = _diagonal(value, first, axis)
            axes = sorted({*axes, axis})
    if axes:
        value = stablehlo.reduce(value, axes)
    return value, [name for axis, name in enumerate(names) if axis not in axes]


def _diagonal(value: Value, axis: int, other: int) -> Value:
    """A tensor with zeros where its positions along two axes differ."""
    if not value.type.has_static_shape:
        raise UnsupportedError("takes a diagonal of a dynamic shape", value.owner)
    form = Tensors(value)
    positions = [form.emitted(stablehlo.iota(form.type(I32), each), I32) for each in (axis, other)]
    zero = stablehlo.broadcast(stablehlo.zero_of(element_type(value.type)), value.type)
    return form.select((positions[0] == positions[1]).value, value, zero)


def _product(
    left: tuple[Value, list[str]], right: tuple[Value, list[str]], result: Sequence[str]
) -> tuple[Value, list[str]]:
    """The contraction of two tensors that have each label once, and its labels."""
    (lhs, left_labels), (rhs, right_labels) = left, right
    shared = [name for name in left_labels if name in right_labels]
    batch = [name for name in shared if name in result]
    summed = [name for name in shared if name not in result]
    names = [*batch, *(name for name in (*left_labels, *right_labels) if name not in shared)]
    shapes = [*rhs.type.shape, *lhs.type.shape]
    sizes = dict(zip([*right_labels, *left_labels], shapes, strict=True))
    product = stablehlo.dot_general(
        lhs,
        rhs,
        tensor_type([int(sizes[name]) for name in names], element_type(lhs.type)),
        [[side.index(name) for name in summed] for side in (left_labels, right_labels)],
        [[side.index(name) for name in batch] for side in (left_labels, right_labels)],
    )
    return product, names
