"""PyTorch's Fourier transforms of pairs, by transforms along the last axis.

``subquant::fft``, ``rfft`` and ``irfft`` are operators of real tensors, which
`transforms/torch/direct_operators.py` writes as ``stablehlo.fft``.

Source: ``aten/src/ATen/native/SpectralOps.cpp`` of PyTorch 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from .complex_tensors import ComplexPair, NoTranslation

Tensor: TypeAlias = torch.Tensor


def _fft(real: Tensor, imag: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
    transform = torch.fft.ifft if inverse else torch.fft.fft
    result = transform(torch.complex(real, imag))
    return result.real.contiguous(), result.imag.contiguous()


def _rfft(real: Tensor) -> tuple[Tensor, Tensor]:
    result = torch.fft.rfft(real)
    return result.real.contiguous(), result.imag.contiguous()


def _irfft(real: Tensor, imag: Tensor, length: int) -> Tensor:
    return torch.fft.irfft(torch.complex(real, imag), length)


def _define(name: str, function: Callable[..., Any], schema: str) -> Any:
    operator = torch.library.custom_op(
        f"subquant::{name}", function, mutates_args=(), schema=schema
    )
    operator.register_fake(function)
    return operator


_FFT = _define("fft", _fft, "(Tensor real, Tensor imag, bool inverse) -> (Tensor, Tensor)")
_RFFT = _define("rfft", _rfft, "(Tensor real) -> (Tensor, Tensor)")
_IRFFT = _define("irfft", _irfft, "(Tensor real, Tensor imag, int length) -> Tensor")


def _with_length(x: Tensor, dim: int, length: int) -> Tensor:
    """Cut or pad an axis to a length, with zeros."""
    size = x.shape[dim]
    if size >= length:
        return x if size == length else x.narrow(dim, 0, length)
    sides = [0, 0] * (x.dim() - 1 - dim % x.dim()) + [0, length - size]
    return torch.constant_pad_nd(x, sides)


def _factor(norm: str | None, length: int, *, is_inverse: bool) -> float:
    """The factor beside that of ``norm="backward"``."""
    if norm == "ortho":
        return math.sqrt(length) if is_inverse else 1 / math.sqrt(length)
    if norm == "forward":
        return float(length) if is_inverse else 1 / length
    return 1.0


def _along(
    x: Any,
    length: int | None,
    dim: int,
    norm: str | None,
    *,
    kind: str,
) -> Any:
    """Transform an axis: `kind` is ``fft``, ``ifft``, ``rfft`` or ``irfft``."""
    components = [x.real, x.imag] if isinstance(x, ComplexPair) else [x]
    size = components[0].shape[dim]
    is_inverse, is_half = kind.startswith("i"), kind == "irfft"
    result_length = length or (2 * (size - 1) if is_half else size)
    length_used = result_length // 2 + 1 if is_half else result_length
    components = [_with_length(each, dim, length_used).movedim(dim, -1) for each in components]
    if kind != "rfft" and len(components) == 1:
        components.append(torch.zeros_like(components[0]))
    if kind == "rfft":
        results = _RFFT(components[0])
    elif is_half:
        results = (_IRFFT(*components, result_length),)
    else:
        results = _FFT(*components, is_inverse)
    factor = _factor(norm, result_length, is_inverse=is_inverse)
    moved = [(each if factor == 1 else each * factor).movedim(-1, dim) for each in results]
    return moved[0] if is_half else ComplexPair(*moved)


def _of_axis(kind: str) -> Callable[..., Any]:
    def transformed(x: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
        return _along(x, n, dim, norm, kind=kind)

    return transformed


def _of_axes(kind: str, default: Sequence[int] | None) -> Callable[..., Any]:
    """Transform several axes: the last one as real, if the kind is."""

    def transformed(
        x: Any,
        s: Sequence[int] | None = None,
        dim: Sequence[int] | None = default,
        norm: str | None = None,
    ) -> Any:
        rank = (x.real if isinstance(x, ComplexPair) else x).dim()
        axes = list(dim) if dim is not None else list(range(rank))[-len(s) if s else 0 :]
        lengths = [None if n == -1 else n for n in s] if s is not None else [None] * len(axes)
        pairs = list(zip(axes, lengths, strict=True))
        *first, last = pairs
        complex_kind = kind.replace("r", "")
        if kind == "rfft":
            x = _along(x, last[1], last[0], norm, kind="rfft")
        for axis, length in first if "r" in kind else pairs:
            x = _along(x, length, axis, norm, kind=complex_kind)
        return _along(x, last[1], last[0], norm, kind=kind) if kind == "irfft" else x

    return transformed


def _window(window: Tensor | None, count: int, length: int, like: Tensor) -> Tensor:
    """A window of a count of elements in the middle of a frame."""
    values = torch.ones(count, dtype=like.dtype) if window is None else window
    before = (length - count) // 2
    return torch.constant_pad_nd(values, (before, length - count - before))


def _stft(
    signal: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """The transforms of overlapping frames of a real signal, ``[..., bins, frames]``."""
    if isinstance(signal, ComplexPair) or isinstance(window, ComplexPair) or align_to_window:
        raise NoTranslation
    hop = hop_length or n_fft // 4
    frames = signal.unfold(-1, n_fft, hop) * _window(window, win_length or n_fft, n_fft, signal)
    kind = "fft" if onesided is False else "rfft"
    spectrum = _along(frames, None, -1, "ortho" if normalized else None, kind=kind)
    components = [each.transpose(-1, -2) for each in (spectrum.real, spectrum.imag)]
    return ComplexPair(*components) if return_complex else torch.stack(components, -1)


def _overlapped(frames: Tensor, hop: int) -> Tensor:
    """Add frames ``[..., count, length]`` at distances of a hop: ``[..., total]``."""
    count, length = frames.shape[-2:]
    blocks = -(-length // hop)
    padded = torch.constant_pad_nd(frames, (0, blocks * hop - length))
    split = padded.unflatten(-1, (blocks, hop))
    total = torch.zeros((), dtype=frames.dtype)
    for block in range(blocks):
        shifts = (0, 0, block, blocks - 1 - block)
        total = total + torch.constant_pad_nd(split[..., block, :], shifts)
    return total.flatten(-2)[..., : (count - 1) * hop + length]


def _istft(
    spectrum: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal of the transforms of its frames; the windows are divided out."""
    if return_complex or onesided is False or not isinstance(spectrum, ComplexPair):
        raise NoTranslation
    hop = hop_length or n_fft // 4
    transposed = ComplexPair(*(each.transpose(-1, -2) for each in (spectrum.real, spectrum.imag)))
    norm = "ortho" if normalized else None
    frames = _along(transposed, n_fft, -1, norm, kind="irfft")
    weights = _window(window, win_length or n_fft, n_fft, frames)
    signal = _overlapped(frames * weights, hop)
    envelope = _overlapped((weights * weights).expand(frames.shape[-2], n_fft), hop)
    total = signal.shape[-1]
    start = n_fft // 2 if center else 0
    end = total - start if length is None else min(start + length, total)
    result = signal[..., start:end] / envelope[start:end]
    missing = 0 if length is None else start + length - end
    return torch.constant_pad_nd(result, (0, missing)) if missing else result


TRANSFORMS: dict[str, Callable[..., Any]] = {
    **{f"fft_{kind}": _of_axis(kind) for kind in ("fft", "ifft", "rfft", "irfft")},
    **{f"fft_{kind}2": _of_axes(kind, (-2, -1)) for kind in ("fft", "ifft", "rfft", "irfft")},
    **{f"fft_{kind}n": _of_axes(kind, None) for kind in ("fft", "ifft", "rfft", "irfft")},
    "istft": _istft,
    "stft": _stft,
}
"""Functions by the name of the operator."""
