"""Records of inspected quantized tensors, and their JSON; this module needs no MLIR.

Sizes count storage packed to its width, one scale for each block, and zero points unless the type
has only 0, or the operand is a constant of equal numbers. Scales that are themselves dequantized
(super-blocks) count with their own bits; the tensor that `holds_scales` is then left out of totals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from ..errors import Place
from ..numerics.element_types import Array
from ..numerics.parameters import QuantizationParameters
from ..signature import parameters_from_json, parameters_to_json


@dataclass(frozen=True)
class InspectedTensor:
    """A quantized tensor of a module.

    Args:
        name: its SSA name; in a declaration ``argument 0`` or ``result 0``.
        function: the symbol of the enclosing function; "" for none.
        place: the location of its definition; None if it is unknown.
        where: ``argument``, ``block argument of 'op'``, ``result of 'op'``, ``operand of 'op'`` or
            ``function result``.
        shape: dimension sizes, None for a dynamic one; () for a scalar; None for an unranked
            tensor.
        parameters: storage, expressed type, blocks, scales and zero points. If `scale_range` is
            None the scales are known at run time only, and one NaN replaces them; likewise
            `zero_point_range` and one 0.
        scale_type: the floating-point type of the scales.
        scale_count: the number of scales; None if it is known at run time only.
        scale_range, zero_point_range: minimum and maximum; None if they are unknown.
        scale_bits: bits of one scale with its zero point and offset.
        holds_scales: its dequantized values are scales or offsets of another tensor.
        plane_bits: bits of an integer in the planes that it is unpacked from; None for no planes.
    """

    name: str
    function: str
    place: Place | None
    where: str
    shape: tuple[int | None, ...] | None
    parameters: QuantizationParameters
    scale_type: str
    scale_count: int | None
    scale_range: tuple[float, float] | None
    zero_point_range: tuple[int, int] | None
    scale_bits: float
    holds_scales: bool = False
    plane_bits: int | None = None

    @property
    def block_shape(self) -> tuple[int | None, ...] | None:
        """The block sizes; None for a dynamic one, and for an unranked tensor."""
        if self.shape is None:
            return None
        size_of = self.parameters.block_size_of
        return tuple(size_of(axis) or extent for axis, extent in enumerate(self.shape))

    @property
    def elements(self) -> int | None:
        """The number of elements, None when the shape is not static."""
        if self.shape is None or None in self.shape:
            return None
        return math.prod(extent or 0 for extent in self.shape)

    @property
    def storage_bytes(self) -> int | None:
        """Bytes of the storage values, packed; None when the shape is not static."""
        return None if self.elements is None else -(-self.elements * self._width // 8)

    @property
    def scale_bytes(self) -> int | None:
        """Bytes of the scales and zero points; None when their number is unknown."""
        count = self.scale_count
        return None if count is None else math.ceil(count * self.scale_bits / 8)

    @property
    def bits_per_element(self) -> float | None:
        """Bits of an element with its share of scales; None when the shape is not static."""
        if self.elements is None or self.scale_count is None:
            return None
        return self._width + self.scale_bits * self.scale_count / max(self.elements, 1)

    @property
    def _width(self) -> int:
        return self.plane_bits or self.parameters.storage.width


_DEFINITION = re.compile(r"(%[\w$.-]+)(?::\d+)?\s*=\s*$")


def with_source_names(tensors: list[InspectedTensor], source: str) -> list[InspectedTensor]:
    """Give tensors their names in the source text, if the text shows them.

    MLIR forgets the names of values; the location of a result is the start of its operation, after
    ``=``.
    """
    source_lines = source.splitlines()
    named = []
    for tensor in tensors:
        place = tensor.place
        if (
            place is not None
            and tensor.where.startswith("result")
            and place.line <= len(source_lines)
        ):
            match = _DEFINITION.search(source_lines[place.line - 1][: place.column - 1])
            if match is not None:
                tensor = replace(tensor, name=match.group(1))
        named.append(tensor)
    return named


# -- JSON -----------------------------------------------------------------------------------------


def to_json(tensors: list[InspectedTensor]) -> list[dict[str, Any]]:
    """Return plain JSON values, an object for each tensor; unknown and infinite values are None."""
    return [_json_of(tensor) for tensor in tensors]


def _json_of(tensor: InspectedTensor) -> dict[str, Any]:
    def plain(*names: str, of: Any = tensor) -> dict[str, Any]:
        values = {name: getattr(of, name) for name in names}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def bounds(limits: tuple[Any, Any] | None) -> dict[str, Any]:
        low, high = (n if math.isfinite(n) else None for n in limits or (math.nan, math.nan))
        return {"count": tensor.scale_count, "minimum": low, "maximum": high}

    parameters = tensor.parameters
    return {
        **plain("name", "function", "where", "shape", "block_shape"),
        "place": tensor.place and asdict(tensor.place),
        **plain("granularity", "axes", "block_sizes", of=parameters),
        "storage": asdict(parameters.storage),
        "expressed": parameters.expressed.value,
        **plain("elements", "bits_per_element", "storage_bytes", "scale_bytes", "holds_scales"),
        "scales": {"type": tensor.scale_type, **bounds(tensor.scale_range)},
        "zero_points": bounds(tensor.zero_point_range),
    }


def to_fields(tensors: Sequence[InspectedTensor]) -> tuple[dict[str, Any], list[bytes]]:
    """Return JSON values and arrays, from which `tensors_from_fields` restores the tensors.

    Parameters that several tensors share are written once.
    """
    arrays: list[bytes] = []

    def number_of(array: Array) -> int:
        arrays.append(array.tobytes())
        return len(arrays) - 1

    shared: dict[int, int] = {}
    parameters: list[dict[str, Any]] = []
    described = []
    for tensor in tensors:
        if id(tensor.parameters) not in shared:
            shared[id(tensor.parameters)] = len(parameters)
            parameters.append(parameters_to_json(tensor.parameters, number_of))
        values = {each.name: getattr(tensor, each.name) for each in fields(tensor)}
        values["parameters"] = shared[id(tensor.parameters)]
        values["place"] = tensor.place and asdict(tensor.place)
        described.append(values)
    return {"parameters": parameters, "tensors": described}, arrays


def tensors_from_fields(
    described: dict[str, Any], arrays: Sequence[bytes]
) -> list[InspectedTensor]:
    """Return the tensors that `to_fields` has written."""

    def array_of(number: int, dtype: Any) -> Array:
        return np.frombuffer(arrays[number], dtype)

    parameters = [parameters_from_json(each, array_of) for each in described["parameters"]]
    tensors = []
    for values in described["tensors"]:
        lists = ("shape", "scale_range", "zero_point_range")
        values |= {name: values[name] and tuple(values[name]) for name in lists if values[name]}
        values |= {"shape": None if values["shape"] is None else tuple(values["shape"])}
        values["parameters"] = parameters[values["parameters"]]
        values["place"] = values["place"] and Place(**values["place"])
        tensors.append(InspectedTensor(**values))
    return tensors
