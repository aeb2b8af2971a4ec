"""Orders of inputs (GPTQ's ``desc_act``): folded into the rows of layers before, and shared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from checkpoint_folders import FOLDERS
from checkpoints import expected, numpy_logits, relative_error
from packed_checkpoints import GPTQ, packed_layer, packed_tensor
from programs import LONG
from subquant.cli import main
from subquant.errors import InputError
from subquant.formats.irpa import Archive
from subquant.layouts import InferenceTensor, PrimitiveTensor, find_tensor
from subquant.layouts.reordered import ReorderedArray, ReorderedTensor, input_order, with_rows
from subquant.models import loading
from subquant.models.huggingface.input_orders import fold_input_orders
from subquant.models.source import open_model
from subquant.weights.sources import import_weights, open_weights

FOLDER = FOLDERS / "gptq_int4_desc_act"
NAMES = ["model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.gate_proj.weight"]
Array = np.ndarray[Any, Any]


def gptq_layer(folder: Path, seed: int, inputs: int, outputs: int, order: Array) -> Any:
    """A packed layer with groups of 8 inputs, its inputs in an order; and its reals [N, K]."""
    groups = np.empty(inputs, np.int32)
    groups[order] = np.arange(inputs, dtype=np.int32) // 8
    arrays, *_, reals = packed_layer("gptq", seed, inputs, outputs, 8, 0x11111111, groups)
    config = {**GPTQ, "group_size": 8, "desc_act": True}
    return packed_tensor(folder, arrays | {"l.g_idx": groups}, config), reals


def values(tensor: InferenceTensor) -> Array:
    if isinstance(tensor, PrimitiveTensor):
        return np.asarray(tensor.array, np.float64)
    return np.asarray(tensor.unpack().dequant(np.float32), np.float64)  # type: ignore[attr-defined]


def feed_forward(tensors: dict[str, InferenceTensor], x: Array, *, is_fused: bool) -> Array:
    """``down @ ((gate x) (up x))`` in float64, without an activation."""

    def project(name: str, x: Array) -> Array:
        result: Array = values(tensors[f"blk.0.{name}.weight"]) @ x
        bias = tensors.get(f"blk.0.{name}.bias")
        return result if bias is None else result + values(bias)

    both = project("ffn_up", x)
    gate, up = np.split(both, 2) if is_fused else (project("ffn_gate", x), both)
    return project("ffn_down", gate * up)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("is_float", [False, True])
def test_rows_are_in_the_order_of_the_inputs(
    is_fused: bool, is_float: bool, tmp_path: Path
) -> None:
    """Layers of GPTQ and of floats, with biases; one layer for gate and up, or two."""
    rng = np.random.default_rng(3)
    outputs = {"ffn_up": 64} if is_fused else {"ffn_up": 32, "ffn_gate": 32}
    tensors: dict[str, InferenceTensor] = {}
    for number, (name, count) in enumerate({**outputs, "ffn_down": 16}.items()):
        inputs = 32 if name == "ffn_down" else 16
        (tmp_path / name).mkdir()
        tensor, reals = gptq_layer(tmp_path / name, number, inputs, count, rng.permutation(inputs))
        if is_float and name != "ffn_down":
            tensor = PrimitiveTensor(reals.astype(np.float32), f"{name}.weight")
        tensor.name = f"{name}.weight"
        tensors[f"blk.0.{name}.weight"] = tensor
        bias = rng.standard_normal(count).astype(np.float32)
        tensors[f"blk.0.{name}.bias"] = PrimitiveTensor(bias, f"{name}.bias")
    folded = fold_input_orders(tensors)
    assert input_order(folded["blk.0.ffn_down.weight"]) is None
    assert "order" not in folded["blk.0.ffn_down.weight"].unpack().planes  # type: ignore[attr-defined]
    x = rng.standard_normal(16)
    down = values(folded["blk.0.ffn_down.weight"])
    assert not np.array_equal(down, values(tensors["blk.0.ffn_down.weight"]))
    expected_result = feed_forward(tensors, x, is_fused=is_fused)
    actual = feed_forward(folded, x, is_fused=is_fused)
    np.testing.assert_allclose(actual, expected_result, rtol=1e-12, atol=1e-9)


def test_layers_of_another_format_keep_the_order(tmp_path: Path) -> None:
    down, _ = gptq_layer(tmp_path, 0, 32, 16, np.random.default_rng(0).permutation(32))
    other = open_weights(FOLDERS / "bitsandbytes_nf4").theta.flatten()
    gate = next(each for name, each in other.items() if "gate_proj" in name)
    tensors = {"blk.0.ffn_down.weight": down, "blk.0.ffn_gate.weight": gate}
    assert fold_input_orders(tensors) == tensors


def test_a_program_gathers_no_inputs_of_down_proj(tmp_path: Path) -> None:
    """The orders of a block: one of q, k and v, one of o, one of gate and up, none of down."""
    weights = open_weights(FOLDER).theta.flatten()
    assert input_order(weights[NAMES[0]]) is not None
    module, archive = tmp_path / "model.mlir", tmp_path / "model.irpa"
    loading.emit(FOLDER, module, archive, context=32)
    text = module.read_text()
    orders = re.findall(r'parameter\.named<"model"::"model\.layers\.0\.([^"]+):order">', text)
    layers = sorted(re.findall(r"(\w+)_proj\.weight", " ".join(each[:35] for each in orders)))
    assert layers == ["gate", "o", "q"]
    assert "down_proj.weight[inputs as stored]" in text
    names = set(re.findall(r'parameter\.named<"model"::"([^"]+)">', text))
    assert names <= set(Archive(archive))
    result = CliRunner().invoke(main, ["opt", str(module), "--passes", "cse"])
    assert result.exit_code == 0, result.output
    reader = result.output[result.output.index("@read_1(") :].partition("func.func")[0]
    loads = re.findall(r'(%\w+) = "?util\.global\.load.*:order"', reader)
    gathers = [len(re.findall(rf"gather\"\(%\w+, {load}\)", reader)) for load in loads]
    assert gathers == [1] * 6  # q, k and v; o; gate and up, of two blocks


def test_names_of_reordered_tensors() -> None:
    weights = open_weights(FOLDER).theta.flatten()
    tensors = open_model(FOLDER).tensors
    for role in ("ffn_down", "ffn_gate", "ffn_up"):
        tensor = tensors[f"blk.0.{role}.weight"]
        assert isinstance(tensor, ReorderedTensor)
        loaded = find_tensor(tensor.name, weights)
        assert loaded.arrays.keys() == tensor.arrays.keys()
        for name, array in loaded.arrays.items():
            np.testing.assert_array_equal(array, tensor.arrays[name])
        assert tensor.outline().record == tensor.record
    with pytest.raises(InputError, match="has no order of inputs, which"):
        find_tensor("model.norm.weight[inputs as stored]", weights)
    bias = with_rows(PrimitiveTensor(np.arange(96), "bias"), weights[NAMES[0]])
    assert isinstance(bias, ReorderedArray)
    np.testing.assert_array_equal(bias.array, input_order(weights[NAMES[0]]))
    np.testing.assert_array_equal(bias.outline().array, np.arange(96))


@pytest.mark.skipif(not LONG, reason="6 s; layers are compared in each order")
def test_logits_of_a_folder_and_of_an_archive(tmp_path: Path) -> None:
    tokens, reference = expected("gptq_int4_desc_act")
    archive = tmp_path / "model.irpa"
    import_weights(FOLDER, archive)
    for path in (FOLDER, archive):
        assert relative_error(numpy_logits(path, tokens), reference) < 3e-6
        if LONG or path == archive:
            model = loading.load(path, activations="float", kv_cache="f32", context=32)
            assert relative_error(model.logits(tokens), reference) < 5e-6
