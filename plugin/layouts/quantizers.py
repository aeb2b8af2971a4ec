"""Quantizers: tensors that say how others are quantized.

One formula for every granularity, that of `subquant.quantize`: ``round_half_even(x / d + m)``,
saturated, with ``d`` the scale of MLIR's types. Archives hold its reciprocal as well, under the
names of sharktank: ``scale`` is ``1 / d``, ``rscale`` is ``d``. Only ``rscale`` is computed with,
so that a value on an edge between two steps goes the same way per tensor, axis and block.

Source: "Direct quantization with sharktank", ``StaticScaledQuantizer``, ``DynamicScaledQuantizer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import InputError, UsageError
from ..numerics.array_functions import is_known
from ..numerics.casts import Cast, quantize
from ..numerics.element_types import Array
from ..numerics.parameters import (
    ExpressedType,
    QuantizationParameters,
    StorageType,
    spread_blocks,
)
from .affine import BlockAffineLayout
from .base import integers_of
from .scaled import BlockScaledLayout, TensorScaledLayout
from .tensors import PlanarQuantizedTensor, PrimitiveTensor, QuantizerTensor

STORAGE_DTYPES = ("int8", "uint8", "int16", "uint16", "int32")
"""The names of the dtypes that a quantizer stores."""
_Quantizer = TypeVar("_Quantizer", bound="_ScaledQuantizer")

_LEAST = 1e-6
"""The least greatest magnitude that a dynamic scale is computed from."""


class _ScaledQuantizer(QuantizerTensor):
    """Quantizer with one scale, one for each index of an axis, or one for each block."""

    def __init__(
        self,
        axis: int | None,
        block_size: int | None,
        dtype: npt.DTypeLike,
        name: str,
        shape: tuple[int, ...],
    ) -> None:
        if axis is not None and block_size is not None:
            raise UsageError("a quantizer has scales along an axis or for blocks, not both")
        self.axis, self.block_size, self.dtype = axis, block_size, np.dtype(dtype)
        super().__init__(name, shape)

    @property
    def record(self) -> dict[str, Any]:
        """Type of the storage, and granularity."""
        record: dict[str, Any] = {
            "type_name": self.TYPE_NAME,
            "raw_tensors": {key.rpartition(":")[2]: key for key in self.arrays},
            "dtype": self.dtype.name,
        }
        if self.axis is not None:
            record["axis"] = self.axis
        if self.block_size is not None:
            record["block_size"] = self.block_size
        return record

    @classmethod
    def _of_record(
        cls: type[_Quantizer], name: str, record: Mapping[str, Any], **arguments: Any
    ) -> _Quantizer:
        """The quantizer with the granularity and storage of a record, and further arguments."""
        try:
            return cls(
                axis=_integer(record, "axis"),
                block_size=_integer(record, "block_size"),
                dtype=_dtype(record.get("dtype")),
                name=name,
                **arguments,
            )
        except UsageError as error:
            raise InputError(f"quantizer '{name}': {error.message}") from None

    def _blocks(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The quantized axes and block sizes of a tensor."""
        rank = len(shape)
        if self.axis is not None:
            if not -rank <= self.axis < rank:
                raise UsageError(
                    f"a quantizer has scales along axis {self.axis} of a tensor of rank {rank}"
                )
            return (self.axis % rank,), (1,)
        if self.block_size is None:
            return (), ()
        if self.block_size < 1 or not rank or shape[-1] % self.block_size:
            raise UsageError(
                f"a tensor of shape {shape} has a last axis that blocks of {self.block_size} do "
                "not divide"
            )
        return tuple(range(rank)), (*(1,) * (rank - 1), self.block_size)

    def _parameters(
        self, values: Array, scales: Array, offset: Array | None = None
    ) -> QuantizationParameters:
        """The parameters with which a tensor of values is quantized."""
        axes, sizes = self._blocks(values.shape)
        zero_points = np.zeros(scales.shape) if offset is None else offset
        return QuantizationParameters(
            StorageType.of_dtype(self.dtype),
            ExpressedType.of_dtype(values.dtype),
            axes,
            sizes,
            scales,
            zero_points.astype(np.int64),
        )

    def _traced(self, values: Any, d: Any, m: Any = None) -> Any:
        """Storage values of a traced array, whose blocks are split off by a reshape."""
        whole, rank = values.shape, len(values.shape)
        shape = [1] * rank
        if self.axis is not None:
            shape[self.axis % rank] = -1
        elif self.block_size is not None:
            shape = [*whole[:-1], -1, 1]
            values = values.reshape((*whole[:-1], -1, self.block_size))
        if is_known(d):  # or it raises
            self._parameters(np.broadcast_to(np.empty((), values.dtype), whole), d, m)
        m = np.zeros((1,) * len(shape), np.int64) if m is None else m.astype(np.int64)
        cast = Cast(StorageType.of_dtype(self.dtype), ExpressedType.of_dtype(values.dtype))
        m = m if m.ndim == len(shape) else m.reshape(shape)
        return cast.quantize(values, d.reshape(shape), m).reshape(whole)

    def _planar(self, stored: Array, d: Array, m: Array | None, name: str) -> PlanarQuantizedTensor:
        """The tensor of storage values, with scales and offsets of the granularity."""
        shape, stored = stored.shape, stored.astype(self.dtype)
        if self.block_size is not None:
            if m is not None and (not is_known(m) or m.any()):
                sizes = [1] * (len(shape) - 1) + [self.block_size]
                affine = BlockAffineLayout.of(stored, d, m, sizes, integers_of(stored))
                return PlanarQuantizedTensor(affine, name)
            blocks = stored.reshape((*shape[:-1], -1, self.block_size))
            layout = BlockScaledLayout(shape, {"d": d[..., None], "qs": blocks})
            return PlanarQuantizedTensor(layout, name)
        if self.axis is not None:
            spread = [1] * len(shape)
            spread[self.axis] = -1
            d, m = d.reshape(spread), None if m is None else m.reshape(spread)
        return PlanarQuantizedTensor(
            TensorScaledLayout(shape, {"d": d, "qs": stored, "m": m}), name
        )


