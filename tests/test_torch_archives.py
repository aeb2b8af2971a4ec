"""Layers of PyTorch from archives: ours, sharktank's and those of Brevitas."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from subquant import ops  # noqa: E402
from subquant.layouts import (  # noqa: E402
    DynamicScaledQuantizer,
)
from subquant.torch import nn  # noqa: E402
from subquant.weights.sources import open_weights  # noqa: E402
from subquant.weights.theta import Dataset, Theta  # noqa: E402
from test_torch_layers import (  # noqa: E402
    FLOAT_ERROR,
    compiled_result,
    error_of,
    normal,
    quantized,
    reals,
)


def test_tensors_of_an_archive_load(tmp_path: Path) -> None:
    theta = Theta(
        {
            "up.weight": quantized(normal(32, 256), bits=4).with_name("up.weight"),
            "up.q_input": DynamicScaledQuantizer(axis=0, name="up.q_input"),
        }
    )
    Dataset({}, theta).save(tmp_path / "x.irpa")
    loaded = Dataset.load(tmp_path / "x.irpa").theta("up")
    x = normal(2, 256)
    expected = ops.Linear(loaded)(x)
    assert error_of(nn.Linear(loaded)(torch.from_numpy(x)).numpy(), expected) < FLOAT_ERROR


SHARKTANK = ["block", "block_offset", "nibbles", "nibbles_offset", "super_block"]


@pytest.mark.parametrize("name", SHARKTANK)
def test_weights_of_sharktanks_archive_load(name: str, tmp_path: Path) -> None:
    packed = Path(__file__).parent / "sharktank" / "written.irpa.gz"
    (tmp_path / "x.irpa").write_bytes(gzip.decompress(packed.read_bytes()))
    weight = Dataset.load(tmp_path / "x.irpa").theta.tensor("layer.0", name)
    x = normal(3, weight.shape[1])
    module = nn.Linear(weight).eval()
    eager = module(torch.from_numpy(x)).numpy()
    assert error_of(eager, ops.linear(x, weight)) < FLOAT_ERROR
    assert error_of(compiled_result(module, torch.from_numpy(x))[0], eager) < FLOAT_ERROR


def brevitas_value(key: str, array: Any, dtype: str | None = None) -> dict[str, Any]:
    values = np.asarray(array)
    entry = {key: values.reshape(-1).tolist(), f"{key}_shape": list(values.shape)}
    return entry | ({} if dtype is None else {f"{key}_dtype": f"torch.{dtype}"})


@pytest.mark.parametrize("shape", [(16, 8), (16, 8, 3, 3)])
def test_layers_of_brevitas_compute_as_in_numpy(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Per-axis weights, input and output scales, and biases of i32, of ``quant_params.json``."""
    ones = (1,) * (len(shape) - 1)
    steps = np.linspace(0.01, 0.05, shape[0]).reshape(shape[0], *ones)
    layer = {
        **brevitas_value("weight_scale", steps),
        **brevitas_value("weight_zp", np.zeros(steps.shape), "int8"),
        **brevitas_value("input_scale", 0.0625),
        **brevitas_value("input_zp", 0.0, "int8"),
        **brevitas_value("output_scale", 0.5),
        **({} if ones[1:] else brevitas_value("smoothquant_mul", np.full(shape[1], 0.75))),
    }
    arrays = {"a.weight": normal(*shape), "a.bias": normal(shape[0], seed=1)}
    save_file(arrays, tmp_path / "params.safetensors")
    (tmp_path / "quant_params.json").write_text(json.dumps({"a": layer}))
    (tmp_path / "config.json").write_text("{}")
    theta = open_weights(tmp_path).theta("a")
    x = normal(2, *shape[1:], seed=2) if len(shape) == 2 else normal(1, 8, 6, 6, seed=2)
    layers = (ops.Linear, nn.Linear) if len(shape) == 2 else (ops.Conv2d, nn.Conv2d)
    expected, module = reals(layers[0](theta)(x)), layers[1](theta).eval()
    assert np.array_equal(module(torch.from_numpy(x)).numpy(), expected)
    assert np.array_equal(compiled_result(module, torch.from_numpy(x))[0], expected)
