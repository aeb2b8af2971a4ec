"""Keys of compilations: equal for equal inputs, different for inputs that change the result."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from subquant.compiler import digests, keys
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.digests import digest_of, digest_of_file
from subquant.compiler.keys import code_digest, key_of_bytecode, key_of_source, weights_files
from subquant.compiler.mlir_client import Input
from subquant.errors import InputError

PROGRAM = b"func.func @main(%x: tensor<4xi8>) -> tensor<4xi8> {\n  return %x : tensor<4xi8>\n}"
OPTIONS = CompileOptions()
OTHER_OPTIONS = {
    "target": "vulkan",
    "target_cpu": "generic",
    "vulkan_target": "ampere",
    "rounding": "toward-zero",
    "requantization": "fixed-point",
    "fixed_point_rounding": "gemmlowp",
    "zero_points": "inside",
    "activations": "int8",
    "kernels": "none",
    "fuse_below_macs": 0,
    "semantics": "exact",
    "batch": "2",
    "dims": ("n=2",),
    "input_values": ("rate=16000",),
    "every_tensor": True,
    "integer_only": True,
    "explain": True,
    "iree_flags": ("--iree-opt-level=O3",),
}


class Memo:
    """In a dictionary."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.recalled = 0

    def recall(self, name: str) -> str | None:
        self.recalled += name in self.texts
        return self.texts.get(name)

    def remember(self, name: str, text: str) -> None:
        self.texts[name] = text


@pytest.mark.parametrize("size", [0, 1, 1000, (1 << 20) + 1, (1 << 22) + 7])
def test_digests_are_blake3(size: int, tmp_path: Path) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    (tmp_path / "file").write_bytes(data)
    assert digest_of(data) == digest_of_file(tmp_path / "file") == blake3(data).hexdigest()


