"""Importers of complex tensors: pairs of real ones, computed by a Fourier transform.

Data movement operators move both components. Arguments, results and constants are real.

Sources: LiteRT, ``rfft2d.cc``, ``complex_support.cc``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ....errors import UnsupportedError
from ....numerics.element_types import AnyArray
from ....numerics.fourier import fourier_transform, half_spectrum
from ..call import Call, importer
from ..data_movement import MOVED_INPUTS
from ..operand import ComplexValue, Operand
from .padding import pad_or_crop

_COMPLEX_TO_REAL = frozenset(("CAST", "COMPLEX_ABS", "IMAG", "REAL"))


def has_complex_operands(call: Call) -> bool:
    """Return True if an operator, other than those of complex tensors, has a complex operand."""
    return call.operator.name not in _COMPLEX_TO_REAL and any(
        operand is not None and isinstance(operand.value, ComplexValue) for operand in call.inputs
    )


def compute_by_component(call: Call, compute: Callable[[Call], list[AnyArray]]) -> list[AnyArray]:
    """Compute a data movement operator on the real and the imaginary components."""
    if call.operator.name not in MOVED_INPUTS:
        raise call.error("does not support complex operands", UnsupportedError)

    def component(operand: Operand | None, name: str) -> Operand | None:
        if operand is None or not isinstance(operand.value, ComplexValue):
            return operand
        return replace(operand, value=getattr(operand.value, name))

    real, imaginary = (
        compute(replace(call, inputs=[component(each, name) for each in call.inputs]))
        for name in ("real", "imaginary")
    )
    return [ComplexValue(*pair) for pair in zip(real, imaginary, strict=True)]


def _complex(call: Call) -> ComplexValue:
    value = call.input(0).value
    if not isinstance(value, ComplexValue):
        raise call.unsupported_type(call.input(0))
    return value


@importer("RFFT2D")
def rfft2d(call: Call) -> ComplexValue:
    """Import RFFT2D, over the last two axes, cut or zero-padded to the lengths in input 1."""
    operand, lengths = call.input(0), call.constant_list(1)
    if len(operand.shape) < 2 or len(lengths) != 2 or min(lengths) < 1:
        raise call.error(f"has the lengths {lengths} for {list(operand.shape)}")
    value, rank = operand.value.astype(np.float32), len(operand.shape)
    for axis, length in zip((rank - 2, rank - 1), lengths, strict=True):
        value = pad_or_crop(value, axis, 0, length - value.shape[axis], 0)
    real, imaginary = half_spectrum(value)
    if lengths[0] == 1:
        return ComplexValue(real, imaginary)
    order = (*range(rank - 2), rank - 1, rank - 2)
    spectrum = fourier_transform(real.transpose(*order), imaginary.transpose(*order))
    return ComplexValue(*(component.transpose(*order) for component in spectrum))


@importer("REAL", "IMAG")
def component(call: Call) -> AnyArray:
    """Import REAL and IMAG."""
    value = _complex(call)
    return value.real if call.operator.name == "REAL" else value.imaginary


@importer("COMPLEX_ABS")
def complex_abs(call: Call) -> AnyArray:
    """Import COMPLEX_ABS: ``sqrt(re**2 + im**2)``.

    It is computed relative to the greater component, whose square may overflow.
    """
    value = _complex(call)
    real, imaginary = np.abs(value.real), np.abs(value.imaginary)
    greater, lesser = np.maximum(real, imaginary), np.minimum(real, imaginary)
    one = np.float32(1)
    ratio = lesser / np.where(greater > 0, greater, one)
    return np.where(greater == np.float32(np.inf), greater, greater * np.sqrt(one + ratio * ratio))
