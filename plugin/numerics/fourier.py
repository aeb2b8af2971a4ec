"""The discrete Fourier transform along the last axis, as products with matrices.

::

    X[k] = sum_j x[j] * w(j * k, n),    w(t, n) = exp(sign * 2 pi i * t / n)

A length ``n = p * q`` that has factors is transformed in two steps (Cooley and Tukey, 1965). With
``j = q * a + b`` and ``k = c + p * d``::

    X[c + p * d] = sum_b w(b * d, q) * w(b * c, n) * sum_a x[q * a + b] * w(a * c, p)

Angles are reduced as integers, and factors are computed in f64 and rounded to the type of the
input.
"""

from __future__ import annotations

import math

import numpy as np

from .convolutions import contract
from .element_types import AnyArray, Array, DType

_MAX_DIRECT_LENGTH = 32
"""Elements of a transform that is one product, at most: n**2 multiplications, sums of n errors."""


def fourier_transform(
    real: AnyArray, imaginary: AnyArray | None = None, sign: int = -1
) -> tuple[AnyArray, AnyArray]:
    """Return the real and the imaginary part of the transform along the last axis.

    Args:
        real: f32 or f64 ``[..., n]``.
        imaginary: the same; None for real input.
        sign: of the exponent: -1, or 1 for the inverse transform without its factor ``1 / n``.
    """
    length = real.shape[-1]
    # The greatest factor of a length that is not above its root.
    factor = next(n for n in range(math.isqrt(max(length, 1)), 0, -1) if length % n == 0)
    if length <= _MAX_DIRECT_LENGTH or factor == 1:
        return _product(real, imaginary, length, sign)
    first, second = length // factor, factor
    shape = real.shape
    split = (*shape[:-1], first, second)
    # The sum over a, along the last but one axis, which is moved to the end: [..., b, c].
    order = (*range(real.ndim - 1), real.ndim, real.ndim - 1)
    moved = [x if x is None else x.reshape(split).transpose(*order) for x in (real, imaginary)]
    inner = fourier_transform(moved[0], moved[1], sign)
    exponents = np.outer(np.arange(second), np.arange(first))
    cosine, sine = _rotations(exponents, length, sign, real.dtype)
    rotated = (inner[0] * cosine - inner[1] * sine, inner[0] * sine + inner[1] * cosine)
    # The sum over b: [..., c, d], of which d is the slower one in the result.
    outer = fourier_transform(rotated[0].transpose(*order), rotated[1].transpose(*order), sign)
    return outer[0].transpose(*order).reshape(shape), outer[1].transpose(*order).reshape(shape)


def half_spectrum(real: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return the first ``n // 2 + 1`` elements of the transform of real input ``[..., n]``."""
    half = (..., slice(0, real.shape[-1] // 2 + 1))
    transformed = fourier_transform(real)
    return transformed[0][half], transformed[1][half]


def inverse_of_half(real: AnyArray, imaginary: AnyArray, length: int) -> AnyArray:
    """Return the real input ``[..., length]`` of a half spectrum.

    The other half is the conjugate, in reverse.

    Args:
        real, imaginary: ``[..., length // 2 + 1]``.
    """
    end = length - length // 2
    real, imaginary = (
        np.concatenate([half, sign * np.flip(half[..., 1:end], half.ndim - 1)], axis=-1)
        for half, sign in ((real, 1.0), (imaginary, -1.0))
    )
    values: AnyArray = fourier_transform(real, imaginary, 1)[0] * (1 / length)
    return values


def _rotations(exponents: Array, length: int, sign: int, dtype: DType) -> tuple[Array, Array]:
    """The cosine and the sine of ``exponents / length`` of a circle."""
    angles = sign * 2 * np.pi * (exponents % length) / length
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def _product(
    real: AnyArray, imaginary: AnyArray | None, length: int, sign: int
) -> tuple[AnyArray, AnyArray]:
    indices = np.arange(length)
    cosine, sine = _rotations(np.outer(indices, indices), length, sign, real.dtype)

    def multiplied(rows: AnyArray, matrix: Array) -> AnyArray:
        return contract(rows, matrix, ((rows.ndim - 1,), (0,)), dtype=real.dtype)

    if imaginary is None:
        return multiplied(real, cosine), multiplied(real, sine)
    return (
        multiplied(real, cosine) - multiplied(imaginary, sine),
        multiplied(real, sine) + multiplied(imaginary, cosine),
    )
