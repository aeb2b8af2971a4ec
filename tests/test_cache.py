"""Compilation cache: hits return the whole result; concurrent compilations of a source run once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subquant.compiler import digests, keys, mlir_client
from subquant.compiler.cache import DEFAULT_SIZE, Cache, default_cache, parse_size
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import CompilerError, EnvironmentProblem, InputError, Remark, UsageError
from subquant.formats.irpa import Archive

PROGRAM = "func.func @main(%x: tensor<4xi8>) -> tensor<4xi8> {\n  return %x : tensor<4xi8>\n}"


def files(folder: Path, kind: str = "*") -> list[Path]:
    return sorted(path for path in folder.glob(f"{kind}/**/*") if not path.is_dir())


class Compiler:
    """Stands in for IREE's: the first call lasts until somebody waits for it, or fails."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.calls = 0
        self.started, self.awaited = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any, **_: Any) -> bytes:
        self.calls += 1
        if self.calls > 1:
            return b"second"
        self.started.set()
        assert self.awaited.wait(60)
        if self.fails:
            raise CompilerError("refused")
        return b"first"


@pytest.mark.parametrize("fails", [False, True])
def test_one_compiles_and_the_others_wait(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it fails, the next of the waiting processes compiles."""
    compiler = Compiler(fails)
    monkeypatch.setattr("subquant.compiler.compilation.run_iree", compiler)
    blob_names: list[Any] = []

    def first() -> None:
        try:
            blob_names.append(compile_to_bytes(PROGRAM, cache=tmp_path))
        except CompilerError as error:
            blob_names.append(error.message)

    thread = threading.Thread(target=first)
    thread.start()
    assert compiler.started.wait(60)
    steps: list[str] = []

    def on_step(step: str) -> None:
        steps.append(step)
        if step.startswith("wait"):
            compiler.awaited.set()

    second = compile_to_bytes(PROGRAM, cache=tmp_path, progress=on_step)
    thread.join()
    last = "iree-compile" if fails else "cached"
    assert (steps[0], steps[-1]) == ("wait for the same compilation elsewhere", last)
    assert blob_names == (["refused"] if fails else [b"first"])
    assert second == (b"second" if fails else b"first")
    assert compiler.calls == (2 if fails else 1)
    assert not files(tmp_path, "writing")
    assert compile_to_bytes(PROGRAM, cache=tmp_path) == second


def test_a_folder_that_cannot_be_written_is_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(fails=False)
    compiler.awaited.set()
    monkeypatch.setattr("subquant.compiler.compilation.run_iree", compiler)
    (tmp_path / "file").write_text("no folder")
    for expected in (b"first", b"second"):
        assert compile_to_bytes(PROGRAM, cache=tmp_path / "file") == expected


CONSTANT = """
func.func @main(%x: tensor<4x512xf32>) -> tensor<4x512xf32> {{
  %c = stablehlo.constant dense<"0x{}"> : tensor<4x512xf32>
  %y = stablehlo.add %x, %c : tensor<4x512xf32>
  return %y : tensor<4x512xf32>
}}
"""


def constant_program() -> str:
    return CONSTANT.format(np.arange(2048, dtype=np.float32).tobytes().hex())


class Given:
    """The result of a compilation."""

    def __init__(self, source: Any, cache: Path | str, **options: Any) -> None:
        self.steps: list[str] = []
        self.remarks: list[Remark] = []
        self.signatures: Any = None
        self.data = compile_to_bytes(
            source,
            CompileOptions(explain=True),
            cache=cache,
            progress=self.steps.append,
            on_remark=self.remarks.append,
            check=self.check,
            **options,
        )

    def check(self, signatures: Any) -> None:
        self.signatures = {name: each.to_json() for name, each in signatures.items()}


HIT = """
import sys
from subquant.cli import main
main([*sys.argv[1:]], standalone_mode=False)
print(*sorted({"numpy", "subprocess", "torch_mlir", "iree.compiler", "rich"} & {*sys.modules}))
"""


def test_a_hit_imports_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy, MLIR and child processes would take longer than the rest."""
    monkeypatch.setenv("SUBQUANT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.mlir").write_text(constant_program())
    compile_to_bytes(constant_program(), parameters=tmp_path / "1.irpa")
    arguments = ["compile", "model.mlir", "--parameters", "2.irpa", "-o", "model.vmfb"]
    shown = subprocess.run(
        [sys.executable, "-c", HIT, *arguments],
        cwd=tmp_path,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shown.stdout == "\n"
    assert (tmp_path / "2.irpa").read_bytes() == (tmp_path / "1.irpa").read_bytes()


def test_a_hit_returns_the_whole_result(tmp_path: Path) -> None:
    model = tmp_path / "model.mlir"
    model.write_text(constant_program())
    archives = [tmp_path / name for name in ("1.irpa", "2.irpa", "3.irpa")]
    first = Given(model, tmp_path / "cache", parameters=archives[0])
    assert "iree-compile" in first.steps
    repeated = Given(model, tmp_path / "cache", parameters=archives[1])
    assert repeated.steps == ["cached"]
    elsewhere = Given(constant_program(), tmp_path / "cache", parameters=archives[2])
    assert elsewhere.steps == ["cached"]
    without = Given(model, "", parameters=tmp_path / "4.irpa")
    assert without.steps[-1] == "iree-compile"
    for module_source in (repeated, elsewhere, without):
        assert module_source.data == first.data
        assert module_source.signatures == first.signatures
    assert repeated.remarks == without.remarks == first.remarks
    for archive in archives:
        assert archive.read_bytes() == (tmp_path / "4.irpa").read_bytes()
        assert [*Archive(archive)] == ["constant"]
    # Without a file of parameters it is another compilation.
    inside = Given(model, tmp_path / "cache")
    assert "iree-compile" in inside.steps
    assert inside.data != first.data


def test_cached_remarks_name_the_file(tmp_path: Path) -> None:
    text = (
        "func.func @main(%x: tensor<2x8x!quant.uniform<i8:f32, 0.5>>, "
        "%y: tensor<8x4x!quant.uniform<i8:f32, 0.25>>) "
        "-> tensor<2x4x!quant.uniform<i32:f32, 0.125>> {\n"
        "  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : "
        "(tensor<2x8x!quant.uniform<i8:f32, 0.5>>, tensor<8x4x!quant.uniform<i8:f32, 0.25>>) "
        "-> tensor<2x4x!quant.uniform<i32:f32, 0.125>>\n"
        "  return %0 : tensor<2x4x!quant.uniform<i32:f32, 0.125>>\n}\n"
    )
    paths = []
    for name in ("a.mlir", "b.mlir", "a.mlir"):
        (tmp_path / name).write_text(text)
        module_source = Given(tmp_path / name, tmp_path / "cache")
        assert module_source.remarks
        paths.append([str(remark.place) for remark in module_source.remarks])
        assert all(path_of_place.startswith(f"{tmp_path / name}:") for path_of_place in paths[-1])
    assert paths[0] == paths[2]
    assert module_source.steps == ["cached"]


def test_a_change_of_code_that_lowers_alike_spares_irees_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Given(PROGRAM, tmp_path)
    monkeypatch.setattr(keys, "_code_digest", ["other code"])
    second = Given(PROGRAM, tmp_path)
    assert second.data == first.data
    assert second.steps[0] == "parse"
    assert second.steps[-1] == "cached"
    assert "iree-compile" not in second.steps
    assert Given(PROGRAM, tmp_path).steps == ["cached"]


def damage_blobs(cache: Path) -> None:
    for path in files(cache, "blobs"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")


def damage_records(cache: Path) -> None:
    for path in files(cache, "records"):
        path.write_bytes(path.read_bytes().replace(b"main", b"mean", 1).replace(b"e", b"f", 1))


def shorten(cache: Path) -> None:
    for path in files(cache):
        path.write_bytes(path.read_bytes()[:50])


@pytest.mark.parametrize("damage", [damage_blobs, damage_records, shorten])
def test_damaged_entries_are_recompiled_and_reported(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    first = Given(constant_program(), tmp_path / "cache", parameters=tmp_path / "1.irpa")
    damage(tmp_path / "cache")
    repeated = Given(constant_program(), tmp_path / "cache", parameters=tmp_path / "2.irpa")
    assert repeated.data == first.data
    assert (tmp_path / "1.irpa").read_bytes() == (tmp_path / "2.irpa").read_bytes()
    assert any("is damaged, and is removed" in step for step in repeated.steps)
    assert "iree-compile" in repeated.steps
    last = Given(constant_program(), tmp_path / "cache", parameters=tmp_path / "3.irpa")
    assert last.steps == ["cached"]


@pytest.mark.parametrize("removed", ["records", "blobs"])
def test_missing_entries_are_recompiled(removed: str, tmp_path: Path) -> None:
    first = Given(PROGRAM, tmp_path)
    for path in files(tmp_path, removed):
        path.unlink()
    repeated = Given(PROGRAM, tmp_path)
    assert (repeated.data, repeated.steps[-1]) == (first.data, "iree-compile")
    assert not any("damaged" in step for step in repeated.steps)


def test_a_source_that_changes_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.mlir"
    model.write_text(PROGRAM.replace("main", "before"))
    before, lower = keys.key_of_source(model, CompileOptions()), mlir_client.lower

    def change_and_lower(*arguments: Any, **named: Any) -> Any:
        model.write_text(PROGRAM)
        return lower(*arguments, **named)

    monkeypatch.setattr(mlir_client, "lower", change_and_lower)
    data = compile_to_bytes(model, cache=tmp_path / "cache")
    assert b"main" in data
    assert Cache(tmp_path / "cache").find(before.text) is None
    assert compile_to_bytes(model, cache=tmp_path / "cache") == data


def test_parameters_that_cannot_be_written(tmp_path: Path) -> None:
    Given(constant_program(), tmp_path / "cache", parameters=tmp_path / "1.irpa")
    with pytest.raises(InputError, match=r"cannot write '.*no/2.irpa': No such file"):
        Given(constant_program(), tmp_path / "cache", parameters=tmp_path / "no/2.irpa")


def test_text_is_not_cached(tmp_path: Path) -> None:
    compile_to_bytes(PROGRAM, emit="mlir", cache=tmp_path / "cache")
    assert not files(tmp_path / "cache")


def test_each_entry_has_a_description(tmp_path: Path) -> None:
    compile_to_bytes(PROGRAM, CompileOptions(target="vulkan"), cache=tmp_path)
    compile_to_bytes(PROGRAM, CompileOptions(target="vulkan"), cache=tmp_path)
    records = [record for _, record in Cache(tmp_path).records() if "about" in record.fields]
    by_kind = {record.fields["about"]["kind"]: record for record in records}
    assert sorted(by_kind) == ["lowered module", "program"]
    about = by_kind["program"].fields["about"]
    assert about["name"] == "-"
    assert about["options"] == {"target": "vulkan"}
    assert about["versions"]["iree-base-compiler"] == "3.13.0"
    assert json.dumps(about)


def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most recently used entries stay; large entries make each writer check the size."""
    monkeypatch.setenv("SUBQUANT_CACHE_SIZE", "64 KiB")
    monkeypatch.setattr(
        "subquant.compiler.compilation.run_iree",
        lambda data, *arguments, **_: digests.digest_of(data).encode() * 200,
    )
    programs = [PROGRAM.replace("main", f"f{number}") for number in range(8)]
    for program in programs:
        compile_to_bytes(program, cache=tmp_path)
        assert sum(each.size for kind in ("records", "blobs") for each in
                   Cache(tmp_path).files(kind)) <= 64 << 10  # fmt: skip
        steps: list[str] = []
        compile_to_bytes(programs[0], cache=tmp_path, progress=steps.append)
        assert steps == ["cached"]
    compile_to_bytes(programs[-1], cache=tmp_path, progress=steps.append)
    assert steps == ["cached"] * 2
    compile_to_bytes(programs[1], cache=tmp_path, progress=steps.append)
    assert "iree-compile" in steps


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("10GiB", 10 << 30), ("1.5 MB", 1_500_000), ("2k", 2000), ("0", 0),
     ("7 B", 7), ("1TiB", 1 << 40)],
)  # fmt: skip
def test_sizes(text: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_size(text, "it") == size
    monkeypatch.setenv("SUBQUANT_CACHE_SIZE", text)
    assert Cache(tmp_path).limit == size
    monkeypatch.delenv("SUBQUANT_CACHE_SIZE")
    assert Cache(tmp_path).limit == DEFAULT_SIZE


@pytest.mark.parametrize("text", ["much", "-1", "1 XB", "1e9", "GiB"])
def test_invalid_sizes(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBQUANT_CACHE_SIZE", text)
    message = "the variable SUBQUANT_CACHE_SIZE must be a size such as 10GiB, 500MB or 4096, got"
    with pytest.raises(UsageError, match=message):
        compile_to_bytes(PROGRAM, cache=tmp_path)


@pytest.mark.parametrize("value", ["0", "off", "False"])
def test_a_cache_that_is_off(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUBQUANT_CACHE", value)
    assert compile_to_bytes(PROGRAM)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match=f"SUBQUANT_CACHE is '{value}', which means no cache"):
        default_cache()
    monkeypatch.setenv("SUBQUANT_CACHE", f"./{value}")
    assert default_cache() == Path(value)


def test_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBQUANT_CACHE", "/a/b")
    assert default_cache() == Path("/a/b")
    monkeypatch.delenv("SUBQUANT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/a/c")
    assert default_cache() == Path("/a/c/subquant")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/a/d")
    assert default_cache() == Path("/a/d/.cache/subquant")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # whom no list of users has
    with pytest.raises(EnvironmentProblem, match=r"no home folder .*the variable SUBQUANT_CACHE"):
        default_cache()
