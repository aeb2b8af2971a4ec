"""Fourier transforms, sums of products and determinants beside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_models import computed, end
from onnx_runtime_cases import Case, Cases, case

EQUATIONS = {
    "ij->ji": [(3, 4)],
    "ij->i": [(3, 4)],
    "ii->i": [(4, 4)],
    "ii": [(4, 4)],
    "iji->j": [(3, 4, 3)],
    "...ij->...ji": [(2, 3, 4)],
    "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)],
    "ij,jk": [(3, 4), (4, 5)],
    "i,j->ij": [(3,), (4,)],
    "...ij,...jk->...ik": [(2, 1, 3, 4), (1, 5, 4, 2)],
    "bhwc,hkc->bhwk": [(2, 3, 4, 5), (3, 6, 5)],
    "ij,ij->": [(3, 4), (3, 4)],
    "ij,jk,kl->il": [(3, 4), (4, 5), (5, 2)],
    "ab,cd,ac->bd": [(2, 3), (4, 5), (2, 4)],
}


def draw() -> dict[str, Case]:
    rng = np.random.default_rng(2)
    cases = {}
    for length in (16, 7, 30, 64):
        real = rng.normal(size=(2, length, 1)).astype(np.float32)
        both = rng.normal(size=(2, length, 2)).astype(np.float32)
        cases[f"dft {length}"] = case("DFT", [real])
        cases[f"dft one side {length}"] = case("DFT", [real], onesided=1)
        cases[f"dft inverse {length}"] = case("DFT", [both], inverse=1)
        cases[f"dft of opset 17 {length}"] = case("DFT", [real], opset=17, axis=1, onesided=1)
        for other in (8, 100):
            cases[f"dft {length} as {other}"] = case("DFT", [real, np.array(other)], [1])
    cases["dft of another axis"] = case(
        "DFT", [rng.normal(size=(8, 2, 3, 2)), None, np.array(0)], [2]
    )
    signal = rng.normal(size=(2, 40, 1)).astype(np.float32)
    window = np.hanning(16).astype(np.float32)
    for sides in (0, 1):
        cases[f"stft {sides}"] = case(
            "STFT", [signal, np.array(6), window], [1], opset=17, onesided=sides
        )
    cases["stft of frames"] = case(
        "STFT", [signal, np.array(5), None, np.array(12)], [1, 3], opset=17
    )
    for equation, shapes in EQUATIONS.items():
        inputs = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        cases[f"einsum {equation}"] = case("Einsum", inputs, opset=12, equation=equation)
    integers = [rng.integers(-9, 9, shape) for shape in ((3, 4), (4, 5))]
    cases["einsum of integers"] = case("Einsum", integers, opset=12, equation="ij,jk->ik")
    for size in (1, 2, 5):
        matrices = rng.normal(size=(3, size, size)).astype(np.float32)
        cases[f"det {size}"] = case("Det", [matrices])
    singular = np.array([[0, 1, 2], [0, 3, 4], [0, 5, 6]], np.float32)
    cases["det of a singular matrix"] = case("Det", [singular])
    cases["det with a zero pivot"] = case("Det", [np.array([[0, 2], [3, 1]], np.float32)])
    image = rng.normal(size=(5, 4, 3)).astype(np.float32)
    cases["crop and pad"] = case(
        "CenterCropPad", [image, np.array([2, 7])], [1], opset=18, axes=[0, 1]
    )
    return cases


CASES = Cases(draw, tolerance=2e-5, share=4)
test_numpy_computes_as_onnx_runtime, test_devices_compute_as_onnx_runtime = CASES.tests()


@pytest.mark.parametrize("count", [4, 5])
@pytest.mark.parametrize("length", [None, 8, 9])
def test_a_spectrum_of_one_side_becomes_a_real_signal(count: int, length: int | None) -> None:
    """ONNX Runtime refuses this form; NumPy has it as irfft."""
    spectrum = np.random.default_rng(0).normal(size=(2, count, 2)).astype(np.float32)
    inputs = [spectrum] if length is None else [spectrum, np.array(length)]
    each = case("DFT", inputs, [1], opset=20, inverse=1, onesided=1)
    size = length or 2 * (count - 1)
    each.model.graph.output[0].CopyFrom(end("y0", ("FLOAT", [2, size, 1])))
    (result,) = computed(each.model, None, spectrum)
    expected = np.fft.irfft(spectrum[..., 0] + 1j * spectrum[..., 1], size)
    np.testing.assert_allclose(result[..., 0], expected, atol=1e-6)
