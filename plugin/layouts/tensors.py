"""Tensors of a model: one logical tensor, made of named arrays.

    InferenceTensor                  a name, a shape, arrays by global name
    +-- PrimitiveTensor              one array
    |   +-- DeferredArray            computed when it is asked for
    +-- QuantizedTensor              `unpack` gives its layout, `to_planar` the canonical form
    |   +-- PlanarQuantizedTensor    any layout, with its planes as arrays
    +-- QuantizerTensor              `quantize` makes a QuantizedTensor (`quantizers`)

A tensor is written to an archive as its arrays and a record: ``type_name``, ``raw_tensors`` (local
name to global name), and further properties of types that JSON has.

Source: "Direct quantization with sharktank", ``InferenceTensor``.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from ..core.read_record import ReadRecord
from ..errors import InputError
from ..numerics.array_functions import Symbolic
from ..numerics.element_types import AnyArray, Array, DType
from .activations import ACTIVATIONS_KEY, ActivationQuantization
from .base import QuantizedLayout, extents_of, layout_class

_Tensor = TypeVar("_Tensor", bound="InferenceTensor")

TENSORS: dict[str, type[InferenceTensor]] = {}
"""The tensor classes that archives hold, by type name."""


class InferenceTensor(ABC):
    """A logical tensor, whose name is unique in its data set, with dots between the levels."""

    TYPE_NAME: ClassVar[str] = ""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name = name
        self.shape = extents_of(shape)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if cls.TYPE_NAME:
            TENSORS[cls.TYPE_NAME] = cls

    @property
    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """The arrays by global name."""

    @property
    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return the tensor's record in an archive, without its arrays."""

    @classmethod
    @abstractmethod
    def from_record(
        cls, name: str, record: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> InferenceTensor:
        """Make a tensor of its record, with arrays by local name; InputError if they do not fit."""

    def with_name(self: _Tensor, name: str) -> _Tensor:
        """The same tensor under another name."""
        renamed = copy.copy(self)
        renamed.name = name
        return renamed

    @property
    def stored_arrays(self) -> list[Array]:
        """The arrays that it is made of, as its file has them."""
        return list(self.arrays.values())

    @property
    def size_in_bytes(self) -> int:
        """The bytes of its stored arrays."""
        return sum(array.nbytes for array in self.stored_arrays)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {'x'.join(map(str, self.shape))})"


