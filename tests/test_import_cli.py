"""``subquant import``, and ``subquant inspect`` of weights: every format, and every way to fail."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from click.testing import Result
from safetensors.numpy import save_file

from command_line import call, fail, succeed
from gguf_models import write_file
from subquant.errors import InputError, UsageError
from subquant.formats.gguf import read_gguf
from subquant.formats.irpa_writer import create_archive
from subquant.formats.kinds import weights_format
from subquant.layouts import (
    BlockScaledLayout,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedTensor,
    StaticScaledQuantizer,
)
from subquant.layouts.lookup import codebook
from subquant.weights import Dataset, Theta
from subquant.weights.inspection import describe, property_lines
from subquant.weights.sources import import_weights, open_weights

_rng = np.random.default_rng(5)
FLOATS = _rng.standard_normal((4, 64)).astype(np.float32)


def gguf_file(folder: Path) -> Path:
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_array("tokenizer.ggml.tokens", [f"t{n}" for n in range(20)])
    writer.add_tensor("norm", FLOATS[0])
    for name in ("Q4_0", "Q8_0"):
        kind = gguf.GGMLQuantizationType[name]
        data = gguf.quants.quantize(FLOATS, kind)
        writer.add_tensor(f"blk.0.{name}", data, raw_dtype=kind)
    write_file(writer)
    return path


def irpa_file(folder: Path) -> Path:
    qs = np.arange(256).reshape(4, 2, 32).astype(np.int8)
    layout = BlockScaledLayout((4, 64), {"d": np.ones((4, 2, 1), np.float16), "qs": qs})
    tensors = [
        PlanarQuantizedTensor(layout, "blk.0.w"),
        PrimitiveTensor(np.ones(5, ml_dtypes.bfloat16), "norm"),
        PrimitiveTensor(np.zeros((0, 4), np.int8), "empty"),
        StaticScaledQuantizer(np.float32(2), name="q_input"),
    ]
    Dataset({"hparams": {"n": 2}, "long": list(range(9))}, Theta(tensors)).save(folder / "x.irpa")
    return folder / "x.irpa"


def checkpoint(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    save_file({"layer.weight": FLOATS, "layer.bias": FLOATS[0, :4]}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"_name": "x", "hidden_size": 64} | config))
    return folder


def brevitas_checkpoint(folder: Path) -> Path:
    checkpoint(folder)
    (folder / "model.safetensors").rename(folder / "params.safetensors")
    layer = {"weight_scale": [0.5], "weight_scale_shape": [], "input_scale": [0.25],
             "input_scale_shape": []}  # fmt: skip
    (folder / "quant_params.json").write_text(json.dumps({"layer": layer}))
    return folder


# -- import ---------------------------------------------------------------------------------------


def imported(source: Path) -> tuple[Result, Dataset]:
    """The output of an import, and the archive."""
    out = source.parent / "out.irpa"
    result = succeed("import", source, "-o", out)
    return result, Dataset.load(out)


def test_gguf_becomes_planes(tmp_path: Path) -> None:
    result, dataset = imported(gguf_file(tmp_path))
    assert result.stdout == ""
    assert re.search(r"1 BlockScaledI4Layout +144 bytes +4\.50 bits an element", result.stderr)
    assert re.search(r"wrote .*out\.irpa \(3 tensors, [\d,]+ bytes\)", result.stderr)
    properties, tensors = read_gguf(tmp_path / "model.gguf")
    assert dataset.properties == properties
    assert list(dataset.theta.flatten()) == list(tensors)
    for name in ("Q4_0", "Q8_0"):
        kind = gguf.GGMLQuantizationType[name]
        expected = gguf.quants.dequantize(gguf.quants.quantize(FLOATS, kind), kind)
        tensor = dataset.theta.tensor("blk", 0, name)
        assert isinstance(tensor, PlanarQuantizedTensor)
        np.testing.assert_array_equal(tensor.layout.dequant(), expected, strict=True)


def test_codebooks_are_of_the_package_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, files that need none are imported; others are described, and refused."""
    monkeypatch.setitem(sys.modules, "gguf", None)
    codebook.cache_clear()
    for name in ("NVFP4", "TQ1_0", "TQ2_0", "IQ1_M", "IQ2_XS", "IQ3_S"):
        path, out = tmp_path / f"{name}.gguf", tmp_path / f"{name}.irpa"
        writer = gguf.GGUFWriter(path, "llama")
        raw = np.zeros((2, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]), np.uint8)
        writer.add_tensor("w", raw, raw_dtype=gguf.GGMLQuantizationType[name])
        write_file(writer)
        assert name in call("inspect", path).stdout
        if not name.startswith("IQ"):
            succeed("import", path, "-o", out)
            continue
        assert re.search(
            f"error: a tensor of the GGML type {name} needs the package 'gguf', which cannot "
            r'be imported \(.*\); run: pip install "subquant\[gguf\]"\n',
            fail(1, "import", path, "-o", out),
        )
        assert not out.exists()