FORK = """
import os, signal
from subquant.compiler.digests import digest_of
first = digest_of(bytes(1 << 22))
child = os.fork()
if child == 0:
    signal.alarm(30)
    os._exit(digest_of(bytes(1 << 22)) != first)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_process_that_is_forked_has_no_threads_to_wait_for() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True)


@pytest.mark.parametrize("field", [field.name for field in fields(CompileOptions)])
def test_each_option_counts(field: str) -> None:
    other = CompileOptions(**{field: OTHER_OPTIONS[field]})
    assert key_of_source(PROGRAM, OPTIONS) != key_of_source(PROGRAM, other)


def test_other_inputs_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model.mlir", "other.mlir"):
        Path(name).write_bytes(PROGRAM)
    Path("weights.gguf").write_bytes(b"GGUF")
    flagged = CompileOptions(iree_flags=("--iree-codegen-tuning-spec-path=spec.mlir",))
    seen = []

    def look(*arguments: Any, **named: Any) -> None:
        seen.append(key_of_source(*arguments, **named).text)
        assert key_of_source(*arguments, **named).text == seen[-1]

    look("model.mlir", OPTIONS)
    for unnamed in ("other.mlir", PROGRAM, Input("third.mlir", data=PROGRAM)):
        assert key_of_source(unnamed, OPTIONS).text == seen[-1]
    look(Input("model.onnx", data=PROGRAM), OPTIONS)
    look("model.mlir", OPTIONS, "mlir")
    look("model.mlir", OPTIONS, parameters=True)
    look("model.mlir", OPTIONS, parameters=True, weights={"model": "weights.gguf"})
    Path("renamed.gguf").write_bytes(b"GGUF")
    renamed = key_of_source(PROGRAM, OPTIONS, parameters=True, weights={"model": "renamed.gguf"})
    assert renamed.text == seen[-1]
    look("model.mlir", OPTIONS, parameters=True, weights={"a": "weights.gguf"})
    look("model.mlir", flagged)
    Path("spec.mlir").write_text("module {}")
    look("model.mlir", flagged)
    Path("weights.gguf").write_bytes(b"GGUG")
    look("model.mlir", OPTIONS, parameters=True, weights={"model": "weights.gguf"})
    Path("model.mlir").write_bytes(PROGRAM + b"\n")
    look("model.mlir", OPTIONS)
    monkeypatch.setattr(keys, "versions_of", lambda names: dict.fromkeys(names, "1"))
    look("model.mlir", OPTIONS)
    monkeypatch.setattr(keys, "_code_digest", ["other code"])
    look("model.mlir", OPTIONS)
    assert len(set(seen)) == len(seen)


def test_files_of_flags_count_by_contents(tmp_path: Path) -> None:
    """Their names count too, but not their folder, which differs on a worker."""

    def look(folder: str, **files: str) -> set[str]:
        paths = {name: tmp_path / folder / name / "spec.mlir" for name in files}
        for name, text in files.items():
            paths[name].parent.mkdir(parents=True, exist_ok=True)
            paths[name].write_text(text)
        options = CompileOptions(
            iree_flags=tuple(f"--{name}={path}" for name, path in paths.items())
        )
        return {key_of_source(PROGRAM, options).text, key_of_bytecode(PROGRAM, options)}

    one = look("here", a="first", b="second")
    assert len(one) == 2
    assert look("there", a="first", b="second") == one
    assert not look("here", a="second", b="first") & one
    assert not look("here", a="first", c="second") & one
    assert not look("here", a="first", b="seconD") & one


def test_the_cpu_counts_where_code_is_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    by_flag = CompileOptions(target_cpu="generic", iree_flags=("--iree-llvmcpu-target-cpu=host",))
    choices = [OPTIONS, CompileOptions(target_cpu="generic"), CompileOptions("vulkan"), by_flag]
    before = [key_of_source(PROGRAM, each) for each in choices]
    lowered = [key_of_bytecode(PROGRAM, each) for each in choices]
    monkeypatch.setattr(keys, "host_cpu", lambda: ("model name:another",))
    after = [key_of_source(PROGRAM, each) for each in choices]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, True, False]
    after = [key_of_bytecode(PROGRAM, each) for each in choices]
    assert [a == b for a, b in zip(lowered, after, strict=True)] == [False, True, True, False]


def test_another_compiler_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {key_of_bytecode(PROGRAM, OPTIONS)}
    monkeypatch.setenv("IREE_TOOL_PATH", str(tmp_path))
    tool = tmp_path / "iree-compile"
    for content in (b"a", b"b"):
        tool.write_bytes(content)
        tool.chmod(0o755)
        seen.add(key_of_bytecode(PROGRAM, OPTIONS))
    assert len(seen) == 3


def test_the_code_counts_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine it has another folder and other times."""
    package = Path(keys._PACKAGE)
    copy = tmp_path / "elsewhere"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    expected = keys._digest_of_code(None)
    assert code_digest() == expected
    monkeypatch.setattr(keys, "_PACKAGE", str(copy))
    memo = Memo()
    assert keys._digest_of_code(memo) == expected
    assert not memo.texts  # it was written just now
    monkeypatch.setattr(digests, "_SETTLED_SECONDS", -1)
    assert keys._digest_of_code(memo) == expected
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("reads again"))
    assert keys._digest_of_code(memo) == expected
    monkeypatch.undo()
    monkeypatch.setattr(keys, "_PACKAGE", str(copy))
    (copy / "cli.py").write_text((copy / "cli.py").read_text() + "\n")
    changed = keys._digest_of_code(memo)
    (copy / "cli.py").rename(copy / "cli2.py")
    assert len({expected, changed, keys._digest_of_code(memo)}) == 3


