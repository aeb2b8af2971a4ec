"""Input bundles: unpacked by the worker, named by the caller's paths in errors."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from compile_many_runs import write_onnx
from subquant.batch.engines.input_bundle import InputBundle, read_flag_files, unpack_bundle
from subquant.compiler.mlir_client import Input
from subquant.errors import CompilerError, EnvironmentProblem, InputError, Place, UsageError


@pytest.fixture(autouse=True)
def here(in_temporary_folder: Path) -> Path:
    return in_temporary_folder


MODEL = Input("m/x.mlir", data=b"module {}")


def test_files_have_their_names_there(here: Path) -> None:
    Path("a").mkdir()
    Path("a/x.npy").write_bytes(b"x")
    bundle = InputBundle(MODEL, "out/model.reproducer.mlir")
    names = [bundle.add("a/x.npy", "one"), bundle.add("y.npy", "two", b"y")]
    with pytest.raises(InputError, match="cannot read 'none': No such file"):
        bundle.add("none", "three")
    with unpack_bundle(bundle.label, bundle.blobs) as actual:
        paths = [actual.path(name) for name in names]
        assert [Path(path).read_bytes() for path in paths] == [b"x", b"y"]
        assert [os.path.basename(path) for path in paths] == ["x.npy", "y.npy"]
        assert actual.read_reproducer() == actual.read(actual.path("none")) == []
        assert actual.model == MODEL
        assert sorted(os.listdir(actual.folder)) == ["one", "two"]
    assert not Path(actual.folder).exists()


def test_a_model_that_is_to_have_a_path() -> None:
    bundle = InputBundle(MODEL, "r", as_file=True)
    with unpack_bundle(bundle.label, bundle.blobs) as actual:
        assert actual.model == Input("m/x.mlir", os.path.join(actual.folder, "model", "x.mlir"))
        assert actual.model.read() == b"module {}"


@pytest.mark.parametrize("has_data", [False, True])
def test_a_model_has_the_files_beside_it(has_data: bool) -> None:
    """The reader of the model reports a missing file."""
    Path("m").mkdir()
    write_onnx("m/parts.onnx", external="parts.bin")
    data = Path("m/parts.bin").read_bytes()
    if not has_data:
        Path("m/parts.bin").unlink()
    bundle = InputBundle(Input("m/parts.onnx", data=Path("m/parts.onnx").read_bytes()), "r")
    with unpack_bundle(bundle.label, bundle.blobs) as actual:
        assert actual.model.path is not None
        path = Path(actual.model.path)
        assert path.read_bytes() == Path("m/parts.onnx").read_bytes()
        beside = path.with_name("parts.bin")
        assert beside.exists() == has_data
        assert not has_data or beside.read_bytes() == data


def test_files_below_the_model_go_along_and_no_others() -> None:
    """A model may name any file of the client."""
    Path("m/d").mkdir(parents=True)
    Path("secret").write_bytes(bytes(64))
    for number, name in enumerate(("d/parts.bin", "../secret", "link")):
        path = f"m/{number}.onnx"
        write_onnx(path, external="d/parts.bin")
        if number:
            data = Path(path).read_bytes().replace(b"d/parts.bin", name.ljust(11, "/").encode())
            Path(path).write_bytes(data.replace(b"../secret//", b"./../secret"))
    Path("m/link").symlink_to("../secret")
    sent = []
    for number in range(3):
        path = f"m/{number}.onnx"
        bundle = InputBundle(Input(path, data=Path(path).read_bytes()), "r")
        with unpack_bundle(bundle.label, bundle.blobs) as actual:
            every = [each for each in Path(actual.folder).rglob("*") if each.is_file()]
            names = {str(each.relative_to(actual.folder)) for each in every}
            sent.append(sorted(names))
    assert sent == [["model/0.onnx", "model/d/parts.bin"], [], []]


def test_errors_and_reproducers_name_the_callers_files() -> None:
    bundle = InputBundle(MODEL, "out/my model.reproducer.mlir", as_file=True)
    other = bundle.add("y.npy", "input0", b"")
    with unpack_bundle(bundle.label, bundle.blobs) as actual:
        replay = f"iree-compile {actual.reproducer} --flag={actual.path(other)}"
        Path(actual.reproducer).write_bytes(f"// {replay}\n// {replay}\n\xff".encode("latin-1"))
        position = Place(str(actual.model.path), 3, 5)
        message = f"cannot read '{actual.path(other)}'"
        fields = actual.renamed(CompilerError(message, position, (f"replay: {replay}",)))
        (reproducer,) = actual.read_reproducer()
    message = "iree-compile 'out/my model.reproducer.mlir' --flag=y.npy"
    assert fields["message"] == "cannot read 'y.npy'"
    assert fields["place"] == ["m/x.mlir", 3, 5]
    assert fields["notes"] == [f"replay: {message}"]
    assert reproducer == f"// {message}\n// {replay}\n\xff".encode("latin-1")


def test_files_that_flags_name_go_along() -> None:
    Path("d").mkdir()
    for path in ("spec.mlir", "d/spec.mlir", "d/x", "host"):
        Path(path).write_text(path)
    flags = (
        "--spec=spec.mlir", "--two=a=d/spec.mlir,b=d/x", "--entry=d/x@f", "--cpu=host", "--x=1.5",
    )  # fmt: skip
    files = read_flag_files(flags)
    assert files == {path: path.encode() for path in ("spec.mlir", "d/spec.mlir", "d/x")}
    bundle = InputBundle(MODEL, "r")
    bundle.add_flag_files(files)
    with unpack_bundle(bundle.label, bundle.blobs) as actual:
        spec, two, entry, *rest = actual.flags(flags)
        assert rest == ["--cpu=host", "--x=1.5"]
        assert Path(spec.removeprefix("--spec=")).read_text() == "spec.mlir"
        first, second = two.removeprefix("--two=a=").split(",b=")
        assert [Path(first).read_text(), Path(second).read_text()] == ["d/spec.mlir", "d/x"]
        assert entry == f"--entry={second}@f"
        error = CompilerError(f"{first} and {spec.removeprefix('--spec=')} are wrong")
        assert actual.renamed(error)["message"] == "d/spec.mlir and spec.mlir are wrong"


@pytest.mark.parametrize("value", ["d/", "none/x", "d.d", "./d.d"])
def test_flags_that_name_what_cannot_be_sent(value: str) -> None:
    Path("d.d").mkdir()
    with pytest.raises(UsageError, match=r"is no file that can be sent to the workers of a clust"):
        read_flag_files([f"--dump={value}"])


def unpack(bundle: InputBundle) -> None:
    with unpack_bundle(bundle.label, bundle.blobs):
        pass


def test_there_is_no_place(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = InputBundle(MODEL, "r")
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(here / "none"))
        with pytest.raises(EnvironmentProblem, match="cannot create a temporary folder: No such"):
            unpack(bundle)
    bundle.add("x" * 300, "model", b"data")
    with pytest.raises(EnvironmentProblem, match="to a temporary folder: File name too long"):
        unpack(bundle)
