"""Layouts: how named arrays ("planes") hold the values of one quantized tensor.

A layout gives the meaning of the numbers, whatever file they come from and whatever code computes
with them. It has a shape, planes, and static metadata, and is written to an archive as
these three under the name of its class.

Elements in blocks are described as a `BlockForm`, from which their values and the
operands of a program follow (`BlockLayout`). Arithmetic is the same for arrays and for traced ones
(`subquant.emit.trace`): `dequant` computes with the operators and functions that both have, so the
program that is compiled does what runs in NumPy. It is done in float32 (float64 where a plane is
float64), whatever the type of the scales is, and rounded to the wanted type at the end.

Source: "Direct quantization with sharktank", ``QuantizedLayout``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import InputError, UsageError
from ..numerics.array_functions import filled
from ..numerics.block_form import BlockForm
from ..numerics.element_types import Array
from ..numerics.packed_integers import PackedIntegers
from ..numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from .activations import ActivationQuantization, activations_of

Planes = Mapping[str, Any]
"""Arrays, or traced values, by the name of the plane."""

FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")
"""The names of the dtypes of scales and offsets."""

LAYOUTS: dict[str, type[QuantizedLayout]] = {}
"""The layout classes by serialized name."""


def extents_of(shape: Sequence[Any]) -> tuple[int, ...]:
    """Return a shape as integers; extents that a traced program varies stay as they are."""
    return tuple(int(n) if isinstance(n, np.integer) else n for n in shape)


class QuantizedLayout(ABC):
    """Planes that together hold a tensor.

    Args:
        planes: the arrays (or traced values), by name.
        metadata: further properties, of JSON's types.

    Attributes:
        PLANES: names of the planes; a name that ends in ``?`` may be left out.
        METADATA: names of the metadata that the layout knows, beside ``activations``.

    Raises:
        InputError: planes are missing, unknown, or of the wrong shape or type.
    """

    PLANES: ClassVar[tuple[str, ...]] = ()
    METADATA: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, shape: tuple[int, ...], planes: Planes, metadata: Mapping[str, Any] | None = None
    ) -> None:
        self.shape = extents_of(shape)
        self.planes: dict[str, Any] = {n: p for n, p in planes.items() if p is not None}
        self.metadata: dict[str, Any] = dict(metadata or {})
        known = {name.rstrip("?") for name in self.PLANES}
        needed = {name for name in self.PLANES if not name.endswith("?")}
        if not needed <= self.planes.keys() <= known:
            raise InputError(
                f"{self.name} has the planes {sorted(self.planes)}, expected {list(self.PLANES)}"
            )
        self.activations: ActivationQuantization | None = activations_of(self.metadata)
        """The quantization of the activations that a layer multiplies by the tensor."""
        self.check()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if cls.PLANES:
            LAYOUTS[cls.__name__] = cls

    @property
    def name(self) -> str:
        """The serialized name."""
        return type(self).__name__

    def with_planes(self, planes: Planes) -> QuantizedLayout:
        """The same layout of other planes, for example traced ones."""
        return type(self)(self.shape, planes, self.metadata)

    def outline(self) -> QuantizedLayout:
        """The same layout with zeros that take no memory; an order of inputs is kept."""
        planes = {
            name: plane if name == "order" else np.broadcast_to(plane.dtype.type(0), plane.shape)
            for name, plane in self.planes.items()
        }
        return self.with_planes(planes)

    @abstractmethod
    def check(self) -> None:
        """Raise an InputError if planes or metadata do not fit the shape."""

    @abstractmethod
    def dequant(self, dtype: npt.DTypeLike = np.float32) -> Any:
        """The values, of the layout's shape."""

    def dequant_blocked(self, dtype: npt.DTypeLike = np.float32) -> Any:
        """The values with the blocks of the planes as axes of their own, as in sharktank."""
        return self.dequant(dtype)

    def expect(self, plane: str, shape: tuple[int, ...], *dtypes: str) -> None:
        """Raise an InputError if a plane has another shape, or none of some dtypes (by name)."""
        array = self.planes.get(plane)
        if array is None:
            return
        if tuple(array.shape) != tuple(shape):
            raise InputError(
                f"plane '{plane}' of {self.name} has the shape {tuple(array.shape)}, expected "
                f"{tuple(shape)} for a tensor of shape {self.shape}"
            )
        if dtypes and np.dtype(array.dtype).name not in dtypes:
            raise InputError(
                f"plane '{plane}' of {self.name} has elements of {np.dtype(array.dtype).name}, "
                f"expected {' or '.join(dtypes)}"
            )

    def expect_boolean(self, key: str, default: bool | None = None) -> bool:
        """Return a boolean of the metadata; raise an InputError if it is none."""
        flag = self.metadata.get(key, default)
        if not isinstance(flag, bool):
            raise InputError(f"'{key}' of {self.name} must be true or false, got {flag!r}")
        return flag

    def compute_dtype(self) -> np.dtype[Any]:
        """float64 if a plane is, else float32."""
        wide = any(np.dtype(plane.dtype) == np.float64 for plane in self.planes.values())
        return np.dtype(np.float64 if wide else np.float32)

    def expressed(self) -> ExpressedType:
        """The type of the arithmetic: f64 if a plane is f64, else f32."""
        return ExpressedType.of_dtype(self.compute_dtype())

    def __repr__(self) -> str:
        planes = ", ".join(
            f"{name}: {np.dtype(plane.dtype).name}{list(plane.shape)}"
            for name, plane in self.planes.items()
        )
        return f"{self.name}({'x'.join(map(str, self.shape))}; {planes})"


