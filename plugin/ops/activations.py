"""Rounding of a layer's input, as the checkpoint of the layer asks for.

Integers of 8 bits with one scale, or one for each token, are multiplied as integers
(`subquant.ops.linear`). Other inputs are rounded and stay f32::

    scale = max |x| / greatest                  greatest: 127.5, 7.5 (integers), 448, 6 (floats)
    scale = (max x - min x) / (2**b - 1), z = round(-2**(b - 1) - min x / scale)  with zero points
    x = (clamp(round(x / scale + z)) - z) * scale

with the maximum over a token, a tensor or a group, and 0 among its elements. NVFP4 multiplies the
scale of a group by the global scale, rounds it to an 8-bit float, and divides by the global scale.
MXFP4 takes the power of 2 below ``max |x|``, rounded to a mantissa of one bit, divided by 4; MXFP8
divides it by 256.

torchao multiplies by ``1 / scale``.

Source: compressed-tensors 0.20, ``quantization/utils/helpers.py``, ``mxfp_utils.py`` and
``lifecycle/forward_helpers.py``; torchao 0.18, ``quantization/quant_primitives.py``.
"""

from __future__ import annotations

import numpy as np

from ..errors import UsageError
from ..layouts import ActivationQuantization, TensorScaledLayout
from ..numerics.array_functions import bits_of
from ..numerics.element_types import F32, I32, AnyArray
from ..numerics.small_floats import SMALL_FLOATS, SmallFloat

_FLOATS = {"f8E4M3FN": "FLOAT8E4M3FN", "f4E2M1FN": "FLOAT4E2M1"}
_BITS = {"i8": 8, "i4": 4}
_GREATEST = {"i8": 127.5, "i4": 7.5, "f8E4M3FN": 448.0, "f4E2M1FN": 6.0}
_MX_EXPONENTS = {"f8E4M3FN": 8, "f4E2M1FN": 2}
"""Exponents of the greatest floats: MX divides the maximum of a group by 2 to them."""
_LEAST_SCALES = {None: 2.0**-23, "f8E4M3FN": 2.0**-3}
"""The scale in place of 0, by the type of scales: its machine epsilon."""
_ROUNDING_OF_GROUP = 1 << 21
"""Half of the last bit of a mantissa of one bit, as bits of f32."""


