"""Stacks: tensors of one format, such as the weights of experts, as one tensor with a first axis.

A checkpoint has a tensor for each expert, and a forward pass takes the chosen ones of a stack. The
name of a stack has the range of numbers in place of a number, and its arrays have it too::

    model.layers.0.mlp.experts.[0-127].up_proj.weight:qs

Arrays are stacked when they are asked for: opening a checkpoint copies none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InputError, UnsupportedError
from ..numerics.element_types import AnyArray, Array
from .activations import ACTIVATIONS_KEY, ActivationQuantization, stacked
from .base import QuantizedLayout
from .reordered import find_reordered
from .scaled import TensorScaledLayout
from .tensors import (
    DeferredArray,
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedTensor,
)

_RANGE = re.compile(r"\[0-(0|[1-9][0-9]{0,5})\]")


def stack_name(prefix: str, count: int, suffix: str) -> str:
    """Return the name of the stack of the tensors ``prefix0suffix``, ``prefix1suffix``, ..."""
    return f"{prefix}[0-{count - 1}]{suffix}"


def names_in_stack(name: str) -> list[str] | None:
    """Return the names of the tensors, or arrays, of a stack; None for another name."""
    match = _RANGE.search(name)
    if match is None:
        return None
    start, end = match.span()
    return [f"{name[:start]}{number}{name[end:]}" for number in range(int(match[1]) + 1)]


def find_tensor(name: str, tensors: Mapping[str, InferenceTensor]) -> InferenceTensor:
    """Return the tensor of a name, the stack of a range of names, or a reordered tensor.

    Raises:
        KeyError: there is none.
        InputError, UnsupportedError: as `stack` and `find_reordered`.
    """
    if name in tensors:
        return tensors[name]
    reordered = find_reordered(name, tensors)
    if reordered is not None:
        return reordered
    names = names_in_stack(name)
    if names is None:
        return tensors[name]
    return stack([tensors[each] for each in names], name)


def stack(tensors: Sequence[InferenceTensor], name: str) -> InferenceTensor:
    """Return the stack of tensors of one format.

    Raises:
        InputError: their shapes differ.
        UnsupportedError: their formats differ.
    """
    first = tensors[0]
    for each in tensors[1:]:
        if each.shape != first.shape:
            raise InputError(
                f"tensor '{each.name}' has the shape {list(each.shape)}, expected "
                f"{list(first.shape)}, that of '{first.name}'"
            )
        if _format(each) != _format(first):
            raise UnsupportedError(
                f"tensor '{each.name}' has another format than '{first.name}', and experts of a "
                "block have to have one; quantize all experts alike"
            )
    if isinstance(first, QuantizedTensor):
        return StackedTensor([each for each in tensors if isinstance(each, QuantizedTensor)], name)
    return StackedArrays([each for each in tensors if isinstance(each, PrimitiveTensor)], name)


def _format(tensor: InferenceTensor) -> object:
    if isinstance(tensor, PrimitiveTensor):
        return type(tensor), np.dtype(tensor.array.dtype)
    return type(tensor), getattr(tensor, "ggml_type", None)


class StackedArrays(DeferredArray):
    """Arrays of one type, stacked when they are asked for."""

    def __init__(self, tensors: Sequence[PrimitiveTensor], name: str) -> None:
        first = tensors[0].array
        super().__init__(np.broadcast_to(first, (len(tensors), *first.shape)), name)
        self._tensors = tensors

    def _computed(self) -> AnyArray:
        return np.stack([tensor.array for tensor in self._tensors])

    @property
    def stored_arrays(self) -> list[Array]:
        """The arrays, which are not copied."""
        return [tensor.array for tensor in self._tensors]


class StackedTensor(QuantizedTensor):
    """Quantized tensors of one layout, stacked when they are asked for."""

    def __init__(self, tensors: Sequence[QuantizedTensor], name: str) -> None:
        super().__init__(name, (len(tensors), *tensors[0].shape))
        self._tensors = tensors

    @property
    def stored_arrays(self) -> list[Array]:
        """The arrays of all tensors."""
        return [array for tensor in self._tensors for array in tensor.stored_arrays]

    @property
    def activations(self) -> ActivationQuantization | None:
        """The quantization of activations, with lists of numbers in which tensors differ."""
        records = [each.activations.record for each in self._tensors if each.activations]
        return ActivationQuantization.of_record(stacked(records)) if records else None

    def unpack(self) -> QuantizedLayout:
        """The layout, of planes that are stacked at each call."""
        layouts = [tensor.unpack() for tensor in self._tensors]
        first = _with_rank(layouts[0])
        for tensor, layout in zip(self._tensors, layouts, strict=True):
            _check_alike(layouts[0], layout, tensor.name)
        planes = {
            name: np.stack([_with_rank(layout)[name] for layout in layouts]) for name in first
        }
        return type(layouts[0])(self.shape, planes, _stacked_metadata(layouts))

    def outline(self) -> PlanarQuantizedTensor:
        """Return a tensor of the same layout with other elements, which unpacks one tensor."""
        layout = self._tensors[0].unpack()
        planes = {
            name: np.broadcast_to(plane, (len(self._tensors), *plane.shape))
            for name, plane in _with_rank(layout).items()
        }
        metadata, activations = _stacked_metadata([layout]), self.activations
        if activations is not None:
            metadata[ACTIVATIONS_KEY] = activations.record
        return PlanarQuantizedTensor(type(layout)(self.shape, planes, metadata), self.name)


def _check_alike(first: QuantizedLayout, layout: QuantizedLayout, name: str) -> None:
    """Compare layouts; UnsupportedError for another class, metadata, or planes."""
    kinds = [
        (
            type(each),
            {key: value for key, value in each.metadata.items() if key != ACTIVATIONS_KEY},
            str(each.activations),
            {key: (plane.shape, np.dtype(plane.dtype)) for key, plane in each.planes.items()},
        )
        for each in (first, layout)
    ]
    if kinds[0] != kinds[1]:
        raise UnsupportedError(
            f"tensor '{name}' has another layout than the experts before it, and experts of a "
            "block have to have one; quantize all experts alike"
        )


def _with_rank(layout: QuantizedLayout) -> Mapping[str, Array]:
    """Return planes; those that broadcast to the shape with all its axes."""
    if not isinstance(layout, TensorScaledLayout):
        return layout.planes
    rank = len(layout.shape)
    return {
        name: plane.reshape((*(1,) * (rank - plane.ndim), *plane.shape))
        for name, plane in layout.planes.items()
    }


def _stacked_metadata(layouts: Sequence[QuantizedLayout]) -> dict[str, Any]:
    """Return the metadata of a stack: a block is in one tensor, and activations may differ."""
    metadata = dict(layouts[0].metadata)
    if ACTIVATIONS_KEY in metadata:
        records = [layout.metadata[ACTIVATIONS_KEY] for layout in layouts]
        metadata[ACTIVATIONS_KEY] = stacked(records)
    if "block_shape" in metadata:
        metadata["block_shape"] = [1, *metadata["block_shape"]]
    return metadata
