"""Fourier transforms as products with matrices.

Symptom: IREE refuses ``stablehlo.fft`` ("failed to legalize operation 'stablehlo.fft'") but for
some lengths that are powers of two.
Cause: IREE 3.13 lowers one-dimensional transforms of powers of two only.
Test: `test_transforms_are_still_refused` in tests/test_fourier_transforms.py.

Before::

    %y = stablehlo.fft %x, type = RFFT, length = [300]
        : (tensor<300xf32>) -> tensor<151xcomplex<f32>>

After: contractions of the real and the imaginary part, by factors of each length; see
`subquant.numerics.fourier`.

Source: StableHLO specification, ``fft``.
"""

from __future__ import annotations

import numpy as np

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...core._mlir import stablehlo as bindings
from ...emit.operation import with_element
from ...emit.traced_arrays import traced
from ...numerics.element_types import AnyArray
from ...numerics.fourier import fourier_transform, half_spectrum, inverse_of_half
from ..base import NoMatch, Replacement
from .loop_nests import is_static

Components = tuple[AnyArray, AnyArray]


def expand_fft(op: Operation) -> Replacement:
    """Rewrite a transform of static shape."""
    operand, result = op.operands[0], op.results[0]
    if not is_static(operand):
        return NoMatch("has a dynamic shape")
    lengths = list(ir.DenseI64ArrayAttr(op.attributes["fft_length"]))
    if 0 in (*operand.type.shape, *result.type.shape):
        return NoMatch("transforms nothing")
    kind = str(bindings.FftTypeAttr(op.attributes["fft_type"]).value)
    first = operand.type.rank - len(lengths)
    axes = range(first, operand.type.rank)
    if kind == "RFFT":
        components = half_spectrum(traced(operand))
        return _complex(_transformed(components, axes[:-1], -1), result)
    components = _components(operand)
    if kind == "IRFFT":
        components = _transformed(components, axes[:-1], 1)
        values: Value = inverse_of_half(*components, lengths[-1]).value
        return values
    return _complex(_transformed(components, axes, 1 if kind == "IFFT" else -1), result)


def _components(value: Value) -> Components:
    part = with_element(value.type, ir.ComplexType(value.type.element_type).element_type)
    real, imaginary = (
        traced(emit.value(f"stablehlo.{name}", [value], part)) for name in ("real", "imag")
    )
    return real, imaginary


def _complex(components: Components, result: Value) -> Value:
    real, imaginary = components
    return emit.value("stablehlo.complex", [real.value, imaginary.value], result.type)


def _transformed(components: Components, axes: range, sign: int) -> Components:
    """Transform along axes; inverse transforms are divided by their lengths."""
    for axis in axes:
        rank = components[0].ndim
        order = [*(each for each in range(rank) if each != axis), axis]
        back = np.argsort(order).tolist()
        real, imaginary = (each.transpose(*order) for each in components)
        transformed = fourier_transform(real, imaginary, sign)
        if sign > 0:
            factor = 1 / components[0].shape[axis]
            transformed = transformed[0] * factor, transformed[1] * factor
        components = transformed[0].transpose(*back), transformed[1].transpose(*back)
    return components
