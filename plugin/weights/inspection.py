"""What a file of weights holds: the engine of ``subquant inspect`` for archives and checkpoints.

`describe` makes one `WeightTensor` of each tensor, from which table and JSON are made. Sizes are
those of the file: a packed tensor counts its blocks, a planar one its planes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from ..formats.packed_int4 import PackedInt4Tensor
from ..formats.strict_json import shown
from ..layouts.ggml import GgmlTensor
from ..layouts.tensors import (
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedTensor,
)
from .theta import Dataset

__all__ = ["PlaneArray", "WeightTensor", "describe", "property_lines", "render_weights", "to_json"]


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
        name: in the file.
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
    elif isinstance(tensor, PackedInt4Tensor):
        kind = tensor.form.method.upper()
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


def to_json(dataset: Dataset) -> dict[str, Any]:
    """Return properties, tensors and totals as JSON values."""
    tensors = [describe(tensor) for tensor in dataset.theta.flatten().values()]
    listed = [{**asdict(t), "bits_per_element": t.bits_per_element} for t in tensors]
    totals = {kind: _total(group) for kind, group in _by_kind(tensors).items()}
    return {
        "properties": dataset.properties,
        "tensors": listed,
        "kinds": totals,
        "total": _total(tensors),
    }


def property_lines(properties: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return one line for each property, nested ones with dots, long values shortened."""
    lines = []
    for name, value in properties.items():
        name = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            lines += property_lines(value, f"{name}.")
        elif isinstance(value, list) and len(value) > 8:
            lines.append(f"{shown(name)[1:-1]} = {len(value):,} values")
        else:
            lines.append(f"{shown(name)[1:-1]} = {shown(value)}")
    return lines


_COLUMNS = (
    ("tensor", "arrays"),
    ("shape", "elements"),
    ("kind", ""),
    ("bits", "an element"),
    ("size", ""),
)


def render_weights(dataset: Dataset) -> RenderableType:
    """Return a table for rich of the tensors of a data set, with totals by kind."""
    tensors = [describe(tensor) for tensor in dataset.theta.flatten().values()]
    if not tensors:
        return Text("no tensors")
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, collapse_padding=True)
    for number, (first, second) in enumerate(_COLUMNS):
        table.add_column(
            _cell(first, second, "bold"),
            justify="right" if number > 2 else "left",
            no_wrap=number > 2,
            overflow="fold",
        )
    for tensor in tensors:
        table.add_row(*_row(tensor))
    table.rows[-1].end_section = True
    groups = _by_kind(tensors)
    for kind, group in groups.items():
        table.add_row(*_total_row(kind, group, ""))
    if len(groups) > 1:
        table.add_row(*_total_row("all", tensors, "bold"))
    return table


def _by_kind(tensors: list[WeightTensor]) -> dict[str, list[WeightTensor]]:
    groups: dict[str, list[WeightTensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.kind, []).append(tensor)
    return groups


def _total(tensors: list[WeightTensor]) -> dict[str, int]:
    return {
        "tensors": len(tensors),
        "elements": sum(tensor.elements for tensor in tensors),
        "bytes": sum(tensor.bytes for tensor in tensors),
    }


def _row(tensor: WeightTensor) -> list[Text]:
    bits = tensor.bits_per_element
    arrays = ", ".join(f"{name} {array}" for name, array in tensor.arrays.items())
    return [
        _cell(shown(tensor.name, 200)[1:-1], arrays),
        _cell(_shape_text(tensor.shape), f"{tensor.elements:,}" if arrays else ""),
        Text(tensor.kind),
        Text("" if bits is None else f"{bits:.2f}"),
        Text(decimal(tensor.bytes)),
    ]


def _total_row(kind: str, tensors: list[WeightTensor], style: str) -> list[Text]:
    total = _total(tensors)
    bits = 8 * total["bytes"] / max(total["elements"], 1)
    number = f"{len(tensors)} tensor{'' if len(tensors) == 1 else 's'}"
    return [
        Text(number, style),
        Text(f"{total['elements']:,}", style),
        Text(kind, style),
        Text(f"{bits:.2f}", style),
        Text(decimal(total["bytes"]), style),
    ]


def _cell(first: str, second: str, style: str = "") -> Text:
    return Text.assemble((first, style), "\n", (second, "dim")) if second else Text(first, style)


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
