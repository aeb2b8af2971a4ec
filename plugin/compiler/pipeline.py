"""Pipelines: lists of passes with options, parsed from text, and the pipeline of ``compile``.

The text is that of ``mlir-opt``: ``verify-quantization,lower-quant-casts{rounding=toward-zero}``. A
name that is not in `subquant.transforms.PASSES` is one of upstream's or StableHLO's C++ passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

from ..core._mlir import (
    in_context_of,
    ir,
    passmanager,
    refuse_non_utf8_names,
    register_upstream_passes,
    translate_errors,
)
from ..core.option_fields import parse_option, spelling_of
from ..emit.operation import types_cached
from ..emit.parameters import ParameterStore
from ..errors import Remark, UnsupportedError, UsageError, expected_name, near_names, quoted
from ..kernels.isa.registry import INSTRUCTION_SETS, fastest_instruction_set
from ..kernels.select.gpu import GPU_INSTRUCTIONS, SPIRV, SPIRV_CPU
from ..transforms import PASSES, load_pass
from ..transforms.base import UNCHANGED, ModulePass, beside_kernels
from .compile_options import CompileOptions
from .ir_printing import IRPrinter
from .iree_driver import recorded_features
from .targets import VULKAN_KERNELS

Step: TypeAlias = tuple[str, dict[str, Any]]
"""The name of a pass and its options."""


@dataclass(frozen=True)
class UpstreamPass(ModulePass):
    """An upstream pass, by its text for ``mlir-opt``."""

    name: ClassVar[str] = ""

    text: str = ""

    def run(self, module: ir.Operation) -> None:
        """Run the pass on `module`; an MLIR error is raised as UnsupportedError with its place."""
        register_upstream_passes()
        manager = None
        for pipeline in (self.text, f"func.func({self.text})"):
            try:
                manager = passmanager.PassManager.parse(f"builtin.module({pipeline})")
                break
            except (ValueError, ir.MLIRError) as error:
                reason = str(error).strip().splitlines()[0].rpartition(": ")[2]
        if manager is None and "does not refer to a registered pass" not in reason:
            raise UsageError(f"pass '{self.text}' cannot be created: {reason}")
        if manager is None:
            name = name_of_pass(self)
            similar = near_names(name, [*PASSES, *NAMED_PIPELINES, *_UPSTREAM_PASSES])
            advice = expected_name(name, similar or PASSES, "a C++ pass or one of")
            raise UsageError(f"no pass is named {quoted(self.text)}; {advice}")
        with translate_errors(UnsupportedError, f"pass '{self.text}' failed"):
            manager.run(module)


_UPSTREAM_PASSES = (
    *("canonicalize", "cse", "inline", "symbol-dce", "sccp", "strip-debuginfo"),
    *("loop-invariant-code-motion", "chlo-legalize-to-stablehlo", "shape-legalize-to-stablehlo"),
    *("stablehlo-canonicalize-dynamism", "stablehlo-legalize-to-linalg"),
    *("stablehlo-legalize-qdq-to-quantized-op", "stablehlo-legalize-quantized-op-to-qdq"),
    *("stablehlo-legalize-quant-to-math", "stablehlo-refine-arguments", "stablehlo-refine-shapes"),
)
"""Common upstream and StableHLO passes, for suggestions: MLIR does not list its passes."""


def name_of_pass(step: ModulePass) -> str:
    """Return the name of a pass; of upstream's ones without their options."""
    return step.name or re.split(r"[{(]", getattr(step, "text", ""))[0]


def text_of_pass(step: ModulePass) -> str:
    """Return a pass with its options, in the syntax of `parse_pipeline`."""
    if isinstance(step, UpstreamPass):
        return step.text
    options_with_defaults = [
        (spelling_of(each), getattr(step, each.name), each.default) for each in fields(step)
    ]
    options = [
        f"{name.replace('_', '-')}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value, default in options_with_defaults
        if value != default
    ]
    return f"{step.name}{{{' '.join(options)}}}" if options else step.name


NAMED_PIPELINES: dict[str, list[Step]] = {
    "interpreter": [
        ("verify-quantization", {}),
        ("canonicalize-reductions", {}),
        ("legalize-quant-to-math", {"casts": "stablehlo"}),
        ("correct-zero-points", {}),
        ("lower-requantization", {}),
        ("lower-saturation", {}),
        ("convert-quantized-to-storage", {}),
        ("chlo-legalize-to-stablehlo", {}),
        ("canonicalize", {}),
        ("shape-legalize-to-stablehlo", {}),
        ("stablehlo-canonicalize-dynamism", {}),
    ],
}
"""Names for several passes in the text of a pipeline.

``interpreter`` lowers a quantized program to operations of StableHLO's reference interpreter.
"""


