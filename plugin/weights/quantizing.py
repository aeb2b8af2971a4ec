"""Quantize the float weights of a model to integers, and measure the error.

Values are rounded to nearest (half to even). Scales come from the least and greatest value of each
block (*min-max*), or from the range with the least sum of powers of errors that
`grids.search_scales` finds: squares (*mse*), or fourth powers (*fourth-power*), which keep the few
great weights. Asymmetric quantization uses all integers, and 0 is exact. Symmetric quantization has
no zero points, and the greatest magnitude of a block gets the least integer; by min-max scales, and
for ranges that are no block of fewer than 8 bits, the least integer is not used.

Scales of blocks of fewer than 8 bits are rounded to float16, if all are in its range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ..core.option_fields import check_choices, option
from ..errors import InputError, UnsupportedError, UsageError, quoted, shape_text
from ..isolation.limits import machine_memory
from ..layouts import (
    BlockAffineLayout,
    BlockScaledI4Layout,
    BlockScaledLayout,
    BlockScaledPackedLayout,
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedLayout,
    QuantizedTensor,
    TensorScaledLayout,
)
from ..layouts.base import FLOAT_DTYPES
from ..numerics.casts import Cast
from ..numerics.element_types import Array
from ..numerics.packed_integers import pack_bits
from ..numerics.parameters import ExpressedType, StorageType, check_rank
from .grids import OffsetKind, as_scales, search_scales
from .theta import Dataset, Theta

__all__ = [
    "LayerError",
    "WeightQuantization",
    "average_bits",
    "block_layout",
    "chosen",
    "decibels",
    "layer_error",
    "quantize_array",
    "quantize_weights",
]

_BYTES_OF_ELEMENT = 60
"""Bytes that quantizing takes for an element, at most: measured, with the errors."""

_LEAST_SCALE = np.finfo(np.float32).tiny * 4
"""Smaller ranges become 0: their quotients would not be normal numbers."""
_LEAST_HALF_SCALE, _GREATEST_HALF_SCALE = 2.0**-14, 50_000.0
"""Bounds of a tensor's greatest scale by its range, for scales of float16.

