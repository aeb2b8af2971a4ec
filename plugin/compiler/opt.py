"""Engine of ``subquant opt``: runs passes on text and prints the result, with mlir-opt's test aids.

``--split-input-file`` treats the text between ``// -----`` lines as separate modules; an error in
one does not stop the others. ``--verify-diagnostics`` checks that each module gives exactly the
errors and remarks of its comments (``expected-error``, ``expected-remark``)::

    // expected-error @+1 {{must be divisible}}
    func.func private @f(tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0}>>)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from ..core.files import kind_of
from ..dialects import create_context
from ..errors import InputError, Place, Remark, SubquantError, UsageError
from ..transforms.base import ModulePass
from ..transforms.quantization.verify_quantization import VerifyQuantization
from .ir_printing import NO_PRINTING, IRPrinter, IRPrinting
from .mlir_client import OptResult
from .pipeline import name_of_pass, parse_pipeline, run_pipeline
from .reading import (
    BYTECODE_MAGIC,
    decode_text,
    parse_bytes,
    parse_text,
    without_wrapping,
)

_SEPARATOR = re.compile(r"(?m)^// -----[ \t\r]*$")
_EXPECTED = re.compile(
    r"//\s*expected-(error|remark)\s*(?:@([+-]\d{1,9}|above|below))?\s*\{\{(.*?)\}\}"
)


def run_opt(
    data: bytes,
    file: str,
    passes: str | None,
    *,
    split: bool,
    verify_diagnostics: bool,
    step_context: Callable[[str], AbstractContextManager[None]] = lambda step: nullcontext(),
    on_pass: Callable[[ModulePass], None] | None = None,
    printing: IRPrinting = NO_PRINTING,
    write_dump: Callable[[str], object] = lambda text: None,
) -> OptResult:
    """Parse, run passes and print; UsageError for a wrong pipeline, ParseError for other input.

    Args:
        data: MLIR text or bytecode, an artifact of StableHLO, or a TensorFlow Lite model.
        file: the name in errors.
        passes: a pipeline for `parse_pipeline`, or None to only parse, verify and print. Quantized
            types are verified before the first pass, as in every compilation.
        split: treat the text between ``// -----`` lines as separate modules.
        verify_diagnostics: compare errors and remarks with the comments; print nothing.
        step_context: returns a context for each step that is no pass, ``parse`` or ``print``.
        on_pass: called before each pass.
        printing: the form of the printed modules, and the passes after which they are printed.
        write_dump: called with the modules that are printed after passes.
    """
    steps = parse_pipeline(passes) if passes else []
    if not steps or not isinstance(steps[0], VerifyQuantization):
        steps = [VerifyQuantization(), *steps]
    IRPrinter(printing, write_dump).check_passes([name_of_pass(each) for each in steps])

    def process(source: str | bytes, remarks: list[Remark]) -> str:
        with step_context("parse"):
            context = create_context()
            if isinstance(source, bytes):
                module = parse_bytes(source, context, file)
            else:
                module = parse_text(source, context, file)
        printer = IRPrinter(printing, write_dump)
        run_pipeline(module, steps, on_pass, lambda r: remarks.append(r.in_file(file)), printer)
        with step_context("print"):
            return f"{printing.text_of(module.operation)}\n"

    data = without_wrapping(data, file)
    if data.startswith(BYTECODE_MAGIC) or kind_of(data) in ("tflite", "onnx"):
        if split or verify_diagnostics:
            raise UsageError(f"'{file}' has no text to split or to compare errors with")
        remarks: list[Remark] = []
        text = process(data, remarks)
        return OptResult(text, remarks=remarks)
    source = decode_text(data, file)
    modules = _split_at_separators(source) if split else [source]
    result = OptResult()
    printed = []
    for module_text in modules:
        errors: list[SubquantError] = []
        remarks = []
        try:
            printed.append(process(module_text, remarks))
        except UsageError:
            raise
        except SubquantError as error:
            errors.append(error.in_file(file))
        if verify_diagnostics:
            result.errors += _unexpected(module_text, [*errors, *remarks], file)
        else:
            result.errors += errors
            result.remarks += remarks
    if printed and not verify_diagnostics:
        result.text = "// -----\n\n".join(printed)
    return result


def _split_at_separators(source: str) -> list[str]:
    """Split text at separators; leading empty lines keep the line numbers."""
    modules, start = [], 0
    for match in [*_SEPARATOR.finditer(source), None]:
        end = match.start() if match else len(source)
        modules.append("\n" * source.count("\n", 0, start) + source[start:end])
        start = match.end() if match else end
    return modules


def _unexpected(
    module_text: str, diagnostics: list[SubquantError | Remark], file: str
) -> list[SubquantError]:
    """Compare errors and remarks with the comments of a module; return the differences."""
    expected = []
    for match in _EXPECTED.finditer(module_text):
        line = module_text.count("\n", 0, match.start()) + 1
        offset = {None: 0, "above": -1, "below": 1}.get(match.group(2))
        line += int(match.group(2)) if offset is None else offset
        expected.append((match.group(1), line, match.group(3)))
    wrong: list[SubquantError] = []
    for diagnostic in diagnostics:
        kind = "remark" if isinstance(diagnostic, Remark) else "error"
        line = diagnostic.place.line if diagnostic.place else 0
        met = next((e for e in expected if e[:2] == (kind, line) and e[2] in str(diagnostic)), None)
        if met is None:
            wrong.append(InputError(f"unexpected {kind}: {diagnostic}", Place(file, line, 1)))
        else:
            expected.remove(met)
    for kind, line, text in expected:
        wrong.append(InputError(f"expected {kind} was not produced: {text}", Place(file, line, 1)))
    return wrong