def passes_of(steps: Sequence[Step]) -> list[ModulePass]:
    """Return the passes of a pipeline; upstream's by their names."""
    return [
        load_pass(name)(**options) if name in PASSES else UpstreamPass(text=name)
        for name, options in steps
    ]


_NAME = re.compile(r"\s*([A-Za-z][A-Za-z0-9_.-]*)\s*")


def parse_pipeline(text: str) -> list[ModulePass]:
    """Parse a list of passes with options; UsageError for bad text, an unknown pass or option."""
    passes: list[ModulePass] = []
    position = 0
    while position < len(text):
        match = _NAME.match(text, position)
        if match is None:
            raise UsageError(f"expected the name of a pass at '{text[position:]}' in '{text}'")
        name, position = match.group(1), match.end()
        options = ""
        if position < len(text) and text[position] in "{(":
            end = _closing(text, position)
            options = text[position : end + 1]
            position = end + 1
        if name in NAMED_PIPELINES and not options:
            passes += passes_of(NAMED_PIPELINES[name])
        else:
            passes.append(_create(name, options))
        rest = text[position:].lstrip()
        if rest and not rest.startswith(","):
            raise UsageError(f"expected ',' between passes at '{rest}' in '{text}'")
        position = len(text) - len(rest) + 1
        if rest == ",":
            raise UsageError(f"expected the name of a pass after ',' in '{text}'")
    if not passes:
        raise UsageError("expected at least one pass; see 'subquant opt --list-passes'")
    return passes


def _closing(text: str, start: int) -> int:
    depth = 0
    for position in range(start, len(text)):
        if text[position] in "{(":
            depth += 1
        elif text[position] in ")}":
            depth -= 1
            if not depth:
                return position
    raise UsageError(f"'{text[start:]}' has no closing bracket")


def _create(name: str, options: str) -> ModulePass:
    if name not in PASSES:
        return UpstreamPass(text=name + options)
    pass_class = load_pass(name)
    known = {spelling_of(field): field for field in fields(pass_class)}
    values: dict[str, Any] = {}
    for item in re.split(r"[\s,]+", options.strip("{}").strip()) if options else ():
        if not item:
            continue
        key, separator, value = item.partition("=")
        field = known.get(key.replace("-", "_"))
        if field is None or not separator:
            names = [option.replace("_", "-") for option in known]
            wrong = key if field is None else ""  # or only its value is missing
            advice = expected_name(wrong, names, "name=value with a name among")
            raise UsageError(f"pass '{name}' has no option {quoted(item)}; {advice}")
        values[field.name] = parse_option(pass_class, field.name, value, name, spelling_of(field))
    return pass_class(**values)


def run_pipeline(
    module: ir.Module,
    passes: Sequence[ModulePass],
    on_pass: Callable[[ModulePass], None] | None = None,
    on_remark: Callable[[Remark], None] | None = None,
    printer: IRPrinter | None = None,
) -> None:
    """Run passes on a module in place, and verify it after each pass that changes it.

    Kernels, which passes do not change, are verified with the whole module at the end.

    Args:
        on_pass: called before each pass (for progress).
        on_remark: called with the remarks of passes (their options request them).
        printer: prints the module after passes.

    Raises:
        SubquantError: from a pass, with its location.
    """
    operation = module.operation
    is_verified = False
    for step in passes:
        if on_pass is not None:
            on_pass(step)
        with in_context_of(operation), refuse_non_utf8_names(), types_cached():
            if printer is not None:
                printer.before_pass(operation)
            remarks = step.run(operation)
            if remarks is not UNCHANGED:
                for remark in remarks or ():
                    if on_remark is not None:
                        on_remark(remark)
                name = step.name or getattr(step, "text", "")
                with translate_errors(UnsupportedError, f"the module is not valid after '{name}'"):
                    operations = beside_kernels(operation)
                    for op in operations:
                        op.verify()
                    is_verified = operations == [operation]
            if printer is not None:
                printer.after_pass(name_of_pass(step), operation)
    if not is_verified:
        invalid = translate_errors(UnsupportedError, "the module is not valid")
        with in_context_of(operation), refuse_non_utf8_names(), invalid:
            operation.verify()


_VULKAN_EXPANSIONS = (
    *("divide_exactly", "separate_bytes", "split_groups", "split_sums", "widen_bf16"),
    "widen_bodies",
)


