"""DFT and STFT: discrete Fourier transforms along an axis, as products with matrices.

A complex tensor has the real and the imaginary part along its last axis. A transform is a fast one
by factors of its length (`subquant.numerics.fourier`).

Sources: ONNX, DFT 20, STFT 17.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....numerics.array_functions import take
from ....numerics.element_types import AnyArray
from ....numerics.fourier import fourier_transform, half_spectrum, inverse_of_half
from ..call import Call, Operand, importer


def _components(call: Call, value: AnyArray) -> tuple[AnyArray, AnyArray | None]:
    """Return the real and the imaginary part, f32 or f64; None for that of a real tensor."""
    if value.ndim < 2 or value.shape[-1] not in (1, 2):
        raise call.error(
            f"has a signal of shape {list(value.shape)}, expected 1 or 2 (complex) along the last "
            "axis"
        )
    if value.dtype != np.float64:
        value = value.astype(np.float32)
    return value[..., 0], value[..., 1] if value.shape[-1] == 2 else None


@importer("DFT")
def dft(call: Call) -> Operand:
    """DFT-20: the transform of a real or complex signal along an axis, padded or cropped."""
    value = call.array(0)
    is_inverse, is_onesided = (bool(call.attribute(n, 0)) for n in ("inverse", "onesided"))
    real, imaginary = _components(call, value)
    axis = -2
    if call.optional(2) is not None:
        axis = int(call.constant_scalar(2))
    axis = call.checked_axis(axis, value.ndim)
    if axis == value.ndim - 1:
        raise call.error("transforms the axis of the real and imaginary parts")
    length = value.shape[axis]
    if is_onesided and is_inverse:
        length = 2 * (length - 1)
    if is_onesided and (imaginary is not None) != is_inverse:
        raise call.error(
            f"is onesided, and its input is {'real' if imaginary is None else 'complex'}"
        )
    if call.optional(1) is not None:
        length = int(call.constant_scalar(1))
    if length < 1:
        raise call.error(f"has the length {length}")
    order = [*(a for a in range(real.ndim) if a != axis), axis]
    count = length // 2 + 1 if is_onesided and is_inverse else length
    real, imaginary = (
        None if each is None else _with_length(each.transpose(*order), count)
        for each in (real, imaginary)
    )
    components: Sequence[AnyArray]
    if is_onesided and is_inverse:
        components = (inverse_of_half(real, imaginary, length),)
    elif is_onesided:
        components = half_spectrum(real)
    else:
        components = fourier_transform(real, imaginary, 1 if is_inverse else -1)
        if is_inverse:
            components = [each * np.asarray(1 / length, each.dtype) for each in components]
    back = np.argsort(order).tolist()
    result = np.stack([each.transpose(*back) for each in components], axis=-1)
    return call.typed(result.astype(value.dtype))


def _with_length(value: AnyArray, length: int) -> AnyArray:
    """Cut or pad the last axis to a length, with zeros."""
    size = value.shape[-1]
    if size >= length:
        return value[..., :length]
    return np.pad(value, [*[(0, 0)] * (value.ndim - 1), (0, length - size)])


@importer("STFT")
def stft(call: Call) -> Operand:
    """STFT-17: the transforms of overlapping frames of a signal ``[batch, length, 1 or 2]``.

    ONNX Runtime takes a real signal ``[batch, length]``, too.
    """
    value = call.array(0)
    if value.ndim == 2:
        value = value[..., None]
    real, imaginary = _components(call, value)
    step = int(call.constant_scalar(1))
    is_onesided = bool(call.attribute("onesided", 1))
    window = None if call.optional(2) is None else call.array(2).astype(real.dtype)
    if window is not None and window.ndim != 1:
        raise call.error(f"has a window of shape {list(window.shape)}, expected one dimension")
    length = None if window is None else window.shape[0]
    if call.optional(3) is not None:
        frame_length = int(call.constant_scalar(3))
        if length not in (None, frame_length):
            raise call.error(f"has frames of {frame_length} elements and a window of {length}")
        length = frame_length
    if value.ndim != 3 or length is None or not 0 < length <= value.shape[1] or step < 1:
        raise call.error(
            f"has frames of {length} elements in a signal of shape {list(value.shape)}, in steps "
            f"of {step}"
        )
    if is_onesided and imaginary is not None:
        raise call.error("is onesided, and its signal is complex")
    count = (value.shape[1] - length) // step + 1
    sample_numbers = np.arange(count)[:, None] * step + np.arange(length)
    frames = [
        None if each is None
        else take(each, sample_numbers.reshape(-1).astype(np.int32), 1).reshape((-1, count, length))
        for each in (real, imaginary)
    ]  # fmt: skip
    if window is not None:
        frames = [None if each is None else each * window for each in frames]
    components = fourier_transform(frames[0], frames[1])
    bins = length // 2 + 1 if is_onesided else length
    result = np.stack([each[..., :bins] for each in components], axis=-1)
    return call.typed(result.astype(value.dtype))