def quantize_activations(
    x: AnyArray, settings: ActivationQuantization
) -> TensorScaledLayout | AnyArray:
    """Round an f32 input ``[T, K]``.

    Returns:
        8-bit integers with one scale or ``T`` scales; for other types, f32 ``[T, K]``.

    All inputs stay floats where those of a great magnitude do (LLM.int8): which ones do depends on
    the other tokens of a batch.
    """
    if settings.outlier_threshold is not None:
        return x
    count, k = x.shape
    size = settings.group_size
    if size is not None:
        if k % size:
            raise UsageError(
                f"rows of {k} elements are rounded in groups of {size}, expected a divisor"
            )
        rounded = _rounded_floats(x.reshape((count, k // size, size)), settings)
        return rounded.reshape((count, k))
    if settings.type in _FLOATS:
        return _rounded_floats(x, settings)
    scale, zero_point = _integer_parameters(x, settings)
    scaled = x * (np.float32(1) / scale) if settings.uses_reciprocal else x / scale
    shifted = scaled if zero_point is None else scaled + zero_point
    planes = {"d": scale, "qs": _as_integer(shifted, settings).astype(np.int8)}
    if zero_point is not None:
        planes["m"] = zero_point.astype(np.int8)
    return TensorScaledLayout((count, k), planes)


def _axes(settings: ActivationQuantization, x: AnyArray) -> tuple[int, ...]:
    """The axes of elements that share a scale."""
    return tuple(range(x.ndim)) if settings.granularity == "tensor" else (x.ndim - 1,)


def _integer_parameters(
    x: AnyArray, settings: ActivationQuantization
) -> tuple[AnyArray, AnyArray | None]:
    """Return the scales, and the zero points unless they are 0, with the rank of ``x``."""
    if settings.scale is not None:
        ones = (1,) * x.ndim
        scale = np.full(ones, settings.scale, np.float32)
        return scale, None if settings.is_symmetric else np.full(
            ones, settings.zero_point, np.float32
        )
    axes = _axes(settings, x)
    if settings.is_symmetric:
        return _dynamic_scale(x, settings, axes), None
    zero, bits = np.float32(0), _BITS[settings.type]
    low = np.minimum(x.min(axis=axes, keepdims=True), zero)
    high = np.maximum(x.max(axis=axes, keepdims=True), zero)
    scale = (high - low) / np.float32(2**bits - 1)
    scale = np.where(scale == zero, np.float32(_LEAST_SCALES[None]), scale)
    least = np.float32(-(1 << (bits - 1)))
    shifted = np.minimum(np.maximum(least - low / scale, least), -least - np.float32(1))
    return scale, np.rint(shifted)


def _dynamic_scale(
    x: AnyArray, settings: ActivationQuantization, axes: tuple[int, ...]
) -> AnyArray:
    magnitude = np.abs(x).max(axis=axes, keepdims=True)
    scale = magnitude / np.float32(_GREATEST[settings.type])
    return np.where(scale == np.float32(0), np.float32(_LEAST_SCALES[None]), scale)


def _rounded_floats(x: AnyArray, settings: ActivationQuantization) -> AnyArray:
    """Round to small floats, or to integers in groups."""
    if settings.type in _BITS and not settings.is_symmetric:
        scale, zero_point = _integer_parameters(x, settings)
        return (_as_integer(x / scale + zero_point, settings) - zero_point) * scale
    scale = _float_scale(x, settings)
    scaled = x / scale
    if settings.type in _BITS:
        return _as_integer(scaled, settings) * scale
    greatest = np.float32(_GREATEST[settings.type])
    scaled = np.minimum(np.maximum(scaled, -greatest), greatest)
    return _as_small_float(scaled, _FLOATS[settings.type]) * scale


def _float_scale(x: AnyArray, settings: ActivationQuantization) -> AnyArray:
    if settings.scale is not None:
        return np.full((1,) * x.ndim, settings.scale, np.float32)
    axes = _axes(settings, x)
    if settings.scale_type == "f8E8M0FNU":
        magnitude = np.abs(x).max(axis=axes, keepdims=True)
        return _power_of_two(magnitude, _MX_EXPONENTS[settings.type])
    if settings.scale_type is None and settings.global_scale is None:
        return _dynamic_scale(x, settings, axes)
    magnitude = np.abs(x).max(axis=axes, keepdims=True)
    assert not isinstance(settings.global_scale, list)  # of a stack, which `project` refuses
    factor = np.float32(settings.global_scale or 1.0)
    scale = (magnitude / np.float32(_GREATEST[settings.type])) * factor
    if settings.scale_type is not None:
        scale = _as_small_float(scale, _FLOATS[settings.scale_type])
    least = np.float32(_LEAST_SCALES[settings.scale_type])
    return np.where(scale == np.float32(0), least, scale) / factor


def _power_of_two(magnitude: AnyArray, greatest: int) -> AnyArray:
    """Return the power of 2 of a group of MX, of floats up to an exponent."""
    exponent = (bits_of(magnitude, I32) + _ROUNDING_OF_GROUP) >> 23
    exponent = np.minimum(np.maximum(exponent - greatest, 1), 254)
    return bits_of(exponent << 23, F32)


def _as_integer(scaled: AnyArray, settings: ActivationQuantization) -> AnyArray:
    """Return the nearest integers of the type, as f32."""
    half = np.float32(1 << (_BITS[settings.type] - 1))
    return np.rint(np.minimum(np.maximum(scaled, -half), half - np.float32(1)))


def _as_small_float(reals: AnyArray, name: str) -> AnyArray:
    """The nearest small floats, as f32."""
    form = SMALL_FLOATS[name]
    assert isinstance(form, SmallFloat)
    return form.compute(form.encode(reals))