class PrimitiveTensor(InferenceTensor):
    """A tensor of one array, or of a value of a program."""

    TYPE_NAME: ClassVar = "PrimitiveTensor"

    def __init__(self, array: npt.ArrayLike | Symbolic, name: str = "") -> None:
        known: AnyArray = array if isinstance(array, Symbolic) else np.asanyarray(array)
        super().__init__(name, known.shape)
        self.array = known

    @property
    def arrays(self) -> dict[str, Array]:
        """The array, under the tensor's own name."""
        return {self.name: self.array}

    @property
    def record(self) -> dict[str, Any]:
        """Type and name."""
        return {"type_name": self.TYPE_NAME, "raw_tensors": {"": self.name}}

    @classmethod
    def from_record(
        cls, name: str, record: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> PrimitiveTensor:
        """Take the only array."""
        if set(arrays) != {""}:
            raise InputError(f"tensor '{name}' has the arrays {sorted(arrays)}, expected one")
        return cls(arrays[""], name)


class DeferredArray(PrimitiveTensor):
    """An array that is computed whenever it is asked for."""

    TYPE_NAME: ClassVar = ""

    @property
    def array(self) -> AnyArray:
        """The array, copied."""
        return self._computed()

    @array.setter
    def array(self, outline: AnyArray) -> None:
        self._outline = outline

    @abstractmethod
    def _computed(self) -> AnyArray:
        """The array."""

    def outline(self) -> PrimitiveTensor:
        """Return a tensor of the same type and shape with other elements, which copies nothing."""
        return PrimitiveTensor(self._outline, self.name)

    @property
    def record(self) -> dict[str, Any]:
        """Type and name of a tensor of one array."""
        return self.outline().record


def dtype_of(tensor: InferenceTensor) -> DType | None:
    """Return the dtype of a tensor of one array, which is not computed; None for others."""
    outline = tensor.outline() if isinstance(tensor, DeferredArray) else tensor
    return outline.array.dtype if isinstance(outline, PrimitiveTensor) else None


class QuantizedTensor(InferenceTensor):
    """A tensor whose arrays stand for reals; archives hold its planar form."""

    @abstractmethod
    def unpack(self) -> QuantizedLayout:
        """The layout, with the planes as arrays."""

    @property
    def activations(self) -> ActivationQuantization | None:
        """The quantization of the activations that the tensor multiplies; None for floats."""
        return None

    def to_planar(self) -> PlanarQuantizedTensor:
        """The tensor with the planes of its layout as its arrays."""
        return PlanarQuantizedTensor(self.unpack(), self.name)

    @property
    def arrays(self) -> dict[str, Array]:
        """The planes of `to_planar`."""
        return self.to_planar().arrays

    @property
    def record(self) -> dict[str, Any]:
        """The record of the planar form."""
        return self.to_planar().record

    @classmethod
    def from_record(
        cls, name: str, record: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> QuantizedTensor:
        """Make the planar form."""
        return PlanarQuantizedTensor.from_record(name, record, arrays)


class PlanarQuantizedTensor(QuantizedTensor):
    """A quantized tensor whose arrays are the planes of its layout."""

    TYPE_NAME: ClassVar = "PlanarQuantizedTensor"

    def __init__(self, layout: QuantizedLayout, name: str = "") -> None:
        super().__init__(name, layout.shape)
        self.layout = layout

    def unpack(self) -> QuantizedLayout:
        """The layout."""
        return self.layout

    @property
    def activations(self) -> ActivationQuantization | None:
        """The quantization of activations, of the layout."""
        return self.layout.activations

    def to_planar(self) -> PlanarQuantizedTensor:
        """The tensor itself."""
        return self

    @property
    def arrays(self) -> dict[str, Array]:
        """The planes, as ``name:plane``."""
        return {f"{self.name}:{plane}": array for plane, array in self.layout.planes.items()}

    @property
    def record(self) -> dict[str, Any]:
        """Shape, layout and metadata."""
        return {
            "type_name": self.TYPE_NAME,
            "raw_tensors": {plane: f"{self.name}:{plane}" for plane in self.layout.planes},
            "shape": list(self.shape),
            "layout_type": self.layout.name,
            "layout_metadata": self.layout.metadata,
        }

    @classmethod
    def from_record(
        cls, name: str, record: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> PlanarQuantizedTensor:
        """Make the layout that the record names."""
        shape, layout = record.get("shape"), record.get("layout_type")
        if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise InputError(f"tensor '{name}' has no valid shape, got {shape!r}")
        metadata = record.get("layout_metadata") or {}
        if not isinstance(layout, str) or not isinstance(metadata, dict):
            raise InputError(f"tensor '{name}' has no valid layout, got {layout!r}, {metadata!r}")
        kind, unread = layout_class(layout), ReadRecord(None, f"tensor '{name}'")
        keys = unread.track(f"metadata of {layout}", metadata)
        known = {key: keys[key] for key in (*kind.METADATA, ACTIVATIONS_KEY) if key in keys}
        unread.finish("write the archive again without")
        return cls(kind(tuple(shape), arrays, known), name)


class QuantizerTensor(InferenceTensor):
    """A tensor that says how others are quantized."""

    @abstractmethod
    def quantize(self, tensor: Any, name: str = "") -> QuantizedTensor:
        """Quantize an array or a `PrimitiveTensor`."""


def tensor_from_record(
    name: str, record: Mapping[str, Any], arrays: Mapping[str, Array]
) -> InferenceTensor:
    """Make the tensor that a record of an archive describes.

    Raises:
        InputError: the record is of an unknown type, names arrays that are not there, or does not
            fit them.
    """
    type_name, raw = record.get("type_name"), record.get("raw_tensors")
    if type_name not in TENSORS:
        raise InputError(
            f"tensor '{name}' is of the type {type_name!r}; expected one of: {', '.join(TENSORS)}"
        )
    if not isinstance(raw, dict) or not all(key in arrays for key in raw.values()):
        raise InputError(f"tensor '{name}' names arrays that are not there: {raw!r}")
    local = {str(key): arrays[value] for key, value in raw.items()}
    return TENSORS[type_name].from_record(name, record, local)
