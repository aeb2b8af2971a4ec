"""Quantization to GGML's blocks: equal to llama.cpp's, to the bit.

`GOLDEN` and `DIGESTS` were made by ``ggml_quantize_chunk`` of the llama.cpp in llama-cpp-python
0.3.36, compiled by GCC for x86-64 as ``scripts/bench`` does, from the inputs of `sample`. With
``GGML_LIBRARY=.../libggml-base.so`` the blocks of many kinds of weights are compared with those of
that library; ``python tests/test_ggml_quantization.py .../libggml-base.so`` prints both tables.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys

import gguf
import numpy as np
import pytest

from ggml_golden import DIGESTS, GOLDEN
from subquant.calibration.ggml_layers import ggml_layer, grid_of
from subquant.calibration.gptq import output_error
from subquant.calibration.moments import InputMoments
from subquant.errors import InputError
from subquant.layouts import GgmlTensor
from subquant.layouts.ggml import BLOCK_TYPES
from subquant.layouts.ggml_quantization import QUANTIZED_TYPES, quantize_blocks, type_for

TYPE_AND_WEIGHTING = [(name, weighted) for name in QUANTIZED_TYPES for weighted in (False, True)]
each_type = pytest.mark.parametrize(("name", "weighted"), TYPE_AND_WEIGHTING)


def noise(count: int, seed: int) -> np.ndarray:
    """Numbers from -0.5 to 0.5 by an integer hash, which no version of NumPy changes."""
    bits = (np.arange(count, dtype=np.uint64) + np.uint64(seed * 1000003)) & np.uint64(0xFFFFFFFF)
    for multiplier in (0x9E3779B1, 0x85EBCA77):
        bits = (bits * np.uint64(multiplier)) & np.uint64(0xFFFFFFFF)
        bits ^= bits >> np.uint64(15)
    return (bits >> np.uint64(8)).astype(np.float64) / 2**24 - 0.5


def sample(rows: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights with some outliers, and the mean squares of inputs."""
    values = sum(noise(rows * depth, seed) for seed in (1, 2, 3)) / 16
    values[::37] *= 4
    importance = (noise(depth, 4) + 0.5) ** 2 * 8
    return values.reshape((rows, depth)).astype(np.float32), importance.astype(np.float32)


def quantized(rows: int, depth: int, name: str, weighted: bool) -> bytes:
    weight, importance = sample(rows, depth)
    return quantize_blocks(weight, name, importance if weighted else None).raw.tobytes()


@each_type
def test_a_block_of_llama_cpp(name: str, weighted: bool) -> None:
    depth = BLOCK_TYPES[name].size
    assert quantized(1, depth, name, weighted).hex() == GOLDEN[name, weighted]


@each_type
def test_a_matrix_of_llama_cpp(name: str, weighted: bool) -> None:
    blocks = quantized(48, 512, name, weighted)
    assert hashlib.sha256(blocks).hexdigest() == DIGESTS[name, weighted]


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks_without_importance_are_those_of_gguf(name: str) -> None:
    weight = sample(16, 96)[0]
    expected = gguf.quantize(weight, gguf.GGMLQuantizationType[name])
    assert quantize_blocks(weight, name).raw.tobytes() == expected.tobytes()


@each_type
def test_values_are_those_that_gguf_dequantizes(name: str, weighted: bool) -> None:
    """The values are near the weights, and as near as the bits allow."""
    weight, importance = sample(8, 512)
    tensor = quantize_blocks(weight, name, importance if weighted else None)
    values = gguf.dequantize(tensor.raw, gguf.GGMLQuantizationType[name]).reshape(weight.shape)
    np.testing.assert_array_equal(tensor.unpack().dequant(), values)
    relative = np.linalg.norm(values - weight) / np.linalg.norm(weight)
    bits = int(name.removeprefix("I")[1])
    assert 0.1 / 2**bits < relative < 2.2 / 2**bits


@pytest.mark.parametrize("name", [name for name in QUANTIZED_TYPES if name != "Q8_0"])
def test_importance_lowers_the_weighted_error(name: str) -> None:
    weight, importance = sample(32, 512)
    errors = []
    for each in (None, importance):
        values = np.asarray(quantize_blocks(weight, name, each).unpack().dequant())
        errors.append(float(np.sum(importance * (values - weight) ** 2, dtype=np.float64)))
    assert errors[1] < 0.97 * errors[0]


