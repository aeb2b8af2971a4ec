"""Functions of StableHLO's test data as cases, read in a child process.

The functions have no arguments: their operands are constants, and a check operation compares the
result with a golden. A compiler would fold the test away. So each constant operand becomes an
argument, the checks are removed, and the checked values are returned::

    func.func @main() -> tensor<i1> {                      func.func @f(%0: tensor<2xf32>)
      %in = stablehlo.constant dense<[1.0, 2.0]>               -> tensor<2xf32> {
      %golden = stablehlo.constant dense<[0.5, 0.7]>   to    %1 = stablehlo.sine %0
      %1 = stablehlo.sine %in                                return %1
      %2 = stablehlo.custom_call @check.eq(%golden, %1)    }
      return %2

A complex constant becomes two arguments, and a complex result two results: NumPy exchanges complex
numbers with no program of subquant.

The checks in StableHLO's interpreter: ``check.expect_eq_const`` is equality,
``check.expect_almost_eq_const`` has an absolute tolerance (1e-4 unless given), and ``check.eq`` is
equality of integers and the same tolerance of floats. The goldens of ``check.eq`` are dequantized
values as a float holds them, so here that check is exact: a difference of 1e-4 would let many a
wrong element through.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ..compiler.reading import parse_text
from ..core._mlir import Operation, Value, ir
from ..dialects import create_context
from ..dialects.dense import constant_attribute
from ..emit import create
from ..errors import InputError
from .cases import SYMBOL, Case, Prepared
from .interpreter import array_of
from .oracle import Golden
from .program import Array
from .testdata import file_chunks, read_file

_PRETTY_CHECK = re.compile(
    r"\bcheck\.(expect_\w+_const) (%[\w#]+), (.*?)(?:, tolerance = ([^:]+?)(?: : f64)?)?"
    r" : (tensor<[^>]*>)$",
    re.MULTILINE,
)
_GENERIC_CHECK = re.compile(r'("check\.expect_\w+"\([^)]*\)) <\{(.*?)\}> :')
_PARTS = {"real": r"\1", "imag": r"\2"}
_COMPLEX = re.compile(r"\(([^,()]+),([^,()]+)\)")
_COMPLEX_TYPE = r"(dense<[^>]*>) : tensor<((?:\d+x)*)complex<(f\d+)>>"
_COMPLEX_CONSTANT = re.compile(rf"%(\w+) = stablehlo\.constant {_COMPLEX_TYPE}")
_COMPLEX_CHECK = re.compile(
    rf'"(check\.expect_\w+)"\(%([\w#]+)\) {{value = {_COMPLEX_TYPE}(.*?)}} : \([^)]*\) -> \(\)'
)
_CHECKS = ("check.expect_eq_const", "check.expect_almost_eq_const")
_TOLERANCE = 1e-4
"""The absolute error that ``check.expect_almost_eq_const`` accepts."""


def file_cases(file: Path) -> Iterator[Case]:
    """Yield the cases of a file; SubquantError with a place if it has another form."""
    names: dict[str, int] = {}
    for module in function_modules(file, lambda text: _in_parts(_with_plain_checks(text))):
        for op in module.body.operations:
            if op.operation.name != "func.func":
                continue
            name = str(op.operation.attributes["sym_name"].value)
            names[name] = names.get(name, 0) + 1
            label = name if names[name] == 1 else f"{name}.{names[name]}"
            yield function_case(op.operation, f"stablehlo/{file.stem}:{label}")


def function_modules(file: Path, rewritten: Callable[[str], str]) -> Iterator[ir.Module]:
    """Yield the parts of a file with functions; blank lines keep the line numbers in errors."""
    for before, chunk in file_chunks(read_file(file)):
        if "func.func" in chunk:
            yield parse_text("\n" * before + rewritten(chunk), create_context(), str(file))


def _with_plain_checks(text: str) -> str:
    """Write checks as generic operations with attributes, which need no dialect to be read."""

    def plain(match: re.Match[str]) -> str:
        name, value, golden, tolerance, type_ = match.groups()
        extra = f", tolerance = {tolerance} : f64" if tolerance else ""
        return f'"check.{name}"({value}) {{value = {golden} : {type_}{extra}}} : ({type_}) -> ()'

    return _GENERIC_CHECK.sub(r"\1 {\2} :", _PRETTY_CHECK.sub(plain, text))


def _in_parts(text: str) -> str:
    """Write complex constants, and checks, as those of the parts: the bindings read no complex."""

    def constant(match: re.Match[str]) -> str:
        name, literal, shape, real = match.groups()
        operands = [f"%{part}_{name}" for part in _PARTS]
        operations = [
            f"{operand} = stablehlo.constant {_COMPLEX.sub(part, literal)} : tensor<{shape}{real}>"
            for operand, part in zip(operands, _PARTS.values(), strict=True)
        ]
        whole = f"tensor<{shape}complex<{real}>>"
        return " ".join(
            [*operations, f"%{name} = stablehlo.complex {', '.join(operands)} : {whole}"]
        )

    def check(match: re.Match[str]) -> str:
        check, name, literal, shape, real, rest = match.groups()
        type_, whole = f"tensor<{shape}{real}>", f"tensor<{shape}complex<{real}>>"
        operations = []
        for part, number in _PARTS.items():
            result = f"%{part}_{name.replace('#', '_')}"
            operations += [
                f"{result} = stablehlo.{part} %{name} : ({whole}) -> {type_}",
                f'"{check}"({result}) {{value = {_COMPLEX.sub(number, literal)} : {type_}{rest}}}',
                f": ({type_}) -> ()",
            ]
        return " ".join(operations)

    return _COMPLEX_CONSTANT.sub(constant, _COMPLEX_CHECK.sub(check, text))


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
    ending = operations[-1]
    with ir.InsertionPoint(ending), ending.location:
        returned = create("func.return", [value for value, _ in checks])
    ending.erase()
    for operation in operations[:-1]:
        if _is_check(operation):
            operation.erase()  # after the return, which may have used its result
    inputs = _constants_to_arguments(block)
    with function.context:
        types = [argument.type for argument in block.arguments]
        results = [operand.type for operand in returned.operands]
        signature = ir.FunctionType.get(types, results)
        function.attributes["function_type"] = ir.TypeAttr.get(signature)
        function.attributes["sym_name"] = ir.StringAttr.get(SYMBOL)
    text = function.get_asm(use_local_scope=True)
    return Case(name, op, prepared=Prepared(text, inputs, [golden for _, golden in checks]))


_NOT_TESTED = (
    "func.return", "stablehlo.bitcast_convert", "stablehlo.complex", "stablehlo.constant",
    "stablehlo.imag", "stablehlo.real", "stablehlo.reshape", "stablehlo.transpose",
    "stablehlo.uniform_dequantize", "stablehlo.uniform_quantize",
)  # fmt: skip
"""Helper operations of a function, which are not under test."""


def _is_check(operation: Operation) -> bool:
    if operation.name == "stablehlo.custom_call":
        return bool(operation.attributes["call_target_name"].value == "check.eq")
    return str(operation.name).startswith("check.")


def _read_check(operation: Operation) -> tuple[Value, Golden]:
    """Return the value that a check operation checks, and the golden."""
    if operation.name == "stablehlo.custom_call":
        left, right = operation.operands
        golden, value = (left, right) if constant_attribute(left) is not None else (right, left)
        attribute = constant_attribute(golden)
        if attribute is None:
            raise InputError("compares with no constant", operation)
        return value, Golden(array_of(attribute))
    if operation.name not in _CHECKS or "value" not in operation.attributes:
        raise InputError("is a check that is not known; expected check.eq or a constant", operation)
    expected = array_of(operation.attributes["value"])
    if operation.name == "check.expect_eq_const":
        return operation.operands[0], Golden(expected)
    tolerance = _TOLERANCE
    if "tolerance" in operation.attributes:
        tolerance = float(operation.attributes["tolerance"].value)
    return operation.operands[0], Golden(expected, bound=np.full(expected.shape, tolerance))


def _constants_to_arguments(block: ir.Block) -> list[Array]:
    """Replace every constant by an argument; return the arguments."""
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
