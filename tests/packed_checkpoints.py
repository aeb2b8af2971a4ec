"""Checkpoints of Hugging Face, and layers that GPTQ and AWQ pack, for tests that read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from subquant.errors import SubquantError
from subquant.formats.checkpoints.layers import PackedTensor
from subquant.formats.huggingface import read_huggingface
from subquant.layouts import (
    BlockAffineLayout,
    InferenceTensor,
    PlanarQuantizedTensor,
    tensor_from_record,
)
from subquant.numerics.casts import dequantize
from subquant.numerics.element_types import Array

CONFIG = {"_name_or_path": "x", "_commit": 1, "hidden_size": 64, "rope": {"theta": 1e6}}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def checkpoint(
    folder: Path, arrays: dict[str, Array], config: Any = None, name: str = "model.safetensors"
) -> Path:
    save_file(arrays, folder / name)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    return folder


def read(path: Path) -> dict[str, InferenceTensor]:
    return read_huggingface(path)[1]


def refuse(path: Path, error: type[SubquantError], message: str, file: str = "") -> None:
    """A checkpoint is refused by an error, whose text begins with a file of its folder."""
    with pytest.raises(error, match=message) as caught:
        read_huggingface(path)
    assert not file or str(caught.value).startswith(str(path / file))


def quantized(folder: Path, arrays: dict[str, Array], config: Any) -> Path:
    """A checkpoint with a ``quantization_config``."""
    return checkpoint(folder, arrays, {"quantization_config": config})


# The packers here take one value at a time, in Python's integers.


def int32(word: int) -> int:
    return (word & 0xFFFFFFFF) - ((word & 0x80000000) << 1)


def _word(values: list[int], minus: int = 0) -> int:
    """8 values, the first in the low bits, less a word."""
    return int32(sum(value << 4 * i for i, value in enumerate(values)) - minus)


ORDERS = {"gptq": [*range(8)], "awq": [0, 2, 4, 6, 1, 3, 5, 7]}
CONFIGS = {"gptq": GPTQ, "awq": AWQ}


def packed_arrays(
    method: str, q: Array, z: Array, scales: Array, minus: int = 0
) -> dict[str, Array]:
    """Arrays of a layer of values [K, N], zero points and scales [G, N]."""
    order = ORDERS[method]

    def columns(values: Array, minus: int = 0) -> Array:
        words = [
            [_word([int(row[c + i]) for i in order], minus) for c in range(0, len(row), 8)]
            for row in values
        ]
        return np.array(words, np.int32)

    packed = columns(q) if method == "awq" else np.ascontiguousarray(columns(q.T).T)
    return {"l.qweight": packed, "l.qzeros": columns(z, minus), "l.scales": scales}


def packed_layer(
    method: str, seed: int | list[int], inputs: int, outputs: int, size: int, minus: int = 0,
    groups: Array | None = None, dtype: Any = np.float16,
) -> tuple[dict[str, Array], Array, Array, Array]:  # fmt: skip
    """Arrays of a layer, its values [K, N], zero points [G, N] and reals [N, K] in float64."""
    rng, count = np.random.default_rng(seed), -(-inputs // size)
    q = rng.integers(0, 16, (inputs, outputs))
    q[: min(16, inputs), 0] = np.arange(16)[: min(16, inputs)]
    z = rng.integers(0, 16, (count, outputs))
    z[0, :8] = rng.permutation(8) * 2 + rng.integers(0, 2)
    scales = rng.uniform(-2, 2, (count, outputs)).astype(dtype)
    arrays = packed_arrays(method, q, z, scales, minus)
    group_of = np.arange(inputs) // size if groups is None else groups
    return arrays, q, z, ((q - z[group_of]) * scales[group_of].astype(np.float64)).T


def packed_tensor(folder: Path, arrays: dict[str, Array], config: Any) -> PackedTensor:
    tensor = read(quantized(folder, arrays, config))["l.weight"]
    assert isinstance(tensor, PackedTensor)
    return tensor


def check_weight(
    tensor: InferenceTensor, q: Array, z: Array, reals: Array, block: list[int]
) -> None:
    assert isinstance(tensor, PackedTensor)
    planar = tensor.to_planar()
    assert isinstance(planar, PlanarQuantizedTensor)
    assert isinstance(planar.layout, BlockAffineLayout)
    assert planar.layout.metadata == {"block_shape": block, "storage": "u4", "packed": True}
    assert planar.layout.planes["qs"].nbytes == reals.size // 2
    assert planar.shape == tensor.shape == reals.shape
    planes = planar.layout.planes
    np.testing.assert_array_equal(planar.layout.stored(), q.T)
    np.testing.assert_array_equal(planes["z"], z.T)
    # 4 bits and a scale of at most 24 make an exact product in float32.
    np.testing.assert_array_equal(planar.layout.dequant().astype(np.float64), reals)
    np.testing.assert_array_equal(planar.layout.dequant(np.float64), reals)
    # As MLIR's type: computed in the type of the scales.
    parameters = planar.layout.parameters()
    expressed = parameters.expressed.dtype
    np.testing.assert_array_equal(
        dequantize(planar.layout.stored(), parameters), reals.astype(np.float32).astype(expressed)
    )
    repeated = tensor_from_record(tensor.name, tensor.record, tensor.arrays)
    np.testing.assert_array_equal(repeated.to_planar().layout.dequant(), planar.layout.dequant())  # type: ignore[attr-defined]