def kinds_of_weights() -> dict[str, np.ndarray]:
    """Weights whose blocks are uncommon: of one sign, zeros, constant, tiny, great, on a grid."""
    rng = np.random.default_rng(0)
    shape = (24, 768)
    normal = rng.normal(0, 0.05, shape)
    zeros = normal.copy()
    zeros[:, :256] = 0
    zeros[::2, 300:340] = 0
    return {
        "normal": normal,
        "heavy tails": rng.standard_t(2, shape) * 0.02,
        "positive": np.abs(normal),
        "negative": -np.abs(normal) - 0.01,
        "far from zero": rng.normal(0.5, 0.01, shape),
        "integers": rng.integers(-8, 8, shape),
        "zeros": zeros,
        "constant": np.full(shape, -0.25) * rng.integers(0, 2, (shape[0], 1)),
        "tiny": normal * 1e-6,
        "great": normal * 1e4,
        "dequantized": np.round(normal * 600) * 2.0**-10,
    }


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    if "GGML_LIBRARY" not in os.environ:
        pytest.skip("GGML_LIBRARY names no libggml-base.so")
    return open_library(os.environ["GGML_LIBRARY"])


def open_library(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    floats = ctypes.POINTER(ctypes.c_float)
    sizes = [ctypes.c_int64] * 3
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int, floats, ctypes.c_void_p, *sizes, floats]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    return library


def by_library(
    library: ctypes.CDLL, weight: np.ndarray, name: str, importance: np.ndarray | None
) -> np.ndarray:
    floats = ctypes.POINTER(ctypes.c_float)
    weight = np.ascontiguousarray(weight, np.float32)
    kind = BLOCK_TYPES[name]
    output = np.zeros(weight.size // kind.size * kind.block.itemsize, np.uint8)
    written = library.ggml_quantize_chunk(
        int(gguf.GGMLQuantizationType[name]), weight.ctypes.data_as(floats), output.ctypes.data,
        0, *weight.shape, None if importance is None else importance.ctypes.data_as(floats),
    )  # fmt: skip
    assert written == output.nbytes
    return output


@pytest.mark.parametrize("name", QUANTIZED_TYPES)
def test_blocks_of_the_library(name: str, library: ctypes.CDLL) -> None:
    some = np.square(np.random.default_rng(1).normal(0, 2, 768)).astype(np.float32)
    with_zeros = some.copy()
    with_zeros[::3] = 0
    with_zeros[512:600] = 0
    for kind, weight in kinds_of_weights().items():
        for importance in (None, some, with_zeros):
            blocks = quantize_blocks(weight.astype(np.float32), name, importance).raw
            expected = by_library(library, weight, name, importance)
            np.testing.assert_array_equal(blocks, expected, kind)


def test_rows_that_are_no_whole_blocks() -> None:
    with pytest.raises(InputError, match="rows of 640 elements, expected a multiple of 256"):
        quantize_blocks(np.ones((2, 640), np.float32), "Q4_K")
    types = ["Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL", "Q8_0"]
    assert [type_for(name, 640) for name in types] == [
        "Q4_0", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "IQ4_NL", "Q8_0",
    ]  # fmt: skip
    assert [type_for(name, 512) for name in types] == types


@pytest.mark.parametrize("name", ["Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_gptq_keeps_scales_and_outputs(name: str) -> None:
    """GPTQ changes integers alone, and the outputs are nearer than those of nearest integers."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(0, 1, (2048, 64)) @ rng.normal(0, 1, (64, 512)) + rng.normal(0, 1, 512)
    inputs = (inputs + rng.normal(0, 1, inputs.shape)).astype(np.float32)
    weight = rng.normal(0, 0.05, (32, 512)).astype(np.float32)
    weight[:, :256] *= weight[:, :256] > 0  # some blocks have no minimum
    weight[3] = 0
    moments = inputs.T @ inputs
    importance = np.diag(moments) / np.float32(len(inputs))
    nearest = ggml_layer(weight, name, importance)
    tensor = ggml_layer(weight, name, importance, InputMoments(moments, len(inputs)))
    for field in {"d", "dmin", "scales"} & set(tensor.kind.block.names or ()):
        np.testing.assert_array_equal(blocks_of(tensor)[field], blocks_of(nearest)[field])
    errors = [
        output_error(weight, np.asarray(each.unpack().dequant()), moments)
        for each in (tensor, nearest)
    ]
    assert errors[0] < 0.7 * errors[1]
    assert np.isfinite(grid_of(tensor).scales).all()


def blocks_of(tensor: GgmlTensor) -> np.ndarray:
    return tensor.raw.view(tensor.kind.block)


if __name__ == "__main__":
    ggml = open_library(sys.argv[1])
    for rows, depth, table in ((1, 0, "GOLDEN"), (48, 512, "DIGESTS")):
        print(f"{table} = {{")
        for name, weighted in TYPE_AND_WEIGHTING:
            weight, importance = sample(rows, depth or BLOCK_TYPES[name].size)
            raw = by_library(ggml, weight, name, importance if weighted else None).tobytes()
            text = raw.hex() if rows == 1 else hashlib.sha256(raw).hexdigest()
            pieces = [text[start : start + 88] for start in range(0, len(text), 88)]
            print(f'    ("{name}", {weighted}): (')
            print("\n".join(f'        "{line}"' for line in pieces))
            print("    ),")
        print("}")
