"""MLIR in a child process: the functions that `mlir_client` calls there.

Each function takes JSON values, blobs and a function that reports steps
(`subquant.isolation.client.call`), and returns JSON values and blobs. A ``source`` is ``{"file":
name}`` with ``"path"``, or with a blob instead. Imports that only some functions need are inside
them.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from ..core._mlir import in_context_of, ir, refuse_non_utf8_names, skip_operation_classes
from ..core.files import read_input
from ..dialects import create_context
from ..errors import Remark, SubquantError, UnsupportedError, error_to_json
from ..importers.options import AS_IN_FILE, ImportOptions
from ..isolation.child import ReportStep
from ..isolation.limits import set_time_limit, time_limit
from ..transforms.base import EXECUTABLE, ModulePass, is_public, walk
from .compile_options import CompileOptions
from .ir_printing import IRPrinter, IRPrinting
from .pipeline import NAMED_PIPELINES, passes_of, run_pipeline, text_of_pass
from .reading import parse_bytes

Answer = tuple[Any, list[bytes]]

skip_operation_classes()  # only child processes import this module


def lower_module(arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep) -> Answer:
    """Parse a module and run the passes of a compilation; the blob is text or bytecode.

    The value has fields of a `subquant.compiler.mlir_client.LoweredModule`; for text, remarks only.
    """
    from .constant_hoisting import hoists_constants
    from .lowering import (
        bytecode_of,
        gains_from_threads,
        has_public_function,
        lower,
        peels_loops,
        record_cpu_features,
        recorded_signatures,
    )

    options = CompileOptions(**arguments["options"])
    remarks: list[Remark] = []
    on_remark = remarks.append if options.explain else None
    module = _parse(arguments, blobs, steps, options.import_options, on_remark)
    printing = IRPrinting(**arguments["printing"])
    printer = IRPrinter(printing, partial(_write_dump, steps)) if printing.selects_passes else None
    described: dict[str, Any] = {}
    if arguments["parameters"] is None:
        lower(module, options, _limiting(arguments, steps), on_remark, printer=printer)
    else:
        from .parameter_archive import program_archive  # which reads files of weights

        with program_archive(arguments["parameters"], arguments["weights"]) as archive:
            on_pass, store = _limiting(arguments, steps), archive.parameters
            lower(module, options, on_pass, on_remark, store, printer)
            set_time_limit(None)
            steps("parameters")
            archive.finish(module)
    described["remarks"] = [asdict(remark) for remark in remarks]
    if arguments["cpu_features"]:
        record_cpu_features(module, arguments["cpu_features"])
    with _limited("print", arguments, steps):
        if arguments["emit"] == "mlir":
            return described, [(printing.text_of(module.operation) + "\n").encode()]
        described |= {
            "is_runnable": has_public_function(module),
            "signature_texts": recorded_signatures(module),
            "gains_from_threads": gains_from_threads(module),
            "peels_loops": peels_loops(module, arguments["cpu_features"]),
            "hoists_constants": hoists_constants(module),
        }
        return described, [bytecode_of(module)]


def optimize(arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep) -> Answer:
    """Run ``subquant opt``."""
    from .opt import run_opt

    result = run_opt(
        blobs[0],
        arguments["source"]["file"],
        arguments["passes"],
        split=arguments["split"],
        verify_diagnostics=arguments["verify_diagnostics"],
        step_context=lambda step: _limited(step, arguments, steps),
        on_pass=_limiting(arguments, steps),
        printing=IRPrinting(**arguments["printing"]),
        write_dump=partial(_write_dump, steps),
    )
    value = {
        "has_text": result.text is not None,
        "errors": [error_to_json(error) for error in result.errors],
        "remarks": [asdict(remark) for remark in result.remarks],
    }
    return value, [(result.text or "").encode()]


def inspect(arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep) -> Answer:
    """Describe the quantized tensors of a module."""
    from ..transforms.quantization.verify_quantization import VerifyQuantization
    from ..transforms.raising.raise_dequantization import RaiseDequantization
    from ..transforms.raising.raise_linalg import RaiseLinalg
    from ..transforms.torch.legalize_torch import LegalizeTorch
    from .inspected_tensors import to_fields, with_source_names
    from .tensor_inspection import inspect_module

    module = _parse(arguments, blobs, steps)
    passes = [LegalizeTorch(), VerifyQuantization(), RaiseLinalg(), RaiseDequantization()]
    run_pipeline(module, passes, _limiting(arguments, steps))
    set_time_limit(None)
    steps("inspect")
    text = _data(arguments, blobs).decode(errors="replace")
    with refuse_non_utf8_names():
        tensors = with_source_names(inspect_module(module), text)
    return to_fields(tensors)


def describe_model(arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep) -> Answer:
    """Describe the model of the file ``path`` with the name ``file`` and the importer ``kind``.

    The importer lists the operators that it refuses. If it refuses none, the passes of a
    compilation for llvm-cpu run too, and may refuse functions that IREE does not have. IREE itself
    does not run: its refusals of single dispatches take a compilation to find.
    """
    inspection = importlib.import_module(f"..importers.{arguments['kind']}.inspection", __package__)
    data = read_input(arguments["path"])
    model, blobs = inspection.inspect_file(arguments, [data], steps)
    operators = [each for graph in model["graphs"] for each in graph["operators"]]
    if not model["refused"] and not any(each["refused"] for each in operators):
        steps("lower")
        model["refused"] = _refusal(data, arguments["path"], arguments["file"])
    return model, blobs


def _refusal(data: bytes, path: str, file: str) -> str | None:
    """Return the message of the first pass that refuses a model; None if none does."""
    from .lowering import lower

    try:
        lower(parse_bytes(data, create_context(), file, path=path), CompileOptions())
    except SubquantError as error:
        name = f"'{error.op_name}' " if error.op_name else ""
        return f"{name}{error.message}"
    return None


_INTERPRETED = ("func.", "stablehlo.", "chlo.", "quant.", "subquant.")


def interpretable(arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep) -> Answer:
    """Lower a module to operations of StableHLO's interpreter; the value has the signatures."""
    from ..transforms.iree_workarounds.check_hand_off import signature_of

    module = _parse(arguments, blobs, steps)
    for op in walk(module.operation):
        if not op.name.startswith(_INTERPRETED):
            raise UnsupportedError(
                "is not an operation that StableHLO's interpreter evaluates; it takes functions of "
                "stablehlo, chlo, quant and subquant operations",
                op,
            )
    passes = passes_of(NAMED_PIPELINES["interpreter"])
    run_pipeline(module, passes, _limiting(arguments, steps))
    signatures = {}
    with in_context_of(module.operation), refuse_non_utf8_names():
        for op in module.body.operations:
            operation = op.operation
            if operation.name == "func.func" and is_public(operation):
                name = operation.attributes["sym_name"].value
                signatures[name] = signature_of(operation).to_json()
    with _limited("print", arguments, steps):
        # StableHLO's own form of some operations is not read again.
        return signatures, [module.operation.get_asm(print_generic_op_form=True).encode()]