class BlockLayout(QuantizedLayout):
    """Layout whose elements are integers in blocks; its block form gives their values."""

    @property
    @abstractmethod
    def row_block(self) -> int | None:
        """Elements in a block where blocks are parts of rows and divide them, else None."""

    @property
    def block_size(self) -> int:
        """The number of elements of a row that share a scale; 1 where blocks divide no rows."""
        return 1 if self.row_block is None else self.row_block

    @property
    def has_block_form(self) -> bool:
        """True if `block_form` describes the elements in the order of the tensor."""
        return True

    @abstractmethod
    def block_form(self) -> BlockForm:
        """Integers, scales, zero points and offsets; the integers are unpacked at each call."""

    def dequant(self, dtype: npt.DTypeLike = np.float32) -> Any:
        """The values, of the layout's shape, computed as the form says."""
        return self.block_form().dequantize(self.expressed()).astype(dtype)

    def _sub_channel(self, storage: StorageType, scales: Array) -> QuantizationParameters:
        """The sub-channel type of blocks of rows, with one scale for each block."""
        axes, expressed = tuple(range(len(self.shape))), ExpressedType.of_dtype(scales.dtype)
        sizes = (*(1 for _ in axes[1:]), self.block_size)
        return QuantizationParameters(
            storage, expressed, axes, sizes, scales, granularity="sub-channel"
        )


def integers_of(array: Any, bits: int | None = None) -> StorageType:
    """Return the storage type of an array of integers, which may hold fewer bits than its dtype."""
    whole = StorageType.of_dtype(array.dtype)
    narrow = StorageType(bits or whole.width, whole.signed)
    return replace(whole, minimum=narrow.minimum, maximum=narrow.maximum)


def packed_form(
    integers: PackedIntegers,
    planes: Planes,
    shape: tuple[int, ...],
    block_size: int,
    scales: Any,
    offsets: Any = None,
) -> BlockForm:
    """The form of integers that lie in planes, in blocks of the last axis.

    What signed integers are more in the planes is a zero point: the planes are read as they lie.
    """
    stored = integers.packed(planes, shape)
    grid = (*shape[:-1], shape[-1] // block_size)
    return BlockForm(
        stored,
        integers_of(stored, integers.low + integers.high),
        (*(1,) * (len(shape) - 1), block_size),
        scales,
        filled(stored, grid, integers.zero, stored.dtype) if integers.zero else None,
        offsets,
    )


def layout_class(name: str) -> type[QuantizedLayout]:
    """The class with a serialized name.

    Raises:
        UsageError: there is none.
    """
    if name not in LAYOUTS:
        raise UsageError(f"no layout is named '{name}'; expected one of: {', '.join(LAYOUTS)}")
    return LAYOUTS[name]
