"""Complex tensors: pairs of real ones, which a Fourier transform computes.

Operators that move elements move both parts. Arguments, results and constants are real.

Sources: LiteRT, ``rfft2d.cc``, ``complex_support.cc``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ....errors import UnsupportedError
from ....numerics.element_types import AnyArray
from ....numerics.fourier import fourier_transform
from ..call import Call, Complex, Operand, kernel
from ..data_movement import MOVERS

__all__ = ["by_parts", "has_complex_operands"]

_OF_COMPLEX = frozenset(("COMPLEX_ABS", "IMAG", "REAL"))


def has_complex_operands(call: Call) -> bool:
    """Return True if an operand that is moved, or computed with, is complex."""
    is_reader = call.operator.name in _OF_COMPLEX
    return not is_reader and any(
        operand is not None and isinstance(operand.value, Complex) for operand in call.inputs
    )


def by_parts(call: Call, function: Callable[[Call], list[AnyArray]]) -> list[AnyArray]:
    """Compute a mover of the real parts of its operands, and of the imaginary ones."""
    if call.operator.name not in MOVERS:
        raise call.error("of complex numbers is not lowered", UnsupportedError)
    real, imaginary = (function(_part(call, number)) for number in range(2))
    return [Complex(*pair) for pair in zip(real, imaginary, strict=True)]


def _part(call: Call, number: int) -> Call:
    def part(operand: Operand | None) -> Operand | None:
        if operand is None or not isinstance(operand.value, Complex):
            return operand
        return replace(operand, value=operand.value.parts[number])

    return replace(call, inputs=[part(operand) for operand in call.inputs])


def _complex(call: Call) -> Complex:
    value = call.input(0).value
    if not isinstance(value, Complex):
        raise call.error(f"of {call.input(0).tensor.type} is not lowered", UnsupportedError)
    return value


@kernel("RFFT2D")
def rfft2d(call: Call) -> Complex:
    """Along the last two axes, cut or zero-padded to input 1; half of the last one is kept."""
    operand, lengths = call.input(0), [int(n) for n in call.constant(1).reshape(-1)]
    if len(operand.shape) < 2 or len(lengths) != 2 or min(lengths) < 1:
        raise call.error(f"has the lengths {lengths} for {list(operand.shape)}")
    value, rank = operand.value.astype(np.float32), len(operand.shape)
    for axis, length in zip((rank - 2, rank - 1), lengths, strict=True):
        value = value[(slice(None),) * axis + (slice(0, length),)]
        widths = [(0, 0)] * rank
        widths[axis] = (0, length - value.shape[axis])
        value = np.pad(value, widths) if any(widths[axis]) else value
    half = (..., slice(0, lengths[1] // 2 + 1))
    real, imaginary = (part[half] for part in fourier_transform(value))
    if lengths[0] == 1:
        return Complex(real, imaginary)
    order = (*range(rank - 2), rank - 1, rank - 2)
    spectrum = fourier_transform(real.transpose(*order), imaginary.transpose(*order))
    return Complex(*(part.transpose(*order) for part in spectrum))


@kernel("REAL")
def real_part(call: Call) -> AnyArray:
    """The real part."""
    return _complex(call).real


@kernel("IMAG")
def imaginary_part(call: Call) -> AnyArray:
    """The imaginary part."""
    return _complex(call).imaginary


@kernel("COMPLEX_ABS")
def magnitude(call: Call) -> AnyArray:
    """``sqrt(re**2 + im**2)``, in units of the greater part, whose square need not be a float."""
    value = _complex(call)
    real, imaginary = np.abs(value.real), np.abs(value.imaginary)
    greater, lesser = np.maximum(real, imaginary), np.minimum(real, imaginary)
    one = np.float32(1)
    ratio = lesser / np.where(greater > 0, greater, one)
    return np.where(greater == np.float32(np.inf), greater, greater * np.sqrt(one + ratio * ratio))