Subnormal scales of other blocks have errors of ``2**-11`` of the greatest scale at most, and ranges
may grow.
"""


@dataclass(frozen=True)
class WeightQuantization:
    """Quantization of weights to 2 to 8 bits.

    Raises:
        UsageError: a number out of its range, or an unknown granularity or search.
    """

    bits: int = option(8, "Bits of the storage type.")
    granularity: Literal["tensor", "axis", "block"] = option(
        "block", "Elements that share a scale."
    )
    axis: int = option(0, "Axis of --granularity axis.")
    block_size: int = option(32, "Block size along the last axis, of --granularity block.")
    scales: Literal["min-max", "mse", "fourth-power"] | None = option(
        None,
        "Scales from the range of values, or with the least sum of squares or of fourth powers of "
        "errors.  [default: fourth-power for blocks of fewer than 8 bits, else min-max]",
    )
    asymmetric: bool | None = option(
        None,
        "Quantize with zero points, or without.  [default: with, for blocks of fewer than 8 bits "
        "without calibration]",
        negation="symmetric",
    )
    gguf_type: str | None = option(
        None, "Type of a .gguf output, in place of bits, blocks and zero points.", "TYPE"
    )

    def __post_init__(self) -> None:
        check_choices(self)
        if not 2 <= self.bits <= 8:
            raise UsageError(f"weights are quantized to 2 to 8 bits, got {self.bits}")
        if self.block_size < 1:
            raise UsageError(f"a block has at least one element, got {self.block_size}")

    @property
    def is_fine(self) -> bool:
        """True for blocks of fewer than 8 bits."""
        return self.granularity == "block" and self.bits < 8

    @property
    def has_zero_points(self) -> bool:
        """True if weights get zero points without a calibration."""
        return self.is_fine if self.asymmetric is None else self.asymmetric

    @property
    def power(self) -> Literal[2, 4] | None:
        """The power of the errors whose sum is least; None for min-max scales."""
        powers: dict[str | None, Literal[2, 4] | None]
        powers = {"min-max": None, "mse": 2, "fourth-power": 4, None: 4 if self.is_fine else None}
        return powers[self.scales]

    @property
    def storage(self) -> StorageType:
        """Unsigned with zero points, else signed, without the least integer if it is not used."""
        if self.has_zero_points:
            return StorageType(self.bits, False)
        if self.is_fine and self.power is not None:
            return StorageType(self.bits, True)
        high = (1 << (self.bits - 1)) - 1
        return StorageType(self.bits, True, -high, high)


@dataclass(frozen=True)
class LayerError:
    """Error of one quantized tensor against its float values.

    Attributes:
        bits_per_element: with scales and zero points.
        relative_error: root mean square error, divided by the root mean square of the values.
        greatest_error: the greatest magnitude of an error.
        output_error: root mean square error of the layer's outputs for calibration tokens, divided
            by the root mean square of the outputs; None without calibration.
        held_out_error: as `output_error`, for tokens that were not used to calibrate.
        seconds: the time to choose the integers; None without calibration.
        experts_without_tokens: experts of the layer that no calibration token has as input, and
            that are rounded to nearest.
    """

    name: str
    shape: tuple[int, ...]
    bits_per_element: float
    relative_error: float
    greatest_error: float
    output_error: float | None = None
    held_out_error: float | None = None
    seconds: float | None = field(default=None, compare=False)
    experts_without_tokens: int = 0

    @property
    def signal_to_noise(self) -> float:
        """In decibels; infinite for no error."""
        return decibels(self.relative_error)


def decibels(relative_error: float) -> float:
    """Return the signal-to-noise ratio of a relative error in decibels; infinite for 0."""
    return -20 * math.log10(relative_error) if relative_error else math.inf


def average_bits(errors: Sequence[LayerError]) -> float:
    """Return the bits per element of all quantized tensors together."""
    elements = [math.prod(each.shape) for each in errors]
    bits = sum(each.bits_per_element * count for each, count in zip(errors, elements, strict=True))
    return bits / sum(elements)


def quantize_weights(
    dataset: Dataset,
    how: WeightQuantization,
    select: str = "",
    on_tensor: Callable[[int, int, str], None] | None = None,
    excluded: Collection[str] = (),
) -> tuple[Dataset, list[LayerError]]:
    """Quantize the float tensors of two axes or more; return the model, and the error of each.

    Args:
        dataset: the model; other tensors are copied, quantized ones included.
        select: a regular expression; only tensors whose name has a match are quantized.
        on_tensor: called before each tensor with its number, from 0, their count, and its name.
        excluded: names of tensors that are copied, too.

    Raises:
        InputError: a tensor takes more memory than this machine has.
        UsageError: `select` is no regular expression or matches no tensor that can be quantized, or
            a tensor has no such axis or blocks.
    """
    tensors = dataset.theta.flatten()
    weights = [name for name, tensor in tensors.items() if _is_weight(tensor)]
    names = chosen([name for name in weights if name not in excluded], select)
    result: dict[str, InferenceTensor] = dict(tensors)
    errors = []
    for number, name in enumerate(names):
        if on_tensor is not None:
            on_tensor(number, len(names), name)
        tensor = tensors[name]
        assert isinstance(tensor, PrimitiveTensor)  # _is_weight
        needed, memory = _BYTES_OF_ELEMENT * math.prod(tensor.shape), machine_memory()
        if memory is not None and needed > memory:  # a splat is small in its file
            raise InputError(
                f"tensor {quoted(name)} of shape {shape_text(tensor.shape)} takes "
                f"{needed / 2**30:,.0f} GiB to quantize, and this machine has "
                f"{memory / 2**30:,.0f} GiB; leave it out with --select"
            )
        try:
            layout = quantize_array(tensor.array, how)
        except (UnsupportedError, UsageError) as error:
            raise type(error)(f"tensor {quoted(name)}: {error.message}") from None
        quantized = PlanarQuantizedTensor(layout, name)
        errors.append(layer_error(quantized, tensor.array))
        result[name] = quantized
    return Dataset(dataset.properties, Theta(result)), errors


def chosen(names: Sequence[str], select: str) -> list[str]:
    """Return the names in which a regular expression has a match.

    Raises:
        UsageError: it is no regular expression, or matches no name.
    """
    try:
        pattern = re.compile(select)
    except re.error as error:
        raise UsageError(f"'{select}' is no regular expression: {error}") from None
    result = [name for name in names if pattern.search(name)]
    if not result:
        raise UsageError(
            f"no float tensor of two axes or more has a name that matches '{select}'; "
            "see subquant inspect"
        )
    return result


def _is_weight(tensor: InferenceTensor) -> bool:
    if not isinstance(tensor, PrimitiveTensor):
        return False
    array = tensor.array
    return array.dtype.name in FLOAT_DTYPES and array.ndim >= 2 and array.size > 0


def quantize_array(array: Array, how: WeightQuantization) -> QuantizedLayout:
    """Quantize one array of floats, of one axis or more.

    Returns:
        Blocks of 4 symmetric bits as `BlockScaledI4Layout`, of 2, 3, 5 or 6 in multiples of 8
        elements as `BlockScaledPackedLayout`, other symmetric blocks as `BlockScaledLayout`,
        asymmetric ones as `BlockAffineLayout`; else `TensorScaledLayout`.

    Raises:
        UnsupportedError: the array has more axes than are computed with.
        UsageError: the array has no such axis, blocks do not divide its last axis, or a value is
            not finite.
    """
    check_rank(array.ndim)
    with np.errstate(over="ignore"):
        values = np.asarray(array).astype(np.float32)
    if not np.isfinite(values).all():
        raise UsageError("has an infinity, a NaN or a number beyond f32 among its values")
    shape, axis, spread = values.shape, 0, [1] * values.ndim
    if how.granularity == "block":
        if shape[-1] % how.block_size:
            raise UsageError(
                f"has a last axis of {shape[-1]} elements, which blocks of {how.block_size} do not "
                "divide"
            )
        groups = values.reshape((-1, how.block_size))
    elif how.granularity == "axis":
        if not -values.ndim <= how.axis < values.ndim:
            raise UsageError(f"has {values.ndim} axes, and none with the number {how.axis}")
        axis = how.axis % values.ndim
        spread[axis] = -1
        groups = np.moveaxis(values, axis, 0).reshape((shape[axis], -1))
    else:
        groups, spread = values.reshape((1, -1)), []
    scales, zero_points = _search(groups, how)
    cast = Cast(how.storage, ExpressedType.F32)
    stored = cast.quantize(groups, scales.astype(np.float32)[:, None], zero_points[:, None])
    if how.granularity == "block":
        grid = (*shape[:-1], shape[-1] // how.block_size)
        zeros = zero_points.reshape(grid).astype(stored.dtype) if how.has_zero_points else None
        return block_layout(stored.reshape(shape), scales.reshape(grid), zeros, how.storage)
    moved = stored.reshape((shape[axis], *shape[:axis], *shape[axis + 1 :]))
    planes = {"d": scales.reshape(spread), "qs": np.ascontiguousarray(np.moveaxis(moved, 0, axis))}
    if zero_points.any():
        planes["m"] = zero_points.reshape(spread).astype(stored.dtype)
    return TensorScaledLayout(shape, planes)


def block_layout(
    integers: Array, scales: Array, zero_points: Array | None, storage: StorageType
) -> QuantizedLayout:
    """Return the layout of blocks along the last axis, packed where bytes hold whole elements.

    Args:
        integers: storage values ``[..., K]`` of the type's dtype.
        scales: ``[..., K / B]``, of a floating-point type.
        zero_points: integers like `scales`, or None for symmetric quantization.
    """
    shape, grid = integers.shape, scales.shape
    size = shape[-1] // grid[-1]
    if zero_points is not None:
        block = [1] * (len(shape) - 1) + [size]
        return BlockAffineLayout.of(integers, scales, zero_points, block, storage)
    blocks, scales = integers.reshape((*grid, size)), scales[..., None]
    if storage.width == 4 and size % 2 == 0:
        packed = pack_bits(blocks.view(np.uint8) & 15, 4)
        return BlockScaledI4Layout(shape, {"d": scales, "qs": packed}, {"signed": True})
    if storage.width in (2, 3, 5, 6) and size % 8 == 0:
        planes = BlockScaledPackedLayout.pack(blocks, storage.width, signed=True)
        few = {"bits": storage.width, "signed": True}
        return BlockScaledPackedLayout(shape, {"d": scales, **planes}, few)
    return BlockScaledLayout(shape, {"d": scales, "qs": blocks})


def _search(groups: Array, how: WeightQuantization) -> tuple[Array, Array]:
    """Return a scale, of the type in which it is stored, and a zero point for each row."""
    # In f64: the range of f32 values may be twice what f32 holds.
    low = np.minimum(groups.min(axis=1, initial=0), 0).astype(np.float64)
    high = np.maximum(groups.max(axis=1, initial=0), 0).astype(np.float64)
    scales, zero_points = _scales_of_range(low, high, how.storage)
    greatest = float(scales[high > low].max(initial=0))
    is_half = how.is_fine and _LEAST_HALF_SCALE <= greatest <= _GREATEST_HALF_SCALE
    scale_type = np.float16 if is_half else np.float32
    if how.power is None:
        return as_scales(scales, scale_type).astype(scale_type), zero_points
    # Powers of f32 errors must be in its range.
    _, exponent = (0, 0) if is_half else np.frexp(np.abs(groups).max(initial=0))
    kind: OffsetKind = "zero points" if how.has_zero_points else "symmetric"
    scales, offsets = search_scales(
        np.ldexp(groups, -exponent), groups.shape[1], how.storage, kind,
        power=how.power, scale_type=scale_type,
    )  # fmt: skip
    zero_points = np.rint(-offsets / scales).astype(np.int64)
    if is_half:
        return scales.astype(np.float16)[:, 0], zero_points[:, 0]
    scales = np.ldexp(scales.astype(np.float64), exponent)[:, 0].astype(np.float32)
    has_values = (high > low) & (scales > _LEAST_SCALE)
    zero_points = np.where(has_values, zero_points[:, 0], 0)
    greatest_integer = np.maximum(zero_points, how.storage.maximum - zero_points)
    scales = _with_finite_products(np.where(has_values, scales, np.float32(1)), greatest_integer)
    return scales, zero_points


def _scales_of_range(low: Array, high: Array, storage: StorageType) -> tuple[Array, Array]:
    """Scales and zero points that put ``low`` and ``high`` at the ends of the storage range.

    A scale is at most so great that each storage value stands for a finite number.
    """
    span = np.maximum(-low, high) if storage.signed else high - low
    scales = (span / storage.maximum).astype(np.float32)
    scales = np.where(scales > _LEAST_SCALE, scales, np.float32(1))
    if storage.signed:
        return _with_finite_products(scales, storage.maximum), np.zeros(scales.shape, np.int64)
    zero_points = np.clip(np.rint(-low / scales), 0, storage.maximum).astype(np.int64)
    greatest = np.maximum(zero_points, storage.maximum - zero_points)
    return _with_finite_products(scales, greatest), zero_points


def _with_finite_products(scales: Array, greatest: Array | int) -> Array:
    """Scales whose products with the greatest difference do not overflow."""
    limit = (np.finfo(np.float32).max / np.float64(greatest)).astype(np.float32)
    return np.minimum(scales, np.nextafter(limit, np.float32(0)))


def layer_error(tensor: QuantizedTensor, array: Array) -> LayerError:
    """Return the error of a quantized tensor against its float values."""
    values = np.asarray(array).astype(np.float32)
    difference = tensor.unpack().dequant().astype(np.float64) - values
    power = float(np.mean(np.square(values, dtype=np.float64)))
    noise = float(np.mean(difference * difference))
    return LayerError(
        tensor.name,
        tensor.shape,
        8 * tensor.size_in_bytes / values.size,
        math.sqrt(noise / power) if power else math.sqrt(noise),
        float(np.abs(difference).max()),
    )