def test_irpa_is_written_again(tmp_path: Path) -> None:
    source = irpa_file(tmp_path)
    imported(source)
    assert (tmp_path / "out.irpa").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("source", ["", "model.safetensors"])
def test_a_checkpoint_is_imported(source: str, tmp_path: Path) -> None:
    _, dataset = imported(checkpoint(tmp_path / "model") / source)
    assert dataset.properties == {"meta": {"_name": "x"}, "hparams": {"hidden_size": 64}}
    weight = dataset.theta.tensor("layer.weight")
    assert isinstance(weight, PrimitiveTensor)
    np.testing.assert_array_equal(weight.array, FLOATS, strict=True)


def test_a_brevitas_checkpoint_is_imported(tmp_path: Path) -> None:
    layer = imported(brevitas_checkpoint(tmp_path / "model"))[1].theta("layer")
    assert isinstance(layer.tensor("weight"), PlanarQuantizedTensor)
    assert isinstance(layer.tensor("q_input"), StaticScaledQuantizer)


def test_the_default_output_has_the_name_of_the_source(in_temporary_folder: Path) -> None:
    gguf_file(in_temporary_folder)
    checkpoint(in_temporary_folder / "checkpoint-1.5b")
    (in_temporary_folder / "link.gguf").symlink_to("model.gguf")
    for source in (("model.gguf",), ("checkpoint-1.5b/",), ("link.gguf",),
                   ("checkpoint-1.5b/model.safetensors", "-o", "a.irpa")):  # fmt: skip
        succeed("import", *source)
    names = {path.name for path in in_temporary_folder.glob("*.irpa")}
    assert names == {"model.irpa", "checkpoint-1.5b.irpa", "a.irpa", "link.irpa"}


def test_the_summary_as_json(tmp_path: Path) -> None:
    result = call("import", irpa_file(tmp_path), "-o", tmp_path / "out.irpa", "--json")
    report = json.loads(result.stdout)
    assert report["bytes"] == (tmp_path / "out.irpa").stat().st_size
    assert report["kinds"] == {
        "BlockScaledLayout": {"tensors": 1, "elements": 256, "bytes": 272},
        "bfloat16": {"tensors": 1, "elements": 5, "bytes": 10},
        "int8": {"tensors": 1, "elements": 0, "bytes": 0},
        "StaticScaledQuantizer": {"tensors": 1, "elements": 1, "bytes": 8},
    }


