"""Uniform quantization: storage and expressed types, blocks, scales and zero points.

Every uniform quantized type is a block-quantized type: per-tensor is one block, per-axis has blocks
of size 1 along one axis, sub-channel has any block sizes, and an axis that is not named has one
block as long as the dimension. So there is one value class and one map from an element to its block
(``index // block size``). What integers and reals have to do with each other is in `casts`.

Source: sub-channel RFC, "Type Constraints" and "Compile-time scale representation".
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedError, UsageError
from .element_types import F32, F64, Array, DType, ElementType

__all__ = [
    "EXPRESSED_TYPES",
    "ExpressedType",
    "Granularity",
    "QuantizationParameters",
    "StorageType",
    "check_rank",
    "spread_blocks",
]

Granularity = Literal["per-tensor", "per-axis", "sub-channel"]


class ExpressedType(enum.Enum):
    """A floating-point type that a quantized value stands for."""

    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"

    @property
    def element(self) -> ElementType:
        """The element type of this name."""
        return ElementType.parse(self.value)

    @property
    def dtype(self) -> DType:
        """The NumPy dtype (bf16 comes from ml_dtypes)."""
        return self.element.dtype

    @property
    def compute_dtype(self) -> DType:
        """The dtype that operations are computed in before they are rounded to this type."""
        return (F64 if self is ExpressedType.F64 else F32).dtype

    @property
    def largest(self) -> float:
        """The greatest finite number."""
        return float(ml_dtypes.finfo(self.dtype).max)

    @cached_property
    def smallest_normal(self) -> float:
        """The smallest positive normal number."""
        return float(ml_dtypes.finfo(self.dtype).smallest_normal)

    @classmethod
    def of_dtype(cls, dtype: npt.DTypeLike) -> ExpressedType:
        """Return the member for a NumPy dtype; UsageError for any other dtype."""
        for member in cls:
            if member.dtype == np.dtype(dtype):
                return member
        raise UsageError(f"expected an expressed type among {EXPRESSED_TYPES}, got {dtype}")


EXPRESSED_TYPES = tuple(member.value for member in ExpressedType)


@dataclass(frozen=True)
class StorageType:
    """An integer storage type: 2 to 32 bits, signed or not, with a range that may be narrower.

    Args:
        width: bits, 2 to 32.
        signed: two's complement if true, else unsigned.
        minimum, maximum: the range of storage values, inclusive; None for the whole range.

    Raises:
        UsageError: width outside 2..32, or a range that is empty or exceeds the type.
    """

    width: int
    signed: bool = True
    minimum: int = None  # type: ignore[assignment]
    maximum: int = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if not 2 <= self.width <= 32:
            raise UsageError(f"expected a storage type of 2 to 32 bits, got {self.width} bits")
        low, high = self.type_range
        minimum = low if self.minimum is None else int(self.minimum)
        maximum = high if self.maximum is None else int(self.maximum)
        if not low <= minimum < maximum <= high:
            raise UsageError(
                f"expected a storage range inside {low}:{high} with min < max, "
                f"got <{minimum}:{maximum}>"
            )
        object.__setattr__(self, "minimum", minimum)
        object.__setattr__(self, "maximum", maximum)

    @property
    def type_range(self) -> tuple[int, int]:
        """The least and the greatest integer of the type, before narrowing."""
        if self.signed:
            return -(1 << (self.width - 1)), (1 << (self.width - 1)) - 1
        return 0, (1 << self.width) - 1

    @property
    def is_narrowed(self) -> bool:
        """True when the range is narrower than the type's."""
        return (self.minimum, self.maximum) != self.type_range

    @cached_property
    def element(self) -> ElementType:
        """The element type of this width and signedness."""
        return ElementType.parse(f"{'i' if self.signed else 'u'}{self.width}")

    @property
    def container_width(self) -> int:
        """Bits of the narrowest machine integer (8, 16 or 32) that holds a storage value."""
        return self.dtype.itemsize * 8

    @property
    def dtype(self) -> DType:
        """The narrowest NumPy integer dtype that holds a storage value."""
        return self.element.dtype

    @classmethod
    def of_dtype(cls, dtype: npt.DTypeLike) -> StorageType:
        """Return the type of all integers of a NumPy dtype."""
        info = np.iinfo(np.dtype(dtype))
        return cls(info.bits, info.min < 0)

    @classmethod
    def parse(cls, text: str) -> StorageType:
        """Read what `str` writes: ``i4``, ``u8``, ``i8<-127:127>``; UsageError for other text."""
        match = re.fullmatch(r"([iu])(\d{1,2})(?:<(-?\d{1,10}):(-?\d{1,10})>)?", str(text))
        if match is None:
            raise UsageError(f"expected a storage type like i4, u8 or i8<-127:127>, got {text!r}")
        sign, width, low, high = match.groups()
        bounds = () if low is None else (int(low), int(high))
        return cls(int(width), sign == "i", *bounds)

    def __str__(self) -> str:
        name = f"{'i' if self.signed else 'u'}{self.width}"
        return f"{name}<{self.minimum}:{self.maximum}>" if self.is_narrowed else name


