"""Layers of a checkpoint: the arrays below one name, which together are a packed weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...core.read_record import ReadRecord, TrackedItems
from ...core.strict_json import shown
from ...errors import InputError, Place, SubquantError, UnsupportedError
from ...layouts.activations import ACTIVATIONS_KEY, ActivationQuantization
from ...layouts.affine import BlockAffineLayout
from ...layouts.base import FLOAT_DTYPES, QuantizedLayout
from ...layouts.tensors import (
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedTensor,
)
from ...numerics.element_types import Array

OUTPUT_LAYER = "lm_head"
"""The last name of the output layer of a language model."""


class CheckpointFormat(Protocol):
    """Packing of a checkpoint's weights, as its configuration describes it; a frozen dataclass."""

    def read(self, layers: Layers) -> dict[str, InferenceTensor]:
        """Return the tensors of a checkpoint, with packed weights as quantized tensors."""


class PackedTensor(QuantizedTensor):
    """A weight as a checkpoint packs it; each `unpack` makes the planes of its layout.

    Args:
        name: ``LAYER.weight``.
        kind: the format's name, for listings.
        packed: the arrays of the checkpoint, by their last names.
        make_layout: makes the layout of the arrays.
        activations: the quantization of the layer's input, None for floats.
        order: the order of inputs of the layout; None where it has none.
        has_row_blocks: the layout is a `BlockAffineLayout` whose blocks are in rows.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: str,
        packed: Mapping[str, Array],
        make_layout: Callable[[], QuantizedLayout],
        activations: ActivationQuantization | None = None,
        order: Array | None = None,
        has_row_blocks: bool = False,
    ) -> None:
        super().__init__(name, shape)
        self.order, self.has_row_blocks = order, has_row_blocks
        self.kind, self.packed, self._make_layout = kind, dict(packed), make_layout
        self._activations = activations

    @property
    def activations(self) -> ActivationQuantization | None:
        """The quantization of the layer's input; None for floats."""
        return self._activations

    @property
    def stored_arrays(self) -> list[Array]:
        """The packed arrays."""
        return list(self.packed.values())

    def unpack(self) -> QuantizedLayout:
        """The layout, of planes that are made at each call."""
        layout = self._make_layout()
        if self._activations is None:
            return layout
        metadata = layout.metadata | {ACTIVATIONS_KEY: self._activations.record}
        return type(layout)(layout.shape, layout.planes, metadata)

    def outline(self) -> PlanarQuantizedTensor:
        """Return a tensor of the same layout with other elements, which takes no memory."""
        return PlanarQuantizedTensor(self.unpack().outline(), self.name)


def bits_of(tensor: PackedTensor) -> int:
    """Return the bits of the integers of a weight in blocks of rows, or with a scale for each."""
    layout = tensor.unpack()
    return layout.storage.width if isinstance(layout, BlockAffineLayout) else 8