def test_progress_names_each_tensor(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    import_weights(
        gguf_file(tmp_path), tmp_path / "out.irpa", on_tensor=lambda *step: seen.append(step)
    )
    assert seen == [(0, 3, "norm"), (1, 3, "blk.0.Q4_0"), (2, 3, "blk.0.Q8_0")]


def test_the_kind_is_found_by_content_then_by_name(tmp_path: Path) -> None:
    gguf_file(tmp_path).rename(tmp_path / "no-suffix")
    assert weights_format(tmp_path / "no-suffix") == "gguf"
    assert weights_format(irpa_file(tmp_path)) == "irpa"
    (tmp_path / "empty.GGUF").write_bytes(b"")
    assert weights_format(tmp_path / "empty.GGUF") == "gguf"
    assert weights_format(tmp_path) == "huggingface"
    assert weights_format(tmp_path / "m.safetensors.index.json") == "huggingface"
    (tmp_path / "x.mlir").write_text("module {}")
    assert weights_format(tmp_path / "x.mlir") is None


# -- ways to fail ---------------------------------------------------------------------------------


def cut(path: Path, by: int = 1) -> Path:
    path.write_bytes(path.read_bytes()[:-by])
    return path


SOURCES: dict[str, Any] = {
    "irpa": lambda folder: cut(irpa_file(folder), 4097),
    "gguf": lambda folder: cut(gguf_file(folder), 200),
    "safetensors": lambda folder: cut(checkpoint(folder / "m") / "model.safetensors"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_truncated_sources(kind: str, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path)
    before = {p.name for p in tmp_path.iterdir()}
    for command in (("import", source, "-o", tmp_path / "out.irpa"), ("inspect", source)):
        assert fail(1, *command).startswith(f"{source}: error: ")
    assert {p.name for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("none.irpa", "cannot read '.*none.irpa': No such file or directory"),
        ("none.gguf", "cannot read '.*none.gguf': No such file or directory"),
        ("none.safetensors", "cannot read '.*none.safetensors': No such file"),
        ("none", "cannot read '.*none': No such file or directory"),
        ("README", "'.*README' holds no weights; expected .gguf, .safetensors, .irpa, or a folder"),
        ("folder", "'.*folder' holds no weights, expected model.safetensors or"),
    ],
)
def test_sources_that_are_none(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "README").write_text("no weights")
    (tmp_path / "folder").mkdir()
    assert re.search(message, fail(1, "import", tmp_path / source, "-o", tmp_path / "out.irpa"))
    assert not (tmp_path / "out.irpa").exists()


def test_outputs_that_are_none(tmp_path: Path) -> None:
    source = irpa_file(tmp_path)
    (tmp_path / "link.irpa").symlink_to(source)
    for output, status, message in [
        ("out.bin", 2, "the output .* must end in .irpa"),
        ("x.irpa", 2, "is the input; give another with -o"),
        ("link.irpa", 2, "is the input; give another with -o"),
        ("none/out.irpa", 1, "cannot write .*No such file or directory"),
    ]:
        assert re.search(message, fail(status, "import", source, "-o", tmp_path / output))
    fail(2, "import")


@pytest.mark.parametrize("levels", [101, 500, 100_000])
def test_deep_configurations(levels: int, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model")
    (folder / "config.json").write_text('{"a": ' + "[" * levels + "]" * levels + "}")
    for command in (("import", folder, "-o", tmp_path / "out.irpa"), ("inspect", folder, "--json")):
        assert "nested too deeply" in fail(1, *command)
    assert not (tmp_path / "out.irpa").exists()


def test_a_failure_on_the_way_leaves_no_file(tmp_path: Path) -> None:
    """Tensors that are valid each by itself, and a name that is taken."""
    with create_archive(tmp_path / "x.irpa") as archive:
        archive.add_tensor("a", np.ones(3))
        archive.add_blob("__SHARK_DATASET__", b"{}")
        names = ("b", "c", "__SHARK_DATASET__")
        records = {n: {"type_name": "PrimitiveTensor", "raw_tensors": {"": "a"}} for n in names}
        archive.add_blob("__SHARK_INFERENCE_TENSORS__", json.dumps(records).encode())
    before = {p.name for p in tmp_path.iterdir()}
    error = fail(1, "import", tmp_path / "x.irpa", "-o", tmp_path / "out.irpa")
    assert "two entries of the archive would be named '__SHARK_DATASET__'" in error
    assert {p.name for p in tmp_path.iterdir()} == before
    succeed("inspect", tmp_path / "x.irpa")


def test_from_python(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must end in \.irpa"):
        import_weights(gguf_file(tmp_path), tmp_path / "out")
    (tmp_path / "x.mlir").write_text("module {}")
    with pytest.raises(InputError, match="holds no weights"):
        open_weights(tmp_path / "x.mlir")


# -- inspect --------------------------------------------------------------------------------------


def test_inspect_shows_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    result = succeed("inspect", irpa_file(tmp_path))
    text_lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert text_lines[:2] == ["hparams.n = 2", "long = 9 values"]
    assert "blk.0.w 4x64 BlockScaledLayout 8.50 272 bytes" in text_lines
    assert "d 4x2x1xfloat16, qs 4x2x32xint8 256" in text_lines
    assert "norm 5 bfloat16 16.00 10 bytes" in text_lines
    assert "empty 0x4 int8 0 bytes" in text_lines
    assert "scale float32, rscale float32 1" in text_lines
    assert text_lines[-1] == "4 tensors 262 all 8.85 290 bytes"


def test_inspect_shows_packed_types_of_gguf(tmp_path: Path) -> None:
    report = json.loads(call("inspect", gguf_file(tmp_path), "--json").stdout)
    assert report["properties"]["llama.block_count"] == 1
    tensors = {tensor["name"]: tensor for tensor in report["tensors"]}
    assert tensors["blk.0.Q4_0"] == {
        "name": "blk.0.Q4_0", "shape": [4, 64], "kind": "Q4_0", "arrays": {}, "bytes": 144,
        "bits_per_element": 4.5,
    }  # fmt: skip
    assert tensors["norm"]["kind"] == "float32"
    assert report["kinds"]["Q8_0"] == {"tensors": 1, "elements": 256, "bytes": 272}
    assert report["total"] == {"tensors": 3, "elements": 576, "bytes": 144 + 272 + 256}


def test_inspect_shows_planes_in_json(tmp_path: Path) -> None:
    report = json.loads(call("inspect", irpa_file(tmp_path), "--json").stdout)
    assert report["properties"] == {"hparams": {"n": 2}, "long": list(range(9))}
    assert report["tensors"][0]["arrays"] == {
        "d": {"shape": [4, 2, 1], "dtype": "float16"},
        "qs": {"shape": [4, 2, 32], "dtype": "int8"},
    }
    assert report["tensors"][2]["bits_per_element"] is None


def test_inspect_does_not_unpack_packed_tensors(tmp_path: Path) -> None:
    class Packed(QuantizedTensor):
        unpack = arrays = record = from_record = with_name = None  # type: ignore[assignment]
        size_in_bytes = 7

    described = describe(Packed("t", (2, 2)))  # type: ignore[abstract]
    assert (described.kind, described.bytes, described.bits_per_element) == ("Packed", 7, 14)


@pytest.mark.parametrize("source", ["", "model.safetensors"])
def test_inspect_shows_checkpoints(source: str, tmp_path: Path) -> None:
    result = succeed("inspect", checkpoint(tmp_path / "model") / source)
    assert "hparams.hidden_size = 64" in result.stdout
    assert re.search(r"layer\.weight +4x64 +float32 +32\.00 +1\.0 kB", result.stdout)


def test_inspect_shows_gptq_weights_as_such(tmp_path: Path) -> None:
    folder = checkpoint(
        tmp_path / "model", quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 8}
    )
    arrays = {
        "l.qweight": np.zeros((2, 8), np.int32), "l.qzeros": np.zeros((2, 1), np.int32),
        "l.scales": np.ones((2, 8), np.float16),
    }  # fmt: skip
    save_file(arrays, folder / "model.safetensors")
    assert re.search(r"l\.weight +8x16 +GPTQ", call("inspect", folder).stdout)


def test_inspect_of_an_empty_archive(tmp_path: Path) -> None:
    Dataset({}, Theta([])).save(tmp_path / "x.irpa")
    assert call("inspect", tmp_path / "x.irpa").stdout == "no tensors\n"


def test_scales_of_weights_are_not_shown(tmp_path: Path) -> None:
    error = fail(2, "inspect", irpa_file(tmp_path), "--scales", "blk.0.w")
    assert "--scales shows tensors of .mlir files only" in error


def test_property_lines_are_short_and_printable() -> None:
    text_lines = property_lines({"a": {"b\n": "x" * 1000, "c": {}}, "d": list(range(100))})
    assert text_lines[0].startswith(r"a.b\n = 'xxx")
    assert len(text_lines[0]) < 100
    assert text_lines[1:] == ["a.c = {}", "d = 100 values"]