@dataclass(frozen=True, eq=False)
class QuantizationParameters:
    """Uniform quantization: storage, expressed type, blocks, scales and zero points.

    Args:
        storage: the storage type with its range.
        expressed: the floating-point type that values stand for.
        axes: the quantized dimensions, in the order in which they are written; none for per-tensor.
        block_sizes: for each of `axes`, the number of consecutive elements that share a scale.
        scales: positive finite reals, one a block. Per-tensor: shape (); per-axis: shape (n,);
            sub-channel: one dimension for each dimension of the tensor (size 1 on axes that are
            not quantized; such dimensions may be left out), in the tensor's axis order. Rounded
            to the expressed type.
        zero_points: integers in the storage range, of the same shape; 0 when left out.
        granularity: how the type is written; by default the simplest that says the same.

    Raises:
        UsageError: shapes that do not fit together. Values are not checked, so that a wrong type in
            a file can be represented; the pass ``verify-quantization`` reports it.
    """

    storage: StorageType
    expressed: ExpressedType
    axes: tuple[int, ...] = ()
    block_sizes: tuple[int, ...] = ()
    scales: Array = field(default_factory=lambda: np.array(1.0))
    zero_points: Array = None  # type: ignore[assignment]
    granularity: Granularity = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(int(a) for a in self.axes))
        object.__setattr__(self, "block_sizes", tuple(int(b) for b in self.block_sizes))
        with np.errstate(over="ignore"):
            scales = np.asarray(self.scales).astype(self.expressed.dtype)
        argument: Array | None = self.zero_points
        if argument is None:
            zero_points = np.zeros(scales.shape, np.int64)
        else:
            zero_points = np.asarray(argument).astype(np.int64)
        if scales.shape != zero_points.shape:
            raise UsageError(
                f"expected scales and zero points of one shape, got {scales.shape} and "
                f"{zero_points.shape}"
            )
        if len(self.axes) != len(self.block_sizes):
            raise UsageError(
                f"expected one block size for each axis, got axes {self.axes} and block sizes "
                f"{self.block_sizes}"
            )
        granularity: Granularity | None = self.granularity
        if granularity is None:
            if not self.axes and scales.shape == ():
                granularity = "per-tensor"
            elif self.block_sizes == (1,) and scales.ndim == 1:
                granularity = "per-axis"
            else:
                granularity = "sub-channel"
        scales.setflags(write=False)
        zero_points.setflags(write=False)
        object.__setattr__(self, "scales", scales)
        object.__setattr__(self, "zero_points", zero_points)
        object.__setattr__(self, "granularity", granularity)

    # -- identity ---------------------------------------------------------------------------------

    @cached_property
    def _key(self) -> tuple[object, ...]:
        return (
            self.storage,
            self.expressed,
            self.axes,
            self.block_sizes,
            self.granularity,
            self.scales.shape,
            self.scales.tobytes(),
            self.zero_points.tobytes(),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuantizationParameters) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    # -- blocks -----------------------------------------------------------------------------------

    @property
    def min_rank(self) -> int:
        """The least rank of a tensor that these parameters can belong to."""
        return max(self.axes, default=-1) + 1

    def block_size_of(self, axis: int) -> int | None:
        """The block size along `axis`, or None where one block is as long as the dimension."""
        return dict(zip(self.axes, self.block_sizes, strict=True)).get(axis)

    def block_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The block shape for a tensor of `shape` (RFC "Type Constraints", note 1)."""
        return tuple(self.block_size_of(axis) or int(n) for axis, n in enumerate(shape))

    def grid_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The number of blocks along each axis: ``ceil(shape / block)`` (RFC, notes 2 and 3)."""
        grid = []
        for axis, extent in enumerate(shape):
            block = self.block_size_of(axis)
            grid.append(1 if block is None else -(-int(extent) // block))
        return tuple(grid)

    def full_grid_shape(self, rank: int) -> tuple[int, ...] | None:
        """The scales' shape with one dimension for each of `rank` axes, or None if there is none.

        Axes that are not quantized have size 1. Where the written shape has fewer dimensions than
        the tensor, those that are missing must be axes that are not quantized: the RFC writes its
        Case 1 so, and its Case 2 ("collapsed") leaves out all of them.
        """
        if rank < self.min_rank:
            return None
        written = self.scales.shape
        if not self.axes and all(n == 1 for n in written):
            return (1,) * rank  # per-tensor scales written as a tensor of ones belong to any rank
        # From the last axis back: fits[i] is a form of the axes so far that uses up written[i:].
        # An axis that is not quantized is left out where that fits, the leading ones first.
        fits: list[tuple[int, ...] | None] = [None] * len(written) + [()]
        for axis in reversed(range(rank)):
            for index in range(len(written) + 1):
                left_out = None if axis in self.axes else fits[index]
                one_used = fits[index + 1] if index < len(written) else None
                if left_out is not None:
                    fits[index] = (1, *left_out)
                elif one_used is not None and (axis in self.axes or written[index] == 1):
                    fits[index] = (written[index], *one_used)
                else:
                    fits[index] = None
        return fits[0]

    def grids(self, rank: int) -> tuple[Array, Array]:
        """Scales and zero points with one dimension for each of `rank` axes.

        Raises:
            UsageError: the scales' shape has no such form.
            UnsupportedError: the rank is above `MAX_AXES`.
        """
        full = self.full_grid_shape(rank)
        if full is None:
            raise UsageError(
                f"scales of shape {self.scales.shape} with quantized axes {self.axes} do not "
                f"belong to a tensor of rank {rank}"
            )
        check_rank(rank, MAX_AXES)
        return self.scales.reshape(full), self.zero_points.reshape(full)

    # -- reports ----------------------------------------------------------------------------------

    @property
    def is_symmetric(self) -> bool:
        """True when every zero point is 0."""
        return not self.zero_points.any()

    @property
    def greatest_difference(self) -> int:
        """The greatest magnitude of storage value minus zero point."""
        low, high = self.storage.minimum, self.storage.maximum
        zero_points = self.zero_points
        return max(high - int(zero_points.min(initial=0)), int(zero_points.max(initial=0)) - low)

    def bits_per_element(
        self,
        shape: Sequence[int],
        scale_bits: int | None = None,
        zero_point_bits: int | None = None,
    ) -> float:
        """Bits an element takes with its share of scales and zero points (none when all are 0)."""
        elements = int(np.prod([int(n) for n in shape], dtype=np.int64))
        per_block = scale_bits or self.expressed.dtype.itemsize * 8
        if not self.is_symmetric:
            per_block += zero_point_bits or self.storage.width
        if not elements:
            return float(self.storage.width)
        return self.storage.width + per_block * self.scales.size / elements

    def __str__(self) -> str:
        """Return the type as in MLIR text; ``...`` stands for the scales of several blocks."""
        head = f"!quant.uniform<{self.storage}:{self.expressed.value}"
        if self.granularity == "per-tensor":
            zero_point = f":{int(self.zero_points)}" if self.zero_points.any() else ""
            return f"{head}, {self.scales.item():.9g}{zero_point}>"
        if self.granularity == "per-axis":
            return f"{head}:{self.axes[0]}, {{...}}>"
        blocks = ", ".join(f"{a}:{b}" for a, b in zip(self.axes, self.block_sizes, strict=True))
        return f"{head}:{{{blocks}}}, {{...}}>"


MAX_AXES = 64
"""The greatest rank of NumPy's arrays."""
MAX_BLOCKED_AXES = MAX_AXES // 2
"""The greatest rank of tensors in blocks: each axis becomes one of blocks, and one inside them."""


def check_rank(rank: int, most: int = MAX_BLOCKED_AXES) -> None:
    """Raise UnsupportedError for a tensor of more axes than NumPy computes with."""
    if rank > most:
        raise UnsupportedError(f"the tensor has {rank} axes, expected {most} at most; merge some")


def spread_blocks(grid: Array, shape: Sequence[int], block_shape: Sequence[int]) -> Array:
    """Give every element of a tensor the number of its block (``index // block size``).

    Args:
        grid: one number a block, an axis for each axis of the tensor; or one number for all.
        block_shape: elements in a block along each axis; the last block may be shorter.

    Returns:
        An array of `shape`; of shape () for one number.
    """
    if grid.ndim == 0 or not len(shape):
        return grid.reshape(())
    index = [np.arange(n) // max(int(b), 1) for n, b in zip(shape, block_shape, strict=True)]
    return grid[np.ix_(*index)]
