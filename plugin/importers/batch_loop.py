"""A dynamic batch as a loop over a private function of one element.

::

    func.func @main(%x: tensor<?x49x10xi8>) -> tensor<?x12xi8> {
      %n = tensor.dim %x, 0
      %0 = tensor.empty(%n) : tensor<?x12xi8>
      %r = scf.for %i = 0 to %n step 1 iter_args(%y = %0) {
        %item = tensor.extract_slice %x[%i, 0, 0] [1, 49, 10] [1, 1, 1]
        %1 = func.call @main.item(%item)
        %2 = tensor.insert_slice %1 into %y[%i, 0] [1, 12] [1, 1]
        scf.yield %2
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import emit
from ..core._mlir import Value, ir
from ..emit import linalg
from ..emit.operation import create, with_shape
from ..errors import Place, UnsupportedError
from ..numerics.element_types import Array

_DYNAMIC = ir.ShapedType.get_dynamic_size()


def dynamic_type(type_: ir.Type) -> ir.Type:
    """Return a tensor type with a dynamic first dimension."""
    return _with_batch(type_, _DYNAMIC)


def is_alike_in_batches(one: Array, many: Array, batch: int) -> bool:
    """Return True if a constant has the same elements for each element of a batch.

    Args:
        one: the constant in a program for one element.
        many: the constant in a program for several elements: equal, or repeated along an axis.
        batch: the size of the batch of `many`.
    """
    if one.ndim != many.ndim:
        return False
    differing = [axis for axis, n in enumerate(one.shape) if n != many.shape[axis]]
    for axis in differing[:1]:
        one = np.repeat(one, batch, axis=axis)
    return one.shape == many.shape and np.array_equal(one, many, equal_nan=one.dtype.kind in "fc")


def write_loop(
    item: str,
    arguments: Sequence[Value],
    batched: Sequence[bool],
    results: Sequence[ir.Type],
    location: Place,
) -> list[Value]:
    """Write a loop that calls a function for each element of a batch; return batched results.

    Args:
        arguments: storage tensors, with a dynamic first dimension where they have a batch.
        batched: whether an argument has a batch, for each argument.
        results: the types of the function's results, whose first size is 1.

    Raises:
        UnsupportedError: no argument has a batch, or a result has none.
    """
    if not any(batched):
        raise UnsupportedError("no input of the model has a batch; leave out --batch", location)
    for type_ in results:
        if not type_.rank or int(type_.shape[0]) != 1:
            raise UnsupportedError(f"a result of type '{type_}' has no batch of 1", location)
    sized = [a for a, is_batched in zip(arguments, batched, strict=True) if is_batched]
    count = linalg.dim(sized[0], 0)
    for other in sized[1:]:
        same = (emit.scalar(count) == emit.scalar(linalg.dim(other, 0))).value
        linalg.check(same, "the inputs have batches of different sizes")
    buffers = [
        linalg.empty([count, *(int(n) for n in type_.shape[1:])], type_.element_type)
        for type_ in results
    ]

    def body(position: Value, *outputs: Value) -> list[Value]:
        inputs = [
            linalg.take_slice(argument, position, _with_batch(argument.type, 1))
            if is_batched
            else argument
            for argument, is_batched in zip(arguments, batched, strict=True)
        ]
        callee = {"callee": ir.FlatSymbolRefAttr.get(item)}
        call = create("func.call", inputs, list(results), callee)
        return [
            linalg.put_slice(result, buffer, position)
            for result, buffer in zip(call.results, outputs, strict=True)
        ]

    return linalg.fold(linalg.constant_index(0), count, buffers, body)


def _with_batch(type_: ir.Type, size: int) -> ir.Type:
    return with_shape(type_, [size, *(int(n) for n in type_.shape[1:])])