@dataclass(frozen=True)
class Layer:
    """The arrays below the name of a layer."""

    name: str
    arrays: Mapping[str, Array]
    location: Place

    def has(self, part: str) -> bool:
        """Return True if the layer has a part."""
        return f"{self.name}.{part}" in self.arrays

    def get(self, part: str) -> Array | None:
        """Return an array, which counts as read; None if there is none."""
        return self.arrays.get(f"{self.name}.{part}")

    def array(self, part: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> Array:
        """Return an array that the layer must have.

        Args:
            dtypes: the names of its possible element types.
            shapes: its possible shapes; any if there are none.

        Raises:
            InputError: it is missing, or of another type or shape.
        """
        array = self.get(part)
        if array is None:
            raise self.error(f"has no {part}")
        names = [name for name in dtypes if name not in FLOAT_DTYPES]
        if len(names) + len(FLOAT_DTYPES) <= len(dtypes):
            names.insert(0, "floats")
        else:
            names = list(dtypes)
        expected = " or ".join(names)
        if shapes:
            expected += f" of {' or '.join(str(list(shape)) for shape in shapes)}"
        if array.dtype.name not in dtypes or (shapes and array.shape not in shapes):
            raise self.error(f"has as its {part} {described(array)}, expected {expected}")
        return array

    def matrix(self, part: str, *dtypes: str) -> Array:
        """Return a matrix with elements that the layer must have; errors as `array`."""
        array = self.array(part, dtypes)
        if array.ndim != 2 or not array.size:
            raise self.error(
                f"has as its {part} {described(array)}, expected a matrix with elements"
            )
        return array

    def scalar(self, part: str, *dtypes: str) -> float:
        """Return a positive number that the layer must have; errors as `array`."""
        value = float(self.array(part, dtypes or FLOAT_DTYPES, (1,), (), (1, 1)).reshape(())[()])
        if not 0 < value < np.inf:
            raise self.error(f"has {value} as its {part}, expected a number above 0")
        return value

    def error(self, problem: str, kind: type[SubquantError] = InputError) -> SubquantError:
        """Return an error that names the layer."""
        return kind(f"layer {shown(self.name)} {problem}", self.location)


class Layers:
    """The arrays of a checkpoint, each of which is part of a packed weight, or stays as it is.

    Args:
        arrays: by name, in the order of the checkpoint.
        metadata: the ``__metadata__`` of the files.
        location: the file or index.
    """

    def __init__(
        self, arrays: Mapping[str, Array], metadata: Mapping[str, str], location: Place
    ) -> None:
        self.metadata, self.location = metadata, location
        self._record = ReadRecord(location)
        self._arrays: TrackedItems[Array] = self._record.track("tensor", arrays)
        self._weights: dict[str, PackedTensor] = {}

    @property
    def names(self) -> list[str]:
        """The names of all arrays."""
        return list(self._arrays)

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], str]:
        """Return the shape and the name of the element type of an array, which is not read."""
        array = self._arrays.untracked[name]
        return array.shape, array.dtype.name

    def named(self, *last_names: str) -> list[str]:
        """Return the names of the layers that have an array with one of some last names."""
        suffixes = tuple(f".{last}" for last in last_names)
        layers = [
            name.removesuffix(suffix)
            for name in self._arrays
            for suffix in suffixes
            if name.endswith(suffix)
        ]
        return list(dict.fromkeys(layers))

    def layer(self, name: str) -> Layer:
        """Return the layer of a name."""
        return Layer(name, self._arrays, self.location)

    def add(self, layer: str, weight: PackedTensor) -> None:
        """Add the packed weight of a layer."""
        self._weights[layer] = weight

    def finish(self, method: str) -> dict[str, InferenceTensor]:
        """Return all tensors: packed weights, and the arrays of no packed weight.

        Args:
            method: the format's name, for errors.

        Raises:
            InputError: no weight is packed, or an array has integers or 8-bit floats without scale.
            UnsupportedError: an array below the name of a packed layer is neither one that the
                format reads nor its bias.
        """
        if not self._weights:
            raise InputError(
                f"the configuration says that {method} packed the weights, and no tensor has the "
                "name of a packed weight",
                self.location,
            )
        tensors: dict[str, InferenceTensor] = {}
        for name in self._arrays:
            layer = self._packed_layer_of(name)
            if layer is not None and name != f"{layer}.bias":
                weight = self._weights[layer]
                tensors[weight.name] = weight
                continue
            dtype = self._arrays.untracked[name].dtype.name
            is_integer = dtype.startswith(("int", "uint")) and name.endswith(".weight")
            if is_integer or dtype.startswith("float8"):
                raise InputError(
                    f"tensor {shown(name)} has elements of {dtype} and no scale of the format "
                    f"{method}",
                    self.location,
                )
            tensors[name] = PrimitiveTensor(self._arrays[name], name)
        self._record.finish("quantize the model again without it")
        return tensors

    def _packed_layer_of(self, name: str) -> str | None:
        """Return the packed layer that an array belongs to, None if there is none."""
        while "." in name:
            name = name.rpartition(".")[0]
            if name in self._weights:
                return name
        return None


def described(array: Array) -> str:
    """Return the type and the shape of an array, for errors."""
    return f"{array.dtype.name}{list(array.shape)}"


def expect_zeros(layer: Layer, part: str) -> None:
    """Read zero points that a symmetric format need not have.

    Raises:
        InputError: one is not 0.
    """
    array = layer.get(part)
    if array is not None and np.asarray(array).astype(np.float32).any():
        raise layer.error(
            f"has a {part} other than 0, and the configuration says symmetric; leave it out"
        )


def order_of(layer: Layer, part: str, inputs: int, size: int, count: int) -> Array | None:
    """Return the inputs in the order of their groups, None where groups are of consecutive inputs.

    Args:
        part: the array with the group of each input.
        size: the inputs of a group; the last one may have fewer.
        count: the number of groups.

    Raises:
        InputError: the array is missing, of another shape, or has a group that there is not.
        UnsupportedError: a group has another number of inputs.
    """
    indices = layer.get(part)
    if indices is None:
        raise layer.error(f"has no {part}")
    if indices.dtype.kind not in "iu" or indices.shape != (inputs,):
        raise layer.error(f"has as its {part} {described(indices)}, expected {inputs} integers")
    if indices.min() < 0 or indices.max() >= count:
        wrong = indices.min() if indices.min() < 0 else indices.max()
        raise layer.error(f"has the group {wrong} in its {part}, of {count} groups")
    ascending = np.arange(inputs) // size
    if (indices == ascending).all():
        return None
    order = np.argsort(indices, kind="stable").astype(np.int32)
    if (indices[order] != ascending).any():
        sizes = np.bincount(indices.astype(np.int64), minlength=count)
        wrong = int(np.flatnonzero(sizes != np.bincount(ascending, minlength=count))[0])
        raise layer.error(
            f"has {sizes[wrong]} inputs of the group {wrong} in its {part}, expected groups of "
            f"{size}",
            UnsupportedError,
        )
    return order
