"""Cases from checkouts of StableHLO and LLVM; nothing of theirs is in this repository.

StableHLO's files hold functions without arguments: constants go in, a check operation compares what
comes out with a golden. Compiled like that, the compiler would fold the test away. So each constant
that an operation reads becomes an argument, the checks are removed, and what they looked at is
returned::

    func.func @main() -> tensor<i1> {                      func.func @f(%0: tensor<2xf32>)
      %in = stablehlo.constant dense<[1.0, 2.0]>               -> tensor<2xf32> {
      %golden = stablehlo.constant dense<[0.5, 0.7]>   to    %1 = stablehlo.sine %0
      %1 = stablehlo.sine %in                                return %1
      %2 = stablehlo.custom_call @check.eq(%golden, %1)    }
      return %2

What the checks mean in StableHLO's interpreter: ``check.expect_eq_const`` is equality,
``check.expect_almost_eq_const`` has an absolute tolerance (1e-4 unless given), and ``check.eq`` is
equality of integers and the same tolerance of floats. The goldens of ``check.eq`` are dequantized
values as a float holds them, so here that check is exact: a difference of 1e-4 would let many a
wrong element through.

LLVM's files are verdicts: ``expected-error`` comments say which parts must be refused, and where.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .._mlir import Operation, Value, ir
from ..compiler.reading import parse_text
from ..dialects import create_context
from ..emit import create
from ..errors import InputError
from .cases import SYMBOL, Case, Prepared
from .interpreter import array_of
from .oracle import Golden
from .program import Array

__all__ = ["file_chunks", "function_case", "llvm_cases", "read_file", "stablehlo_cases"]

_SPLIT = re.compile(r"^// -----.*$", re.MULTILINE)
_PRETTY_CHECK = re.compile(
    r"\bcheck\.(expect_\w+_const) (%[\w#]+), (.*?)(?:, tolerance = ([^:]+?)(?: : f64)?)?"
    r" : (tensor<[^>]*>)$",
    re.MULTILINE,
)
_GENERIC_CHECK = re.compile(r'("check\.expect_\w+"\([^)]*\)) <\{(.*?)\}> :')
_CHECKS = ("check.expect_eq_const", "check.expect_almost_eq_const")
_TOLERANCE = 1e-4


# -- StableHLO ------------------------------------------------------------------------------------


def stablehlo_cases(root: str | Path) -> list[Case]:
    """Return the cases of a StableHLO checkout: its quantized test data and interpreter tests.

    Raises:
        InputError: `root` is no such checkout, or a file has another form.
    """
    base = _folder(root, "stablehlo/testdata/quantized")
    files = sorted(base.glob("*.mlir"))
    extra = Path(root, "stablehlo/tests/interpret/quantized_ops.mlir")
    files += [extra] if os.path.isfile(extra) else []
    if not files:
        raise InputError(f"no .mlir file is in '{base}'; expected a checkout of StableHLO")
    return [case for file in files for case in _file_cases(file)]


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


def _file_cases(file: Path) -> Iterator[Case]:
    names: dict[str, int] = {}
    for before, chunk in file_chunks(read_file(file)):
        if "func.func" not in chunk:
            continue
        # Blank lines keep the line numbers of the file in errors.
        module = parse_text("\n" * before + _with_plain_checks(chunk), create_context(), str(file))
        for op in module.body.operations:
            if op.operation.name != "func.func" or "complex<" in str(op.operation):
                continue  # NumPy exchanges complex numbers with no program of subquant
            name = str(op.operation.attributes["sym_name"].value)
            names[name] = names.get(name, 0) + 1
            label = name if names[name] == 1 else f"{name}.{names[name]}"
            try:
                yield function_case(op.operation, f"stablehlo/{file.stem}:{label}")
            except InputError as error:
                raise error.in_file(str(file)) from None


def _with_plain_checks(text: str) -> str:
    """Write checks as generic operations with attributes, which need no dialect to be read."""

    def plain(match: re.Match[str]) -> str:
        name, value, golden, tolerance, type_ = match.groups()
        extra = f", tolerance = {tolerance} : f64" if tolerance else ""
        return f'"check.{name}"({value}) {{value = {golden} : {type_}{extra}}} : ({type_}) -> ()'

    return _GENERIC_CHECK.sub(r"\1 {\2} :", _PRETTY_CHECK.sub(plain, text))


@dataclass(frozen=True)
class _Check:
    value: Value
    golden: Golden


def function_case(function: Operation, name: str) -> Case:
    """Turn a function with constants and checks into one with arguments and results.

    Raises:
        InputError: it checks nothing, or something that is not known.
    """
    block = function.regions[0].blocks[0]
    operations = [op.operation for op in block.operations]
    tested = [o.name for o in operations if o.name not in _NOT_TESTED and not _is_check(o)]
    op = (tested or ["stablehlo.uniform_quantize"])[-1].partition(".")[2]
    checks = []
    for operation in [o for o in operations if _is_check(o)]:
        checks.append(_read_check(operation))
        for result in operation.results:
            for use in list(result.uses):
                if use.owner.operation.name != "func.return":
                    raise InputError("the result of a check is used", operation)
    if not checks:
        raise InputError("has no check of its results; expected a file of StableHLO", function)
    values = [check.value for check in checks]
    ending = operations[-1]
    with ir.InsertionPoint(ending), ending.location:
        create("func.return", values)
    ending.erase()
    for operation in operations[:-1]:
        if _is_check(operation):
            operation.erase()  # after the return, which may have used its result
    inputs = _constants_to_arguments(function, block)
    with function.context:
        types = [argument.type for argument in block.arguments]
        signature = ir.FunctionType.get(types, [value.type for value in values])
        function.attributes["function_type"] = ir.TypeAttr.get(signature)
        function.attributes["sym_name"] = ir.StringAttr.get(SYMBOL)
    text = function.get_asm(use_local_scope=True)
    return Case(name, op, prepared=Prepared(text, inputs, [check.golden for check in checks]))


_NOT_TESTED = (
    "func.return",
    "stablehlo.bitcast_convert",
    "stablehlo.constant",
    "stablehlo.reshape",
    "stablehlo.transpose",
    "stablehlo.uniform_dequantize",
    "stablehlo.uniform_quantize",
)
"""What stands around the operation that a function is about."""


def _is_check(operation: Operation) -> bool:
    if operation.name == "stablehlo.custom_call":
        return bool(operation.attributes["call_target_name"].value == "check.eq")
    return str(operation.name).startswith("check.")


def _read_check(operation: Operation) -> _Check:
    if operation.name == "stablehlo.custom_call":
        left, right = operation.operands
        golden, value = (left, right) if _constant(left) is not None else (right, left)
        attribute = _constant(golden)
        if attribute is None:
            raise InputError("compares with no constant", operation)
        return _Check(value, Golden(array_of(attribute)))
    if operation.name not in _CHECKS or "value" not in operation.attributes:
        raise InputError("is a check that is not known; expected check.eq or a constant", operation)
    expected = array_of(operation.attributes["value"])
    if operation.name == "check.expect_eq_const":
        return _Check(operation.operands[0], Golden(expected))
    tolerance = _TOLERANCE
    if "tolerance" in operation.attributes:
        tolerance = float(operation.attributes["tolerance"].value)
    return _Check(operation.operands[0], Golden(expected, bound=np.full(expected.shape, tolerance)))


def _constant(value: Value) -> ir.DenseElementsAttr | None:
    """The dense attribute of a constant, None for any other value."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "stablehlo.constant":
        return None
    return owner.operation.attributes["value"]


