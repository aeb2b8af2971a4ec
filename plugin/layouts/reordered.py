"""Matrices in another order than a file has them, so that a program gathers no inputs.

A weight whose groups are of inputs that are not consecutive (GPTQ's ``desc_act``) has an `order` of
inputs: its product gathers them. Where one layer alone computes these inputs, its rows are put in
that order instead, and the weight keeps the order in which it is stored::

    down @ (act(gate x) * (up x))        gate, up [H, W], down [N, H]
      = down[:, p] @ (act(gate[p] x) * (up[p] x))

The results have the same bits: each product has the same terms in the same order. Fused layers have
several matrices of ``H`` rows, each of which is put in the order.

The name of a reordered tensor says how it is made, so that it is found in the file::

    model.layers.0.mlp.up_proj.weight[rows as inputs of model.layers.0.mlp.down_proj.weight]
    model.layers.0.mlp.down_proj.weight[inputs as stored]
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from ..errors import InputError
from ..numerics.element_types import AnyArray, Array
from .activations import ActivationQuantization
from .affine import BlockAffineLayout
from .base import QuantizedLayout
from .tensors import (
    DeferredArray,
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedTensor,
)

_NAME = re.compile(r"(.+)\[(?:rows as inputs of (.+)|inputs as stored)\]")


def input_order(tensor: InferenceTensor) -> Array | None:
    """Return the order of inputs of a matrix with float activations; None for ascending ones."""
    if len(tensor.shape) != 2 or not isinstance(tensor, QuantizedTensor) or tensor.activations:
        return None
    if isinstance(tensor, PlanarQuantizedTensor):
        order: Array | None = tensor.layout.planes.get("order")
        return order
    return getattr(tensor, "order", None)


def has_rows(tensor: InferenceTensor) -> bool:
    """Return True for a tensor whose rows `with_rows` can put in another order."""
    if isinstance(tensor, PlanarQuantizedTensor):
        return isinstance(tensor.layout, BlockAffineLayout) and _has_row_blocks(tensor.layout)
    return type(tensor) is PrimitiveTensor or getattr(tensor, "has_row_blocks", False)


def with_rows(tensor: InferenceTensor, consumer: InferenceTensor) -> InferenceTensor:
    """Return a weight or bias with its rows in the order of the consumer's inputs."""
    order = input_order(consumer)
    assert order is not None
    count = len(order)
    starts = np.arange(tensor.shape[0] // count, dtype=np.int64) * count
    rows = (starts[:, None] + order[None, :]).reshape(-1)
    name = f"{tensor.name}[rows as inputs of {consumer.name}]"
    if isinstance(tensor, QuantizedTensor):
        return ReorderedTensor(tensor, name, rows)
    assert isinstance(tensor, PrimitiveTensor)
    return ReorderedArray(tensor, name, rows)


def in_stored_order(tensor: QuantizedTensor) -> QuantizedTensor:
    """Return a weight with its inputs in the order in which it is stored."""
    return ReorderedTensor(tensor, f"{tensor.name}[inputs as stored]", None)


def find_reordered(name: str, tensors: Mapping[str, InferenceTensor]) -> InferenceTensor | None:
    """Return the reordered tensor of a name; None for another name.

    Raises:
        InputError: the tensors of the name have no order.
        KeyError: there is no such tensor.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    tensor = tensors[match[1]]
    consumer = tensor if match[2] is None else tensors[match[2]]
    if input_order(consumer) is None:
        raise InputError(f"tensor '{consumer.name}' has no order of inputs, which '{name}' needs")
    if match[2] is not None:
        return with_rows(tensor, consumer)
    assert isinstance(tensor, QuantizedTensor)
    return in_stored_order(tensor)


class ReorderedTensor(QuantizedTensor):
    """A quantized matrix in another order.

    Args:
        tensor: the matrix of the file.
        name: says how it is made.
        rows: the rows of the matrix in their new order; None to leave out the order of inputs.
    """

    def __init__(self, tensor: QuantizedTensor, name: str, rows: Array | None) -> None:
        super().__init__(name, tensor.shape)
        self._tensor, self._rows = tensor, rows

    @property
    def activations(self) -> ActivationQuantization | None:
        """The quantization of activations, which rows have none of their own."""
        return self._tensor.activations

    @property
    def stored_arrays(self) -> list[Array]:
        """The arrays of the file."""
        return self._tensor.stored_arrays

    def unpack(self) -> QuantizedLayout:
        """The layout, of planes that are reordered at each call."""
        layout = self._tensor.unpack()
        assert isinstance(layout, BlockAffineLayout)
        if self._rows is None:
            return layout.in_stored_order()
        return layout.with_planes(
            {
                plane: array if plane == "order" else np.asarray(array)[self._rows]
                for plane, array in layout.planes.items()
            }
        )

    def outline(self) -> PlanarQuantizedTensor:
        """Return a tensor of the same layout with other elements, which reorders nothing."""
        layout = self._tensor.unpack()
        assert isinstance(layout, BlockAffineLayout)
        stored = layout.in_stored_order() if self._rows is None else layout
        return PlanarQuantizedTensor(stored.outline(), self.name)


class ReorderedArray(DeferredArray):
    """An array with its rows in another order, reordered when it is asked for."""

    def __init__(self, tensor: PrimitiveTensor, name: str, rows: Array) -> None:
        self._tensor, self._rows = tensor, rows
        super().__init__(tensor.array, name)

    def _computed(self) -> AnyArray:
        return np.asarray(self._tensor.array)[self._rows]

    @property
    def stored_arrays(self) -> list[Array]:
        """The array of the file."""
        return [self._tensor.array]


def _has_row_blocks(layout: BlockAffineLayout) -> bool:
    return len(layout.shape) == 2 and layout.metadata["block_shape"][0] == 1
