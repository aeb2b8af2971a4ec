"""Cases from checkouts of StableHLO and LLVM; nothing of theirs is in this repository.

StableHLO's files are programs with their results, quantized ones and those of the TOSA passes.
They are others' text, so that a child process reads them, and what crashes there is an error.

LLVM's files are verdicts: ``expected-error`` comments say which parts must be refused, and where.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..compiler.mlir_client import Input, ask
from ..errors import InputError
from ..isolation.child import ReportStep
from ..isolation.limits import time_limit
from .cases import Case, Prepared, cases_from_fields, cases_to_fields

_SPLIT = re.compile(r"^// -----.*$", re.MULTILINE)
_TOSA_FILES = (
    "legalize_quant_ops_to_tosa_rescale.mlir",
    "rescale_interpreter.mlir",
    "legalize_tosa_rescale_to_stablehlo.mlir",
)


def stablehlo_cases(root: str | Path) -> list[Case]:
    """Return the cases of a StableHLO checkout: its quantized test data and interpreter tests.

    Raises:
        InputError: `root` is no such checkout.
        SubquantError: a file has another form, with its place, or MLIR crashed on it.
    """
    base = _folder(root, "stablehlo/testdata/quantized")
    files = sorted(base.glob("*.mlir"))
    extra = Path(root, "stablehlo/tests/interpret/quantized_ops.mlir")
    files += [extra] if os.path.isfile(extra) else []
    if not files:
        raise InputError(f"no .mlir file is in '{base}'; expected a checkout of StableHLO")
    return [case for file in files for case in _cases_of(file, "stablehlo_testdata")]


def tosa_cases(root: str | Path) -> list[Case]:
    """Return the cases of the TOSA tests of a StableHLO checkout, none if it has no such folder.

    Raises:
        SubquantError: a file has another form, with its place, or MLIR crashed on it.
    """
    files = [Path(root, "stablehlo/conversions/tosa/tests", name) for name in _TOSA_FILES]
    chosen = [file for file in files if os.path.isfile(file)]
    return [case for file in chosen for case in _cases_of(file, "tosa_testdata")]


def _cases_of(file: Path, reader: str) -> list[Case]:
    """Read a file by a module, in a child process; the file is the reproducer of a crash."""
    path = str(file)
    value, blobs = ask(
        f"{__name__}:read_cases", Input(path, path), {"reader": reader}, reproducer=path
    )
    return cases_from_fields(value, blobs)


def read_cases(
    arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Read the file ``source`` by the function ``file_cases`` of a module: for `_cases_of`."""
    reader = importlib.import_module(f".{arguments['reader']}", __package__)
    steps("parse")
    with time_limit(arguments["parse_seconds"]):
        return cases_to_fields(list(reader.file_cases(Path(arguments["source"]["path"]))))


def _folder(root: str | Path, inside: str) -> Path:
    path = Path(root, inside)
    if not os.path.isdir(path):
        raise InputError(f"'{root}' has no folder '{inside}'; expected a checkout of the project")
    return path


def read_file(file: Path) -> str:
    """Read a text file; InputError if that is not possible."""
    try:
        return file.read_text()
    except OSError as error:
        raise InputError(f"cannot read '{file}': {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"'{file}' is not UTF-8 text") from None


def file_chunks(text: str) -> Iterator[tuple[int, str]]:
    """The parts of a file between ``// -----`` lines, each with the line before its first."""
    start = 0
    for match in _SPLIT.finditer(text):
        yield text.count("\n", 0, start), text[start : match.start()]
        start = match.end() + 1
    yield text.count("\n", 0, start), text[start:]


# -- LLVM -----------------------------------------------------------------------------------------

_EXPECTED = re.compile(r"//\s*expected-error(?:-re)?\s*(?:@([-+]\d+|below|above|unknown))?")


def llvm_cases(root: str | Path) -> list[Case]:
    """Return a verdict for each part of each ``mlir/test/Dialect/Quant`` file of an LLVM checkout.

    Raises:
        InputError: `root` is no such checkout.
    """
    base = _folder(root, "mlir/test/Dialect/Quant")
    files = sorted(base.rglob("*.mlir"))
    if not files:
        raise InputError(f"no .mlir file is in '{base}'; expected a checkout of LLVM")
    cases = []
    for file in files:
        stem = file.relative_to(base).as_posix()
        for number, (_, chunk) in enumerate(file_chunks(read_file(file))):
            if not re.sub(r"//[^\n]*", "", chunk).strip():
                continue
            error_lines = _expected_lines(chunk)
            cases.append(
                Case(
                    f"llvm/{stem}:{number}", f"quant ({stem})", "verdict",
                    prepared=Prepared(chunk), expected_errors=error_lines or None,
                )
            )  # fmt: skip
    return cases


def _expected_lines(chunk: str) -> tuple[int, ...]:
    """Return the lines of ``expected-error`` comments (-1 for an unknown location)."""
    lines, numbers = chunk.splitlines(), []
    for number, line in enumerate(lines, 1):
        for match in _EXPECTED.finditer(line):
            where = match.group(1)
            shift = {"below": 1, "above": -1, None: 0}.get(where)
            if where == "unknown":
                numbers.append(-1)
            elif shift is None:
                numbers.append(number + int(str(where)))
            else:
                # `@below` is the next line that is no comment of this kind.
                target = number + shift
                while shift and 1 <= target <= len(lines) and "expected-" in lines[target - 1]:
                    target += shift
                numbers.append(target)
    return tuple(numbers)