class StaticScaledQuantizer(_ScaledQuantizer):
    """Quantize with scales that are known.

    Args:
        scale: ``1 / d``: a scalar; with `axis` one for each index of that axis; with `block_size`
            an array ``[..., K / block_size]``. May be None if `reciprocal_scale` is given.
        reciprocal_scale: ``d``; by default ``1 / scale`` in float32.
        offset: integers ``m`` of the shape of the scale; none if left out.
        block_size: the number of elements of the last axis that share a scale.
        dtype: of the storage: int8, uint8, int16, uint16 or int32.
        disable_saturate: raise for values beyond the storage type instead of clamping them.

    Raises:
        UsageError: arguments that do not fit together.
    """

    TYPE_NAME: ClassVar = "StaticScaledQuantizer"

    def __init__(
        self,
        scale: npt.ArrayLike | None = None,
        reciprocal_scale: npt.ArrayLike | None = None,
        offset: npt.ArrayLike | None = None,
        axis: int | None = None,
        block_size: int | None = None,
        dtype: npt.DTypeLike = np.int8,
        disable_saturate: bool = False,
        name: str = "",
    ) -> None:
        if scale is None and reciprocal_scale is None:
            raise UsageError("a quantizer needs a scale or a reciprocal scale")
        with np.errstate(divide="ignore", over="ignore"):
            forward_scale = None if scale is None else np.asarray(scale)
            if reciprocal_scale is None:
                assert forward_scale is not None  # one of the two is
                reciprocal_scale = (1 / forward_scale.astype(np.float32)).astype(np.float32)
            self.reciprocal_scale: Array = np.asarray(reciprocal_scale)
            if forward_scale is None:
                forward_scale = (1 / self.reciprocal_scale.astype(np.float32)).astype(np.float32)
        self.scale: Array = forward_scale
        self.offset: Array | None = None if offset is None else np.asarray(offset)
        self.disable_saturate = bool(disable_saturate)
        super().__init__(axis, block_size, dtype, name, self.scale.shape)
        self._check()

    def _check(self) -> None:
        if self.dtype.name not in STORAGE_DTYPES:
            raise UsageError(
                f"a quantizer's storage is of {self.dtype.name}, expected "
                f"{' or '.join(STORAGE_DTYPES)}"
            )
        d = self.reciprocal_scale
        shapes = {array.shape for array in (self.scale, d, self.offset) if array is not None}
        if len(shapes) > 1:
            raise UsageError("scale, reciprocal scale and offset of a quantizer differ in shape")
        rank = 0 if self.axis is None and self.block_size is None else 1
        if d.ndim < rank or (self.block_size is None and d.ndim != rank):
            expected = "one dimension" if rank else "none: it is for a whole tensor"
            raise UsageError(f"a quantizer's scale has {d.ndim} dimensions, expected {expected}")
        if not (np.isfinite(d.astype(np.float64)) & (d > 0)).all():
            raise UsageError("the reciprocal scales of a quantizer must be positive and finite")
        if self.offset is not None and (self.offset != np.rint(self.offset)).any():
            raise UsageError("the offsets of a quantizer must be integers")

    def quantize(self, tensor: Any, name: str = "") -> PlanarQuantizedTensor:
        """Quantize an array or a `PrimitiveTensor`.

        Raises:
            UsageError: the scales do not fit the shape, or with `disable_saturate` a value is
                beyond the storage type.
        """
        values, name = _values(tensor, name)
        axes, sizes = self._blocks(values.shape)
        grid = tuple(values.shape[a] // s for a, s in zip(axes, sizes, strict=True))
        if self.reciprocal_scale.shape != grid:
            raise UsageError(
                f"a quantizer has scales of the shape {self.reciprocal_scale.shape}, expected "
                f"{grid} for a tensor of shape {values.shape}"
            )
        if not is_known(values):
            stored = self._traced(values, self.reciprocal_scale, self.offset)
        else:
            parameters = self._parameters(values, self.reciprocal_scale, self.offset)
            stored = quantize(values, parameters)
            if self.disable_saturate:
                _check_range(values, parameters)
        return self._planar(stored, self.reciprocal_scale, self.offset, name)

    @property
    def arrays(self) -> dict[str, Array]:
        """``name:scale``, ``name:rscale`` and ``name:offset``."""
        arrays = {f"{self.name}:scale": self.scale, f"{self.name}:rscale": self.reciprocal_scale}
        if self.offset is not None:
            arrays[f"{self.name}:offset"] = self.offset
        return arrays

    @property
    def record(self) -> dict[str, Any]:
        """Type of the storage, granularity, and whether it saturates."""
        record = super().record
        if self.disable_saturate:
            record["disable_saturate"] = True
        return record

    @classmethod
    def from_record(
        cls, name: str, record: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> StaticScaledQuantizer:
        """Read `record`."""
        if not {"scale", "rscale"} <= arrays.keys() <= {"scale", "rscale", "offset"}:
            raise InputError(
                f"quantizer '{name}' has the arrays {sorted(arrays)}, expected scale, rscale and "
                "maybe offset"
            )
        return cls._of_record(
            name,
            record,
            scale=arrays["scale"],
            reciprocal_scale=arrays["rscale"],
            offset=arrays.get("offset"),
            disable_saturate=bool(record.get("disable_saturate", False)),
        )


class DynamicScaledQuantizer(_ScaledQuantizer):
    """Quantize with scales computed from the tensor, without offsets.

    The greatest magnitude becomes the greatest storage value.

    Args:
        axis: give each index of this axis a scale of its own.
        block_size: give each block of the last axis one.
        dtype: of the storage: int8 or int16 or int32.

    Raises:
        UsageError: arguments that do not fit together.
    """

    TYPE_NAME: ClassVar = "DynamicScaledQuantizer"

    def __init__(
        self,
        axis: int | None = None,
        block_size: int | None = None,
        dtype: npt.DTypeLike = np.int8,
        name: str = "",
    ) -> None:
        super().__init__(axis, block_size, dtype, name, ())
        if self.dtype.name not in STORAGE_DTYPES or self.dtype.kind != "i":
            raise UsageError(
                f"a dynamic quantizer's storage is of {self.dtype.name}, expected int8, int16 or "
                "int32"
            )

    def quantize(self, tensor: Any, name: str = "") -> PlanarQuantizedTensor:
        """Quantize an array or a `PrimitiveTensor`.

        Raises:
            UsageError: blocks that do not divide the last axis, or a value that is not finite.
        """
        values, name = _values(tensor, name)
        axes, _ = self._blocks(values.shape)
        if is_known(values) and not np.isfinite(values).all():
            raise UsageError("a dynamic quantizer needs finite values, got an infinity or a NaN")
        magnitudes = np.abs(values).astype(np.float32)
        if self.block_size is not None:
            blocks = magnitudes.reshape((*values.shape[:-1], -1, self.block_size))
            magnitudes = _greatest(blocks, (blocks.ndim - 1,))
        else:
            magnitudes = _greatest(magnitudes, [n for n in range(values.ndim) if n not in axes])
        greatest = np.float32(np.iinfo(self.dtype).max)
        d = (np.maximum(magnitudes, np.float32(_LEAST)) / greatest).astype(np.float32)
        if not is_known(values):
            return self._planar(self._traced(values, d), d, None, name)
        return self._planar(quantize(values, self._parameters(values, d)), d, None, name)

    @property
    def arrays(self) -> dict[str, Array]:
        """None."""
        return {}

    @classmethod
    def from_record(
        cls, name: str, record: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> DynamicScaledQuantizer:
        """Read `record`."""
        if arrays:
            raise InputError(f"quantizer '{name}' has the arrays {sorted(arrays)}, expected none")
        return cls._of_record(name, record)


def _greatest(magnitudes: Any, axes: Sequence[int]) -> Any:
    """Return the greatest magnitude along axes; 0 where there is no element."""
    if is_known(magnitudes):
        return np.asarray(magnitudes).max(axis=tuple(axes), initial=0)
    return magnitudes.max(axis=tuple(axes))


def _values(tensor: Any, name: str) -> tuple[Any, str]:
    if isinstance(tensor, PrimitiveTensor):
        tensor, name = tensor.array, name or tensor.name
    if not is_known(tensor):
        return tensor.astype(np.float32), name  # traced
    values = np.asarray(tensor)
    return (values if values.dtype == np.float64 else values.astype(np.float32)), name


def _check_range(values: Array, parameters: QuantizationParameters) -> None:
    scales, zero_points = (
        spread_blocks(grid, values.shape, parameters.block_shape(values.shape))
        for grid in parameters.grids(values.ndim)
    )
    steps = np.rint(values.astype(np.float64) / scales + zero_points)
    low, high = parameters.storage.type_range
    if not ((steps >= low) & (steps <= high)).all():
        raise UsageError(
            f"a value is beyond the range of {parameters.storage}, and the quantizer does not "
            "saturate"
        )


def _integer(record: Mapping[str, Any], key: str) -> int | None:
    value = record.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise InputError(f"'{key}' must be an integer, got {value!r}")
    return value


def _dtype(name: Any) -> np.dtype[Any]:
    if name not in STORAGE_DTYPES:
        raise UsageError(f"the storage is of {name!r}, expected {' or '.join(STORAGE_DTYPES)}")
    return np.dtype(str(name))
