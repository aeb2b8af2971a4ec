"""Readers of modules: MLIR text and bytecode, StableHLO artifacts, TensorFlow Lite and ONNX models.

The readers run in the process that calls them. On hostile input upstream's parser ends the process,
so that `mlir_client` calls them in a child. `text_checks` refuses text that upstream would read
wrongly.

Locations in a module name the file "-": executables record locations, and do not depend on the path
of the module. `in_file` gives errors and remarks the name of the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ..core._mlir import ir, refuse_non_utf8_names, translate_errors
from ..core.files import kind_of, read_input, wrong_download
from ..errors import ParseError, Place, Remark, UsageError
from ..importers.options import AS_IN_FILE, ImportOptions
from .diagnostics import HINTS, reworded
from .shardy_text import without_shardings
from .stablehlo_artifacts import is_artifact, parse_artifact, record_names
from .text_checks import check_text, without_comments_and_strings

BYTECODE_MAGIC = b"ML\xefR"

OnRemark = Callable[[Remark], None]


def parse_text(text: str, context: ir.Context, file: str = "-") -> ir.Module:
    """Parse MLIR text of `file`; ParseError, VerificationError with the first place."""
    check_text(text, file)
    if "sdy." in text:
        text = without_shardings(text, without_comments_and_strings(text), file)
    with _parsing(context, file):
        return _with_names(ir.Module.parse(text, context))


def parse_file(path: str | Path, context: ir.Context) -> ir.Module:
    """Parse a file as `parse_bytes`, with its name in errors; InputError if it is unreadable."""
    return parse_bytes(read_input(path), context, str(path))


def parse_bytes(
    data: bytes,
    context: ir.Context,
    file: str = "-",
    options: ImportOptions = AS_IN_FILE,
    on_remark: OnRemark | None = None,
    path: str | None = None,
) -> ir.Module:
    """Parse MLIR text or bytecode, an artifact of StableHLO, a TensorFlow Lite or ONNX model.

    Args:
        on_remark: called with remarks about the nodes of an ONNX model.
        path: the path of the file, for the external data of an ONNX model; by default `file`.

    Raises:
        ParseError: the data has none of the formats.
        ParseError, VerificationError: as `parse_text`.
        InputError, UnsupportedError: from an importer, with the operator.
    """
    data = without_wrapping(data, file)
    is_onnx = file.lower().endswith(".onnx") or kind_of(data) == "onnx"
    is_tflite = not is_onnx and kind_of(data) == "tflite"
    if not (is_onnx or is_tflite):
        _check_options(options, file)
    if file.lower().endswith(".pt2") or kind_of(data) == "pt2":
        from ..importers.torch.exported_file import write_module as write_exported

        return write_exported(data, context, file)
    # A protobuf is not always told by its first bytes.
    if is_onnx:
        from ..importers import onnx
        from ..importers.onnx.reading.reader import read_onnx

        return onnx.write_module(read_onnx(data, file, path), context, options, on_remark)
    if data.startswith(BYTECODE_MAGIC):
        return parse_bytecode(data, context, file)
    if is_tflite:
        from ..importers.tflite import write_module
        from ..importers.tflite.reading.model import read_tflite  # with all that few modules need

        return write_module(read_tflite(data, file), context, options)
    if file.lower().endswith(".tflite"):
        raise ParseError(
            f"is no TensorFlow Lite model: bytes 4 to 7 are {data[4:8]!r}, expected b'TFL3'"
            f"{wrong_download(data)}",
            Place(file),
        )
    return parse_text(decode_text(data, file), context, file)


def _check_options(options: ImportOptions, file: str) -> None:
    """Raise UsageError for an option of models that a module does not take."""
    for name, value in (
        ("--input-value", options.input_values),
        ("--batch", options.batch),
        ("--dim", options.dims),
        ("--every-tensor", options.every_tensor),
    ):
        if value:
            raise UsageError(
                f"{name} is for .tflite and .onnx models; other programs keep their arguments",
                None if file == "-" else Place(file),
            )


_OTHER_KINDS = {
    "executable": ", but an executable; run it with: subquant run {}",
    "weights": ", but holds weights; a language model writes text with: subquant generate --model "
    "{0}; import others with: subquant import {0}",
    "array": ", but an array; give it as an argument: --input @{}",
    "zip": ", but a ZIP archive; write a program of PyTorch with torch.export.save, as a .pt2 file",
    "ort": ", but of ONNX Runtime's own format; give the .onnx file that it was converted from",
    "hdf5": ", but an HDF5 file; convert a model of Keras to .tflite, or export .onnx",
}


def decode_text(data: bytes, file: str) -> str:
    """Decode MLIR text; ParseError if it is no text."""
    hint = _OTHER_KINDS.get(kind_of(data) or "") or wrong_download(data)
    if not hint:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            hint = f" (byte {error.start})"
    subject = "the module" if file == "-" else f"'{file}'"
    name = "FILE" if file in ("-", "<stdin>") else file
    no_module = "no MLIR module" if hint.startswith(";") else "neither MLIR bytecode nor UTF-8 text"
    raise ParseError(f"{subject} is {no_module}{hint.format(name)}")


def parse_bytecode(data: bytes, context: ir.Context, file: str = "-") -> ir.Module:
    """Parse MLIR bytecode; an artifact of StableHLO is upgraded to the current version.

    Raises:
        ParseError: it is broken, or has a name that is not UTF-8 text.
        VerificationError: as `parse_text`.
    """
    with _parsing(context, file):
        if is_artifact(data):
            return _with_names(parse_artifact(data, context, file))
        return _with_names(ir.Module.parse(data, context))


def without_wrapping(data: bytes, file: str) -> bytes:
    """Return the artifact in a function that JAX exported, or the data; InputError if damaged."""
    if kind_of(data) is not None or b"StableHLO_v" not in data:
        return data
    from ..importers.jax.exported_function import exported_artifact

    return exported_artifact(data, file) or data


def _with_names(module: ir.Module) -> ir.Module:
    record_names(module)
    return module


@contextlib.contextmanager
def _parsing(context: ir.Context, file: str) -> Iterator[None]:
    errors = translate_errors(ParseError, "cannot parse the module", file, HINTS, reworded)
    with context, refuse_non_utf8_names(file), errors:
        yield
