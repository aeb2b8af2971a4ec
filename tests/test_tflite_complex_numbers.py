"""Fourier transforms and complex numbers of TensorFlow Lite models, beside LiteRT and NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from devices import compile_for
from litert import LiteRt, compare
from subquant.compiler.compilation import compile_to_bytes
from subquant.errors import UnsupportedError
from subquant.importers.tflite import Interpreter
from subquant.importers.tflite.reading.model import read_tflite
from subquant.numerics.fourier import fourier_transform
from subquant.runtime import Device
from tflite_builder import Graph, f32


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("length", [1, 2, 7, 31, 32, 37, 48, 400, 512, 1022, 4096])
def test_the_transform_is_numpys(length: int, sign: int) -> None:
    real, imaginary = np.random.default_rng(length).normal(size=(2, 3, length)).astype(np.float32)
    for components in ((real, None), (real, imaginary)):
        whole = real if components[1] is None else real + 1j * imaginary
        expected = np.fft.fft(whole.astype(np.complex128), axis=-1)
        if sign == 1:
            expected = np.fft.ifft(whole.astype(np.complex128), axis=-1) * length
        result = fourier_transform(*components, sign)
        bound = 1e-6 * np.abs(expected).max()
        np.testing.assert_allclose(result[0], expected.real, rtol=0, atol=bound)
        np.testing.assert_allclose(result[1], expected.imag, rtol=0, atol=bound)


def spectrum(shape: tuple[int, ...], lengths: tuple[int, int]) -> bytes:
    """The parts and the magnitude of a transform, which is reshaped and cut in between."""
    graph = Graph()
    result = (*shape[:-2], lengths[0], lengths[1] // 2 + 1)
    flat = [int(np.prod(result[:-1])), result[-1]]
    whole, rows = (graph.tensor(each, "float32", type_name="COMPLEX64") for each in (result, flat))
    operands, _ = graph.apply("RFFT2D", [f32(*shape), list(lengths)], [whole], "Rfft2dOptions")
    graph.apply("RESHAPE", [whole, flat], [rows], "ReshapeOptions", newShape=flat)
    results = [graph.apply(name, [rows], [f32(*flat)])[1][0]
               for name in ("REAL", "IMAG", "COMPLEX_ABS")]  # fmt: skip
    for dtype in ("float32", "int32"):
        results += graph.apply("CAST", [rows], [graph.tensor(flat, dtype)], "CastOptions")[1]
    return graph.model(operands, results)


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [((3, 1, 8), (1, 8)), ((2, 3, 1, 400), (1, 512)), ((1, 700), (1, 512)), ((2, 5, 12), (8, 16)),
     ((4, 4), (4, 4)), ((2, 1, 2048), (1, 2048))],
)  # fmt: skip
def test_spectra_equal_those_of_litert(shape: tuple[int, ...], lengths: tuple[int, int]) -> None:
    assert compare(spectrum(shape, lengths), None, 2, tolerance=1e-6) > 0


@pytest.mark.long
def test_spectra_on_the_cpu(cpu: Device) -> None:
    for shape, lengths in (((2, 3, 1, 400), (1, 512)), ((2, 5, 12), (8, 16))):
        assert compare(spectrum(shape, lengths), cpu, 2, tolerance=1e-6) > 0


def test_magnitudes_whose_squares_are_no_floats() -> None:
    data = spectrum((1, 2), (1, 2))
    for scale in (1e30, 1e-30):
        rows = np.array([[3, 4]], np.float32) * np.float32(scale)
        result = Interpreter(read_tflite(data)).run(0, [rows])[2]
        np.testing.assert_allclose(result, LiteRt(data)([rows])[2], rtol=1e-6)


def test_complex_results_and_operators_are_refused() -> None:
    graph = Graph()
    whole, negated = (graph.tensor((1, 5), "float32", type_name="COMPLEX64") for _ in range(2))
    operands, _ = graph.apply("RFFT2D", [f32(1, 8), [1, 8]], [whole], "Rfft2dOptions")
    with pytest.raises(UnsupportedError, match="tensor 't0' is of type COMPLEX64"):
        compile_to_bytes(graph.model(operands, [whole]))
    graph.operator("NEG", [whole], [negated])
    with pytest.raises(UnsupportedError, match=r"\(NEG\) does not support complex"):
        compile_to_bytes(graph.model(operands, [negated]))
    graph = Graph()
    operands, cast = graph.apply("CAST", [f32(1, 5)],
                                 [graph.tensor((1, 5), "float32", type_name="COMPLEX64")],
                                 "CastOptions")  # fmt: skip
    with pytest.raises(UnsupportedError, match="COMPLEX64"):
        compile_to_bytes(graph.model(operands, cast))


def test_spectra_are_the_same_with_exact_semantics(cpu: Device) -> None:

    data = spectrum((2, 5, 12), (8, 16))
    rows = np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32)
    result = compile_for(data, cpu, semantics="exact").main(rows)
    expected = np.fft.rfft2(rows.astype(np.float64), (8, 16)).reshape(16, 9)
    np.testing.assert_allclose(np.asarray(result[2]), np.abs(expected), atol=2e-5)
