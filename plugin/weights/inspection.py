"""Contents of a weights file: the engine of ``subquant inspect`` for archives and checkpoints.

`describe` makes one `WeightTensor` of each tensor, from which table and JSON are made. Sizes are
those of the file: a packed tensor counts its blocks, a planar one its planes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ..core.strict_json import Json, JsonObject, shown
from ..formats.checkpoints.layers import PackedTensor
from ..layouts.ggml_tensor import GgmlTensor
from ..layouts.tensors import (
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedTensor,
)
from .theta import Dataset


@dataclass(frozen=True)
class PlaneArray:
    """One array of a tensor: its shape and its element type, by NumPy's name."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.dtype])


@dataclass(frozen=True)
class WeightTensor:
    """One tensor of a file.

    Args:
        shape: the logical one.
        kind: the layout of a planar tensor, the type of a packed one's blocks, the type of a
            quantizer, the element type of another tensor.
        arrays: those of a planar tensor or a quantizer, by local name.
        bytes: of all its arrays.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    arrays: dict[str, PlaneArray]
    bytes: int

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def bits_per_element(self) -> float | None:
        """Bits of an element with its share of scales; None if there are no elements."""
        return 8 * self.bytes / self.elements if self.elements else None


def describe(tensor: InferenceTensor) -> WeightTensor:
    """Describe a tensor, without unpacking it."""
    arrays: dict[str, PlaneArray] = {}
    if isinstance(tensor, PrimitiveTensor):
        kind = tensor.array.dtype.name
    elif isinstance(tensor, GgmlTensor):
        kind = tensor.ggml_type
    elif isinstance(tensor, PackedTensor):
        kind = tensor.kind
    elif isinstance(tensor, PlanarQuantizedTensor):
        kind, arrays = tensor.layout.name, _plane_arrays(tensor)
    else:
        kind = type(tensor).__name__
        if not isinstance(tensor, QuantizedTensor):  # the arrays of others are made by unpacking
            arrays = _plane_arrays(tensor)
    return WeightTensor(tensor.name, tensor.shape, kind, arrays, tensor.size_in_bytes)


def _plane_arrays(tensor: InferenceTensor) -> dict[str, PlaneArray]:
    return {
        name.removeprefix(f"{tensor.name}:"): PlaneArray(tuple(array.shape), array.dtype.name)
        for name, array in tensor.arrays.items()
    }


def to_json(dataset: Dataset) -> JsonObject:
    """Return properties, tensors and totals as JSON values."""
    tensors = [describe(tensor) for tensor in dataset.theta.flatten().values()]
    listed = [{**asdict(t), "bits_per_element": t.bits_per_element} for t in tensors]
    totals = {kind: total_of(group) for kind, group in by_kind(tensors).items()}
    return {
        "properties": dataset.properties,
        "tensors": listed,
        "kinds": totals,
        "total": total_of(tensors),
    }


def property_lines(properties: Mapping[str, Json], prefix: str = "") -> list[str]:
    """Return one line for each property, nested ones with dots, long values shortened."""
    texts = []
    for name, value in properties.items():
        name = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            texts += property_lines(value, f"{name}.")
        elif isinstance(value, list) and len(value) > 8:
            texts.append(f"{shown(name)[1:-1]} = {len(value):,} values")
        else:
            texts.append(f"{shown(name)[1:-1]} = {shown(value)}")
    return texts


def by_kind(tensors: list[WeightTensor]) -> dict[str, list[WeightTensor]]:
    """Group tensors by kind, in the order in which kinds appear."""
    groups: dict[str, list[WeightTensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.kind, []).append(tensor)
    return groups


def total_of(tensors: list[WeightTensor]) -> dict[str, int]:
    """Return the number of tensors, of elements and of bytes."""
    return {
        "tensors": len(tensors),
        "elements": sum(tensor.elements for tensor in tensors),
        "bytes": sum(tensor.bytes for tensor in tensors),
    }
