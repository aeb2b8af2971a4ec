"""Quantization by calibration: GPTQ beside float64, the search of scales, whole tiny models."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from checkpoint_folders import FOLDERS
from checkpoints import numpy_logits
from command_line import fail, succeed
from gguf_models import SMALL, TinyModel
from subquant.calibration.gptq import damped, gptq, output_error, refit_scales
from subquant.calibration.language_model import quantize_language_model
from subquant.calibration.layer import Calibration
from subquant.calibration.moments import BlockMoments
from subquant.calibration.outputs import gguf_tensor
from subquant.calibration.worker_threads import WorkerThreads
from subquant.errors import UsageError
from subquant.formats.checkpoints.compressed_writer import packed_layer
from subquant.formats.checkpoints.layers import PackedTensor
from subquant.formats.safetensors import read_safetensors
from subquant.layouts import BlockAffineLayout, PlanarQuantizedTensor
from subquant.models.interface import empty_caches
from subquant.models.source import open_model
from subquant.models.transformer import embed, logits, run_blocks
from subquant.numerics.parameters import StorageType
from subquant.weights import Dataset, Theta
from subquant.weights.grids import CLIPPINGS, Grid, as_scales, fit_grid
from subquant.weights.quantizing import WeightQuantization
from subquant.weights.sources import open_weights


def problem(rows: int, depth: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A weight ``[rows, depth]``, and inputs ``[4 depth, depth]`` that depend on each other."""
    rng = np.random.default_rng(seed)
    few = rng.normal(0, 1, (4 * depth, depth // 8)) @ rng.normal(0, 1, (depth // 8, depth))
    inputs = few + rng.normal(0, 1, few.shape) * rng.uniform(0.1, 2, depth)
    return rng.normal(0, 0.1, (rows, depth)).astype(np.float32), inputs.astype(np.float32)


def moments_of(inputs: np.ndarray) -> np.ndarray:
    return inputs.T @ inputs


def gptq_by_elimination(weight: np.ndarray, moments: np.ndarray, grid: Grid) -> np.ndarray:
    """Optimal Brain Quantization in a fixed order, in float64: the inverse is updated explicitly.

    Source: "Optimal Brain Compression", equations 5 and 6 (the update of the weights that are left,
    and Gaussian elimination of the inverse).
    """
    left, inverse = weight.astype(np.float64), np.linalg.inv(moments.astype(np.float64))
    size = weight.shape[1] // grid.scales.shape[1]
    integers = np.zeros(weight.shape)
    for column in np.argsort(-np.diag(moments), kind="stable"):
        scale = grid.scales[:, column // size].astype(np.float64)
        offset = grid.offsets[:, column // size]
        rounded = np.clip(
            np.rint((left[:, column] - offset) / scale), grid.storage.minimum, grid.storage.maximum
        )
        integers[:, column] = rounded
        error = (left[:, column] - rounded * scale - offset) / inverse[column, column]
        left -= np.outer(error, inverse[column])
        inverse -= np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
        inverse[column, column] = 1  # is not used again
    return integers


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_a_weight_makes_up_for_errors_of_its_inputs(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ridge regression in float64 on the outputs of the float model, by chunks of tokens.

    The regression's data are the tokens, and a row for each input that keeps its weight.
    """
    monkeypatch.setattr("subquant.calibration.gptq.COMPENSATION", share)
    weight, inputs = problem(12, 64)
    of_floats = inputs + np.float32(0.3) * np.roll(inputs, 1, axis=1)
    moments = BlockMoments()
    with WorkerThreads(1) as threads:
        for rows in (slice(100), slice(100, None)):
            moments.add([{"layer": inputs[rows]}], threads, [{"layer": of_floats[rows]}])
    of_layer = moments.pop("layer")
    keeps = np.sqrt(np.diag(of_layer.damped - of_layer.matrix).astype(np.float64))
    data = np.concatenate([inputs, np.diag(keeps)]).astype(np.float64)
    outputs = np.concatenate([of_floats @ weight.T, np.diag(keeps) @ weight.T])
    regression = np.linalg.lstsq(data, outputs, rcond=None)[0].T
    expected = weight + share * (regression - weight)
    np.testing.assert_allclose(of_layer.compensated(weight), expected, atol=2e-4)
    assert np.abs(expected - weight).max() > 0.01


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(("bits", "depth"), [(2, 32), (3, 160), (4, 288)])
def test_gptq_equals_elimination_in_float64(signed: bool, bits: int, depth: int) -> None:
    """Panels of columns and float32 change an integer only at a tie, whose effects are few."""
    weight, inputs = problem(24, depth, bits)
    moments = damped(moments_of(inputs), len(inputs))
    grid = fit_grid(weight, 32, StorageType(bits, signed), np.diag(moments))
    integers = gptq(weight, moments, grid)
    expected = gptq_by_elimination(weight, moments, grid)
    equal_rows = (integers == expected).all(1)
    assert equal_rows.mean() >= 0.9
    errors = [output_error(weight, grid.dequantize(each), moments) for each in (integers, expected)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-2)


def test_gptq_keeps_outputs_better_than_rounding() -> None:
    """The outputs of the calibration inputs, and of held-out inputs of the same distribution."""
    weight, inputs = problem(64, 256)
    seen, held_out = moments_of(inputs[::2]), moments_of(inputs[1::2])
    grid = fit_grid(weight, 32, StorageType(4, False), np.diag(seen))
    values = grid.dequantize(gptq(weight, damped(seen, len(inputs) // 2), grid))
    rounded = grid.dequantize(grid.round(weight))
    for moments in (seen, held_out):
        errors = [output_error(weight, each, moments) for each in (values, rounded)]
        assert errors[0] < 0.8 * errors[1]


def test_output_error_is_that_of_the_outputs() -> None:
    weight, inputs = problem(8, 64)
    values = weight + np.random.default_rng(1).normal(0, 0.01, weight.shape).astype(np.float32)
    outputs, expected_outputs = (
        inputs @ values.T.astype(np.float64),
        inputs @ weight.T.astype(np.float64),
    )
    expected = np.linalg.norm(outputs - expected_outputs) / np.linalg.norm(expected_outputs)
    assert output_error(weight, values, moments_of(inputs)) == pytest.approx(expected, rel=1e-4)


def test_refitted_scales_are_the_least_squares_solution() -> None:
    """Each row's scales solve ``min ||X w - X (p * d)||`` by NumPy's solver of least squares."""
    weight, inputs = problem(6, 96)
    moments = moments_of(inputs)
    grid = fit_grid(weight, 32, StorageType(4, False))
    integers = grid.round(weight)
    refitted = refit_scales(weight, moments, grid, integers)
    centered = integers - np.repeat(grid.zero_points, 32, 1).astype(np.float64)
    for row in range(6):
        design = np.stack(
            [inputs[:, b : b + 32] @ centered[row, b : b + 32] for b in (0, 32, 64)], 1
        )
        scales = np.linalg.lstsq(design, inputs @ weight[row].astype(np.float64), rcond=None)[0]
        np.testing.assert_allclose(refitted.scales[row], scales, rtol=2e-3)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_grid_has_the_least_error_of_all_clippings(signed: bool, weighted: bool) -> None:
    weight, inputs = problem(5, 64)
    importance = np.diag(moments_of(inputs)) if weighted else np.ones(64, np.float32)
    storage = StorageType(4, signed)
    grid = fit_grid(weight, 32, storage, importance if weighted else None)
    error = ((grid.dequantize(grid.round(weight)) - weight) ** 2 * importance).astype(np.float64)
    for row in range(5):
        for block in range(2):
            columns = slice(32 * block, 32 * block + 32)
            w = weight[row, columns].astype(np.float64)
            low, high = min(w.min(), 0), max(w.max(), 0)
            least = np.inf
            for clipping in CLIPPINGS:
                span = (high - low) / 15 if not signed else max(w, key=abs) / -8
                d = float(as_scales(np.float32(span * clipping)))
                z = 0 if signed else np.clip(np.rint(-low / d), 0, 15)
                q = np.clip(np.rint(w / d) + z, storage.minimum, storage.maximum)
                tried = (((q - z) * d - w) ** 2 * importance[columns]).sum()
                least = min(least, float(tried))
            assert error[row, columns].sum() == pytest.approx(least, rel=1e-4)


def test_inputs_and_weights_that_are_zero() -> None:
    weight, inputs = problem(4, 64)
    weight[:, :32] = 0
    inputs[:, 40] = 0
    moments = moments_of(inputs)
    for signed in (True, False):
        grid = fit_grid(weight, 32, StorageType(4, signed), np.diag(moments))
        stable = damped(moments, len(inputs))
        integers = gptq(weight, stable, grid)
        grid = refit_scales(weight, stable, grid, integers)
        values = grid.dequantize(integers)
        assert np.isfinite(values).all()
        assert np.abs(values[:, :32]).max() == 0
        assert output_error(weight, values, moments) < 0.1


def test_blocks_that_do_not_divide_the_inputs() -> None:
    with pytest.raises(UsageError, match="has 40 inputs, which blocks of 32 do not divide"):
        fit_grid(np.ones((2, 40), np.float32), 32, StorageType(4, False))


# -- language models -------------------------------------------------------------------------------


def all_logits(path: Path, dataset: Dataset | None, tokens: np.ndarray) -> np.ndarray:
    source = open_model(path)
    theta = source.dataset.theta if dataset is None else dataset.theta
    configuration = source.configuration
    caches = empty_caches(configuration, len(tokens), "f32")
    x, _ = run_blocks(
        configuration, theta, embed(configuration, theta, tokens), np.int32(0), caches
    )
    return np.asarray(logits(configuration, theta, x))


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen2"])
def test_a_language_model(architecture: str, tmp_path: Path) -> None:
    """GPTQ's logits are nearer to the model's than rounding's; other tensors are not touched."""
    path = TinyModel(architecture, tied=architecture == "gemma3", **SMALL).write(
        tmp_path / "model.gguf"
    )
    source = open_model(path)
    rng = np.random.default_rng(0)
    vocabulary = source.configuration.vocabulary
    chunks = [rng.integers(0, vocabulary, 64).astype(np.int32) for _ in range(8)]
    held_out = rng.integers(0, vocabulary, 48).astype(np.int32)
    expected_outputs = all_logits(path, None, held_out)
    distances = {}
    for method in ("imatrix", "gptq"):
        dataset, errors = quantize_language_model(
            source,
            chunks,
            WeightQuantization(3, asymmetric=True),
            Calibration(method),  # type: ignore[arg-type]
        )
        names = [error.name for error in errors]
        assert len(names) == 14
        for name, tensor in dataset.theta.flatten().items():
            assert isinstance(tensor, PlanarQuantizedTensor) == (name in names)
        assert isinstance(dataset.theta, Theta)
        distances[method] = np.linalg.norm(all_logits(path, dataset, held_out) - expected_outputs)
        assert all(0 < (error.output_error or 0) < 0.5 for error in errors)
    assert distances["gptq"] < distances["imatrix"]


def test_threads_change_no_bit(tmp_path: Path) -> None:
    """Six chunks are two groups of chunks whose inputs are in memory together."""
    path = TinyModel(**SMALL).write(tmp_path / "model.gguf")
    rng = np.random.default_rng(0)
    chunks = [rng.integers(0, 64, 32).astype(np.int32) for _ in range(6)]
    results = []
    for threads in (1, 2, 3):
        dataset, errors = quantize_language_model(
            open_model(path), chunks, WeightQuantization(4), threads=threads
        )
        arrays = [tensor.arrays for tensor in dataset.theta.flatten().values()]
        results.append((errors, arrays))
    for errors, arrays in results[1:]:
        assert errors == results[0][0]
        np.testing.assert_equal(arrays, results[0][1])


# -- the command -----------------------------------------------------------------------------------


def test_the_command(tmp_path: Path) -> None:
    """The archive is a model, with the tokenizer of the file."""
    path = TinyModel(**SMALL).write(tmp_path / "model.gguf")
    text = tmp_path / "text.txt"
    text.write_text("the sea is blue and the sky is blue " * 40)
    output = tmp_path / "q.irpa"
    printed = succeed(
        "quantize", path, "--bits", "4", "--asymmetric", "--calibrate", text,
        "--calibration-tokens", "256", "-o", output, "--json",
    )  # fmt: skip
    errors = json.loads(printed.stdout)["tensors"]
    assert len(errors) == 14
    assert all(0 < error["output_error"] < 0.2 for error in errors)
    quantized, original = open_model(output), open_model(path)
    tokens = np.array(original.tokenizer().encode("the sea"), np.int32)
    assert list(tokens) == list(quantized.tokenizer().encode("the sea"))
    distance = all_logits(output, None, tokens) - all_logits(path, None, tokens)
    assert 0 < np.linalg.norm(distance) < 0.2 * np.linalg.norm(all_logits(path, None, tokens))


def test_errors_of_the_command(tmp_path: Path) -> None:
    path = TinyModel(**SMALL).write(tmp_path / "model.gguf")
    text = tmp_path / "text.txt"
    text.write_text("the sea")
    output = tmp_path / "q.irpa"
    short = fail(1, "quantize", path, "--calibrate", text, "-o", output)
    assert re.search(
        r"the calibration text has \d+ tokens, expected 4,096 at least; give a longer text, or few",
        short,
    )
    text.write_bytes(b"abc\xff")
    assert f"the text of '{text}' is not UTF-8: byte 3 is 0xff" in fail(
        1, "quantize", path, "--calibrate", text, "-o", output
    )
    text.write_text("the sea " * 400)
    few = ["--calibration-tokens", "128", "-o", output]
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    assert "the held-out text has 1 token, expected 64 at least" in fail(
        1, "quantize", path, "--calibrate", text, "--held-out-text", empty, *few
    )
    assert fail(2, "quantize", path, "--calibrate", text, "--threads", "0", *few) == (
        "error: the number of threads must be 1 or more, got 0\n"
    )
    folder = shutil.copytree(FOLDERS / "llama", tmp_path / "folder")
    (folder / "tokenizer.json").unlink()
    assert f"'{folder}' has no tokenizer.json; write one with" in fail(
        1, "quantize", folder, "--calibrate", text, *few
    )
    unknown = TinyModel(properties={"attention.unknown": 1}, **SMALL).write(tmp_path / "odd.gguf")
    assert "has the property 'llama.attention.unknown' = 1, which subquant does not use" in fail(
        1, "quantize", unknown, "--calibrate", text, *few
    )
    assert "use --granularity block" in fail(
        2, "quantize", path, "--granularity", "axis", "--calibrate", text, *few
    )
    assert "which blocks of 48 do not divide" in fail(
        2, "quantize", path, "--block-size", "48", "--calibrate", text, *few
    )
    packed = TinyModel(types=("Q8_0",), **SMALL).write(tmp_path / "packed.gguf")
    assert "is quantized already" in fail(2, "quantize", packed, "--calibrate", text, *few)
    assert not [*tmp_path.glob("q.irpa*")]
    succeed("quantize", packed, "--requantize", "--calibrate", text, *few)


# -- GGUF files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bits", "signed"),
    [
        ("Q4_0", 4, True),
        ("Q4_1", 4, False),
        ("Q5_0", 5, True),
        ("Q5_1", 5, False),
        ("Q8_0", 8, True),
    ],
)
def test_blocks_are_those_that_gguf_dequantizes(name: str, bits: int, signed: bool) -> None:
    """Values of PyPI's ``gguf`` are those of the grid, to the bit."""
    weight = problem(6, 96)[0]
    grid = fit_grid(
        weight, 32, StorageType(bits, signed), None, "symmetric" if signed else "offsets"
    )
    integers = grid.round(weight)
    tensor = gguf_tensor("w", integers, grid)
    assert tensor.ggml_type == name
    expected = gguf.dequantize(tensor.raw, gguf.GGMLQuantizationType[name]).reshape(weight.shape)
    np.testing.assert_array_equal(grid.dequantize(integers), expected)
    np.testing.assert_array_equal(tensor.unpack().dequant(), expected)
    assert np.abs(expected - weight).max() < 0.1


def test_the_file_keeps_what_the_source_says(tmp_path: Path) -> None:
    """``gguf`` reads the source's properties and the other tensors; the model generates."""
    path = TinyModel("qwen3", ("F16",), **SMALL).write(tmp_path / "model.gguf")
    text, output = tmp_path / "text.txt", tmp_path / "q.gguf"
    text.write_text("the sea is blue and the sky is blue " * 40)
    succeed("quantize", path, "--bits", "4", "--asymmetric", "--calibrate", text,
            "--calibration-tokens", "256", "-o", output)  # fmt: skip
    before, after = gguf.GGUFReader(path), gguf.GGUFReader(output)
    for key, field in before.fields.items():
        if not key.startswith("GGUF.") and key != "general.file_type":
            assert after.fields[key].contents() == field.contents()
    assert after.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q4_1
    assert [each.name for each in after.tensors] == [each.name for each in before.tensors]
    for old, new in zip(before.tensors, after.tensors, strict=True):
        is_layer = old.name.startswith("blk.") and len(old.shape) == 2
        assert new.tensor_type == (gguf.GGMLQuantizationType.Q4_1 if is_layer else old.tensor_type)
        if not is_layer:
            assert np.asarray(new.data).tobytes() == np.asarray(old.data).tobytes()
    tokens = np.arange(5, dtype=np.int32)
    expected = all_logits(path, None, tokens)
    distance = np.linalg.norm(all_logits(output, None, tokens) - expected)
    assert 0 < distance < 0.3 * np.linalg.norm(expected)


def test_types_that_no_gguf_file_has(tmp_path: Path) -> None:
    path = TinyModel(**SMALL).write(tmp_path / "model.gguf")
    text, output = tmp_path / "text.txt", tmp_path / "q.gguf"
    text.write_text("the sea is blue and the sky is blue " * 40)
    wrong = ["--calibrate", text, "--calibration-tokens", "256", "-o", output]
    assert "no type of 3 symmetric bits; expected 4 or 5 bits" in fail(
        2, "quantize", path, "--bits", "3", *wrong
    )
    assert "Q4_0 in a .gguf file have 32 elements, got --block-size 16" in fail(
        2, "quantize", path, "--bits", "4", "--block-size", "16", *wrong
    )
    assert not output.exists()


# -- checkpoints of compressed-tensors -------------------------------------------------------------


@pytest.mark.parametrize("folder", ["compressed_int4", "compressed_int4_asymmetric"])
def test_layers_are_packed_as_the_library_packs_them(folder: str) -> None:
    """The integers of layers that compressed-tensors wrote make its arrays again, to the bit."""
    file = read_safetensors(FOLDERS / folder / "model.safetensors")
    tensors = open_weights(FOLDERS / folder).theta.flatten()
    packed = [tensor for tensor in tensors.values() if isinstance(tensor, PackedTensor)]
    assert packed
    for tensor in packed:
        layout = tensor.unpack()
        assert isinstance(layout, BlockAffineLayout)
        integers, zeros = np.asarray(layout.stored()), layout.planes.get("z")
        written = packed_layer(tensor.name, integers, np.asarray(layout.planes["d"]), zeros, 4)
        layer = tensor.name.removesuffix(".weight")
        for name, array in written.packed.items():
            np.testing.assert_array_equal(array, file.tensors[f"{layer}.{name}"])


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_folder_becomes_a_checkpoint(symmetric: bool, tmp_path: Path) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "quantized"
    text.write_text("the sea is blue and the sky is blue " * 80)
    source = FOLDERS / "llama"
    options = [] if symmetric else ["--asymmetric"]
    printed = succeed("quantize", source, "--bits", "4", *options, "--calibrate", text,
                      "--calibration-tokens", "128", "-o", f"{output}/", "--json")  # fmt: skip
    names = {error["name"] for error in json.loads(printed.stdout)["tensors"]}
    before, after = open_weights(source).theta.flatten(), open_weights(output).theta.flatten()
    assert sorted(before) == sorted(after)
    for name, tensor in after.items():
        assert isinstance(tensor, PackedTensor) == (name in names)
        if name not in names:
            np.testing.assert_array_equal(tensor.stored_arrays[0], before[name].stored_arrays[0])
    tokens = np.arange(5, dtype=np.int32)
    logits_before, logits_after = (numpy_logits(each, list(tokens)) for each in (source, output))
    distance = np.linalg.norm(logits_after - logits_before)
    assert 0 < distance < 0.5 * np.linalg.norm(logits_before)
    assert "exists" in fail(2, "quantize", source, "--bits", "4", "--calibrate", text,
                            "--calibration-tokens", "128", "-o", f"{output}/")  # fmt: skip