def test_large_files_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, memo = tmp_path / "weights.irpa", Memo()
    monkeypatch.setattr(digests, "MIN_BYTES_FOR_MEMO", 4)
    path.write_bytes(b"1234")

    def key() -> str:
        return key_of_source(
            PROGRAM, OPTIONS, parameters=True, weights={"model": path}, memo=memo
        ).text

    first = key()
    assert not memo.recalled  # it may change again, at the same time by the clock
    assert key() == first
    assert not memo.recalled
    monkeypatch.setattr(digests, "_SETTLED_SECONDS", -1)
    assert key() == first
    assert not memo.recalled
    assert key() == first
    assert memo.recalled == 1
    before = path.stat()
    path.write_bytes(b"1235")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert key() != first
    assert memo.recalled == 1


def test_a_key_is_valid_until_its_files_change(tmp_path: Path) -> None:
    path = tmp_path / "model.mlir"
    path.write_bytes(PROGRAM)
    key = key_of_source(path, OPTIONS)
    assert key.is_valid
    path.write_bytes(PROGRAM + b"\n")
    assert not key.is_valid
    key = key_of_source(path, OPTIONS)
    path.unlink()
    assert not key.is_valid
    assert key_of_source(PROGRAM, OPTIONS).is_valid
    with pytest.raises(InputError, match="No such file"):
        key_of_source(path, OPTIONS)
    # External data of an ONNX model, with a name that is no path.
    path = tmp_path / "model.onnx"
    for name in (b"a\0b", b"..", b"none"):
        path.write_bytes(b"\x08\x07\n\x08location\x12" + bytes([len(name)]) + name)
        assert key_of_source(path, OPTIONS).is_valid


def test_files_of_weights(tmp_path: Path) -> None:
    files = [f"c-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for name in ("a.gguf", "b.safetensors", "config.json", "readme.md", *files):
        (tmp_path / name).write_text(name)
    both = [str(tmp_path / "b.safetensors"), str(tmp_path / "config.json")]
    assert weights_files(tmp_path / "a.gguf") == [str(tmp_path / "a.gguf")]
    for part in files:
        assert weights_files(tmp_path / part) == [str(tmp_path / each) for each in files]
    alone = str(tmp_path / "none-00002-of-00003.gguf")
    assert weights_files(alone) == [alone]
    assert weights_files(tmp_path) == both
    assert weights_files(tmp_path / "b.safetensors") == [both[0], *both]
    assert weights_files(tmp_path / "none/x.safetensors") == [str(tmp_path / "none/x.safetensors")]


def test_external_data_of_onnx_models_counts(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    long_name = "weights" * 20
    tensors = []
    for location in ("weights.bin", long_name):
        tensor = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT, dims=[1], name="w")
        tensor.raw_data = b"1234"
        onnx.external_data_helper.set_external_data(tensor, location, offset=4)
        tensor.ClearField("raw_data")
        tensors.append(tensor)
    graph = onnx.helper.make_graph([], "g", [], [], [tensors[0]])
    node = onnx.helper.make_node("Constant", [], ["c"], value=tensors[1])
    graph.node.append(node)
    models = [onnx.helper.make_model(graph)]
    graph.node.append(onnx.helper.make_node("Identity", ["c"], ["location"], "location"))
    models.append(onnx.helper.make_model(graph))  # has the word elsewhere: it is parsed
    function = onnx.helper.make_function("f", "f", [], ["c"], [node], [])
    graph = onnx.helper.make_graph([], "location", [], [], [tensors[0]])
    models.append(onnx.helper.make_model(graph, functions=[function]))
    path = tmp_path / "model.onnx"
    for model in models:
        path.write_bytes(model.SerializeToString())
        seen = [key_of_source(path, OPTIONS).text]
        for name in ("weights.bin", long_name):
            (tmp_path / name).write_bytes(b"12345678")
            seen.append(key_of_source(path, OPTIONS).text)
            (tmp_path / name).write_bytes(b"12345679")
            seen.append(key_of_source(path, OPTIONS).text)
        assert len(set(seen)) == 5
        for name in ("weights.bin", long_name):
            (tmp_path / name).unlink()