def external_files(arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep) -> Answer:
    """Return the names of an ONNX model's external data files."""
    from ..importers.onnx.reading.reader import external_files

    with _limited("parse", arguments, steps):
        return external_files(_data(arguments, blobs), arguments["source"]["file"]), []


def text_of(arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep) -> Answer:
    """Return a module as text for IREE's parser.

    This does not read the alignment of a ``memref.alloca`` in the short form, so a module with
    kernels is printed in the generic form.
    """
    module = _parse(arguments, blobs, steps).operation
    has_kernels = any(op.operation.name == EXECUTABLE for op in module.regions[0].blocks[0])
    return None, [module.get_asm(print_generic_op_form=has_kernels).encode()]


def _parse(
    arguments: dict[str, Any],
    blobs: list[bytes],
    steps: ReportStep,
    options: ImportOptions = AS_IN_FILE,
    on_remark: Callable[[Remark], None] | None = None,
) -> ir.Module:
    source = arguments["source"]
    with _limited("parse", arguments, steps):
        context, data = create_context(), _data(arguments, blobs)
        return parse_bytes(data, context, source["file"], options, on_remark, source.get("path"))


def _data(arguments: dict[str, Any], blobs: list[bytes]) -> bytes:
    source = arguments["source"]
    return read_input(source["path"]) if "path" in source else blobs[0]


@contextlib.contextmanager
def _limited(step: str, arguments: dict[str, Any], steps: ReportStep) -> Iterator[None]:
    """Report a step outside of passes, and limit its time."""
    steps(step)
    with time_limit(arguments["parse_seconds"]):
        yield


def _write_dump(steps: ReportStep, text: str) -> None:
    """Send a module to the standard error of the parent, which has it before a later crash."""
    steps("", output=text)


def _limiting(arguments: dict[str, Any], steps: ReportStep) -> Callable[[ModulePass], None]:
    """Return a function that reports each pass with its options, and limits its time."""

    def on_pass(step: ModulePass) -> None:
        text = text_of_pass(step)
        steps(f"pass {step.name or text}", text)
        set_time_limit(arguments["pass_seconds"])

    return on_pass