def _constants_to_arguments(function: Operation, block: ir.Block) -> list[Array]:
    """Replace every constant by an argument; return what to give for it."""
    inputs = []
    for operation in [op.operation for op in block.operations]:
        if operation.name != "stablehlo.constant":
            continue
        result = operation.results[0]
        if list(result.uses):
            argument = block.add_argument(result.type, operation.location)
            result.replace_all_uses_with(argument)
            inputs.append(array_of(operation.attributes["value"]))
        operation.erase()
    return inputs


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
            lines = _expected_lines(chunk)
            cases.append(
                Case(
                    f"llvm/{stem}:{number}", f"quant ({stem})", "verdict",
                    prepared=Prepared(chunk), expected_errors=lines or None,
                )
            )  # fmt: skip
    return cases


def _expected_lines(chunk: str) -> tuple[int, ...]:
    """The lines on which ``expected-error`` comments announce errors (-1 for an unknown place)."""
    found = []
    for number, line in enumerate(chunk.splitlines(), 1):
        for match in _EXPECTED.finditer(line):
            where = match.group(1)
            shift = {"below": 1, "above": -1, None: 0}.get(where)
            if where == "unknown":
                found.append(-1)
            elif shift is None:
                found.append(number + int(str(where)))
            else:
                found.append(_skip_comments(chunk, number, shift))
    return tuple(found)


def _skip_comments(chunk: str, number: int, shift: int) -> int:
    """``@below`` is the next line that is no comment of this kind."""
    lines = chunk.splitlines()
    target = number + shift
    while shift and 1 <= target <= len(lines) and "expected-" in lines[target - 1]:
        target += shift
    return target