def compile_pipeline(
    options: CompileOptions, parameters: ParameterStore | None = None
) -> list[ModulePass]:
    """Return the passes of a compilation."""
    is_vulkan = options.target == "vulkan"
    division = "deferred" if is_vulkan else "native"
    zero_points = options.zero_points
    if zero_points == "auto":
        # IREE 3.13 multiplies 32-bit integers on x86 whatever the storage is, and up to 1.7 times
        # faster where the left one is computed (scripts/benchmark_zero_points.py).
        zero_points = "after" if is_vulkan else "mixed"
    requantization = {
        "requantization": options.requantization,
        "fixed_point_rounding": options.fixed_point_rounding,
    }
    instructions = _instructions(options)
    steps: list[Step] = [
        ("legalize-constants", {}),
        ("legalize-torch", {}),
        ("verify-quantization", {}),
        # Ahead of the passes that lower TOSA to linalg: its remarks name the user's operations.
        ("raise-linalg", {"explain": options.explain}),
        ("convert-tosa-to-storage", {}),
        ("lower-tosa-variables", {}),
        ("lower-tosa-rescale", {}),
        ("lower-tosa", {}),
        ("canonicalize-reductions", {}),
        *([("pack-narrow-storage", {})] if options.containers == 8 else []),
        ("raise-dequantization", {}),
        *([] if is_vulkan or instructions == "none" else [("raise-attention", {})]),
        ("contract-storage", {"explain": options.explain}),
        (
            "fuse-block-contractions",
            {"activations": options.activations, "explain": options.explain},
        ),
        *([("fold-constant-casts", {})] if options.rounding == "nearest-even" else []),
        ("legalize-quant-to-math", {"division": division}),
        ("narrow-requantization", {}),
        # IREE inlines too, and the passes for Vulkan depend on it. Calls of kernels, which come
        # next, crash the inliner.
        *([("inline{default-pipeline=}", {})] if is_vulkan else []),
        *([] if is_vulkan else [("estimate-work", {"instructions": instructions})]),
        *(
            [
                ("cse", {}),  # kernels contain no duplicate or unused computation
                (
                    "select-kernels",
                    {
                        "instructions": instructions,
                        "integer_only": options.integer_only,
                        "rounding": options.rounding,
                        "fuse_below_macs": options.fuse_below_macs,
                        "explain": options.explain,
                        "parameters": parameters,
                        **requantization,
                    },
                ),
            ]
            if instructions != "none"
            else []
        ),
        ("correct-zero-points", {"style": zero_points}),
        ("lower-requantization", requantization),
        ("lower-saturation", {}),
        ("lower-block-contractions", {"division": division, "min_gemm_rows": 4}),
        ("lower-attention", {}),
        ("lower-packed-storage", {"containers": options.containers}),
        ("lower-quant-casts", {"rounding": options.rounding, "division": division}),
        ("convert-quantized-to-storage", {}),
        ("narrow-byte-sums", {}),
        *([("check-integer-only", {})] if options.integer_only else []),
        ("separate-variables", {}),
        ("order-variables", {}),
        (
            "expand-stablehlo",
            {
                "separate_booleans": not is_vulkan,
                "round_by_addition": not is_vulkan,
                "separate_squares": not is_vulkan,
                "separate_reductions": not is_vulkan,
                **dict.fromkeys(_VULKAN_EXPANSIONS, is_vulkan),
            },
        ),
        ("lower-unranked-tensors", {}),
        ("box-half-scalars", {}),
        ("legalize-integer-widths", {"containers": options.containers}),
        ("fold-constants", {}),
        *(
            [
                ("expand-sign-extension", {}),
                ("isolate-contraction-operands", {}),
                ("bound-loops", {}),
            ]
            if is_vulkan
            else []
        ),
        ("check-hand-off", {"target": options.label, "functions": not options.iree_flags}),
    ]
    return passes_of(steps)


def _vulkan_kernels(options: CompileOptions) -> str:
    if options.kernels not in ("auto", SPIRV, SPIRV_CPU):
        raise UsageError(
            f"kernels '{options.kernels}' are those of CPUs; choose 'auto', '{SPIRV}', "
            f"'{SPIRV_CPU}' or 'none' for {options.target}"
        )
    if options.containers != 8:
        return "none"
    if options.kernels == "auto":
        return VULKAN_KERNELS.get(options.vulkan_target, SPIRV)
    return options.kernels


def _instructions(options: CompileOptions) -> str:
    """Return the instruction set of the kernels of a compilation, "none" for no kernels.

    Raises:
        UsageError: LLVM does not know the CPU, or it lacks the instructions.
        EnvironmentProblem: as for `recorded_features`.
    """
    if options.kernels == "none":
        return "none"
    if options.target == "vulkan":
        return _vulkan_kernels(options)
    features = recorded_features(options).split(",")
    if options.kernels == "auto":
        return fastest_instruction_set(features).name
    if options.kernels in GPU_INSTRUCTIONS:
        raise UsageError(
            f"kernels '{options.kernels}' are those of vulkan; choose 'auto' or another target"
        )
    missing = INSTRUCTION_SETS[options.kernels].features.difference(features)
    if missing:
        raise UsageError(
            f"kernels '{options.kernels}' need {', '.join(sorted(missing))}, which the CPU "
            f"'{options.target_cpu}' does not have; choose 'auto' or another CPU"
        )
    return options.kernels
