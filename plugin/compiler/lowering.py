"""Lowering: runs the passes of a compilation, and prepares the module for IREE."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

from ..core._mlir import Operation, in_context_of, ir
from ..emit.parameters import ParameterStore
from ..errors import Remark
from ..signature import CPU_FEATURES_KEY, MAX_CPU_THREADS, REFLECTION_KEY, WORK_KEY, WorkEstimate
from ..transforms.base import EXECUTABLE, ModulePass, is_public, named, walk
from ..transforms.iree_workarounds.check_hand_off import REFLECTION_ATTRIBUTE
from .compile_options import CompileOptions
from .ir_printing import IRPrinter
from .pipeline import compile_pipeline, name_of_pass, run_pipeline

_VERSION_WITH_NAMED_PROPERTIES = 4
"""The bytecode version that writes properties of operations by name."""
_CONVOLUTIONS = ("stablehlo.convolution", "linalg.conv_", "linalg.depthwise_conv_")


def lower(
    module: ir.Module,
    options: CompileOptions,
    on_pass: Callable[[ModulePass], None] | None = None,
    on_remark: Callable[[Remark], None] | None = None,
    parameters: ParameterStore | None = None,
    printer: IRPrinter | None = None,
) -> None:
    """Run the passes of a compilation in place; SubquantError from a pass, with its location."""
    passes = compile_pipeline(options, parameters)
    if printer is not None:
        printer.check_passes([name_of_pass(each) for each in passes])
    run_pipeline(module, passes, on_pass, on_remark, printer)
    if options.device_attribute is not None:
        with in_context_of(module.operation):
            devices = ir.Attribute.parse(f"[{options.device_attribute}]")
            module.operation.attributes["hal.device.targets"] = devices


def has_public_function(module: ir.Module) -> bool:
    """True if there may be a function to run: operations of IREE may define functions."""
    for op in module.body.operations:
        operation = op.operation
        if operation.name != "func.func" or (
            is_public(operation) and len(operation.regions[0].blocks)
        ):
            return True
    return False


def record_cpu_features(module: ir.Module, features: str) -> None:
    """Record the required CPU features in the reflection of each public function."""
    with in_context_of(module.operation):
        for operation, entries in _reflections(module):
            entries[CPU_FEATURES_KEY] = ir.StringAttr.get(features)
            operation.attributes[REFLECTION_ATTRIBUTE] = ir.DictAttr.get(entries)


def recorded_signatures(module: ir.Module) -> dict[str, str]:
    """Return the signatures of the public functions, as JSON, by name."""
    return {
        operation.attributes["sym_name"].value: entries[REFLECTION_KEY].value
        for operation, entries in _reflections(module)
    }


def gains_from_threads(module: ir.Module) -> bool:
    """True if several threads may run a public function in less time than one."""
    works = [entries.get(WORK_KEY) for _, entries in _reflections(module)]
    texts = [None if work is None else WorkEstimate.from_text(work.value) for work in works]
    # A program that does not gain by the most threads does not by fewer.
    return any(
        work is None or work.gains_from_threads(MAX_CPU_THREADS, pool=True) for work in texts
    )


def peels_loops(module: ir.Module, features: str) -> bool:
    """True if IREE should peel remainder loops instead of masking vectors, its default.

    On one thread of Emerald Rapids peeling takes a softmax of 100x1001 from 0.21 to 0.13 ms, an f32
    GEMM of 127x257x131 from 3.9 to 0.12 ms, and row sums of 333x1023 bytes from 0.054 to 0.020 ms.
    As code for Haswell the sums take 0.025 instead of 0.46 ms, because AVX2 has no masks for bytes.
    With AVX512 a MobileNet v2 in f32 takes 46 ms instead of 42, and IREE compiles it in 33 s
    instead of 13: modules with convolutions are not peeled.
    """
    has = features.split(",")
    if "avx512f" in has:
        return not any(
            str(op.name).startswith(_CONVOLUTIONS)
            for op in walk(module.operation, in_kernels=False)
        )
    return "avx2" in has


def _reflections(module: ir.Module) -> Iterator[tuple[Operation, dict[str, ir.Attribute]]]:
    """Yield the functions with a signature, and the entries of their reflection."""
    for op in module.body.operations:
        attributes = op.operation.attributes
        if op.operation.name == "func.func" and REFLECTION_ATTRIBUTE in attributes:
            entries = {each.name: each.attr for each in attributes[REFLECTION_ATTRIBUTE]}
            if REFLECTION_KEY in entries:
                yield op.operation, entries


def bytecode_of(module: ir.Module) -> bytes:
    """Return a module as bytecode.

    Operations without a location get one: IREE 3.13 writes an uninitialized line number of a
    dispatch without a location, and the executable would differ each time.

    Versions before 5 write the properties of operations by name: ``llvm.inline_asm`` has one
    property more in these bindings than in IREE.
    """
    buffer = io.BytesIO()
    with in_context_of(module.operation):
        _locate(module.operation)
        has_assembly = bool(named(module.operation, ["llvm.inline_asm"], in_kernels=True))
    module.operation.write_bytecode(
        buffer, _VERSION_WITH_NAMED_PROPERTIES if has_assembly else None
    )
    return buffer.getvalue()


def _locate(root: Operation) -> None:
    """Set the location of operations without one to the first line of the module."""
    first_line = ir.Location.file("-", 0, 0)

    def visit(op: Operation) -> ir.WalkResult:
        if isinstance(op.location, ir.UnknownLoc):
            op.location = first_line
        elif op.name == EXECUTABLE:  # a kernel, all of which is written for one operation
            return ir.WalkResult.SKIP
        return ir.WalkResult.ADVANCE

    root.walk(visit, ir.WalkOrder.PRE_ORDER)
