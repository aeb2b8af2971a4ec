"""``run_opt`` and ``parse_pipeline``: splitting, expected errors, options, refusals."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.ir_printing import IRPrinting
from subquant.compiler.opt import OptResult, run_opt
from subquant.compiler.pipeline import UpstreamPass, compile_pipeline, parse_pipeline, run_pipeline
from subquant.compiler.reading import BYTECODE_MAGIC, parse_text
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.errors import ParseError, SubquantError, UnsupportedError, UsageError
from subquant.transforms import PASSES, load_pass
from subquant.transforms.base import ModulePass
from subquant.transforms.iree_workarounds.check_hand_off import CheckHandOff
from subquant.transforms.iree_workarounds.legalize_integer_widths import LegalizeIntegerWidths
from subquant.transforms.quantization.lower_quant_casts import LowerQuantCasts
from subquant.transforms.quantization.verify_quantization import VerifyQuantization

RAGGED = "func.func private @f(tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>>)"
DIVISIBLE = "must be divisible by the block size"
EMPTY = "module {\n}\n\n"


def opt(
    text: str | bytes, passes: str | None = None, *, split: bool = False, verify: bool = False
) -> OptResult:
    data = text if isinstance(text, bytes) else text.encode()
    return run_opt(data, "in.mlir", passes, split=split, verify_diagnostics=verify)


# -- printing and splitting -----------------------------------------------------------------------


def test_a_module_is_printed() -> None:
    assert opt("") == OptResult(EMPTY, [])


CONSTANTS = """
func.func @f() -> (tensor<2xi32>, tensor<2xi32>) {
  %0 = arith.constant dense<[1, 2]> : tensor<2xi32>
  %1 = arith.constant dense<[1, 2]> : tensor<2xi32>
  return %0, %1 : tensor<2xi32>, tensor<2xi32>
}
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"all": True}, ["verify-quantization", "cse", "canonicalize"]),
        ({"change": True}, ["cse"]),
        ({"all": True, "change": True}, ["cse"]),
        ({"": ("canonicalize,cse",)}, ["cse", "canonicalize"]),
        ({"": ("cse", "canonicalize"), "change": True}, ["cse"]),
        ({"": ("canonicalize",), "change": True}, []),
        ({}, []),
    ],
)
def test_modules_are_printed_after_passes(options: dict[str, Any], expected: list[str]) -> None:
    fields = {f"mlir_print_ir_after_{name}".rstrip("_"): each for name, each in options.items()}
    printing = IRPrinting(**fields, mlir_elide_elementsattrs_if_larger=1)
    dumps: list[str] = []
    result = run_opt(
        CONSTANTS.encode(),
        "in.mlir",
        "cse,canonicalize{max-iterations=3}",
        split=False,
        verify_diagnostics=False,
        printing=printing,
        write_dump=dumps.append,
    )
    assert [re.match("// -----// IR Dump After (.*) //----- //\n", d)[1] for d in dumps] == expected
    for each in dumps:
        is_first = "verify-quantization" in each
        assert each.count("dense_resource<__elided__>") == 1 + is_first
    assert result.text.count("dense_resource<__elided__>") == 1


def test_parts_are_printed_apart() -> None:
    result = opt("func.func private @a()\n// -----\nfunc.func private @b()", split=True)
    first, second = result.text.split("// -----\n\n")
    assert "@a" in first
    assert "@b" in second
    assert not result.errors


SEPARATORS = ("// -----", "// -----  ", "// -----\r")


@pytest.mark.parametrize("line", [*SEPARATORS, "  // -----", "// ----", "// ----- x"])
def test_separators(line: str) -> None:
    result = opt(f"func.func private @f()\n{line}\nfunc.func private @f()\n", split=True)
    if line in SEPARATORS:
        assert result.text.count("@f") == 2
        assert not result.errors
    else:
        assert [error.message for error in result.errors] == ["redefinition of symbol named 'f'"]


def test_without_splitting_the_separator_is_a_comment() -> None:
    result = opt("func.func private @a()\n// -----\nfunc.func private @b()")
    assert result.text == "module {\n  func.func private @a()\n  func.func private @b()\n}\n\n"


def test_an_error_in_a_part_does_not_stop_the_others() -> None:
    result = opt(f"func.func private @a()\n// -----\n{RAGGED}\n// -----\n{{\n", split=True)
    assert result.text == "module {\n  func.func private @a()\n}\n\n"
    assert [str(error.place) for error in result.errors] == ["in.mlir:3:1", "in.mlir:5:1"]


def test_an_error_leaves_nothing_to_print() -> None:
    result = opt(RAGGED, "verify-quantization")
    assert result.text is None
    assert [str(error.place) for error in result.errors] == ["in.mlir:1:1"]


def test_quantized_types_are_verified_before_any_pass() -> None:
    assert DIVISIBLE in str(opt(RAGGED).errors[0])
    assert DIVISIBLE in str(opt(RAGGED, "canonicalize").errors[0])


def test_bytecode() -> None:
    module = parse_text("func.func private @f()", create_context())
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    data = buffer.getvalue()
    assert data.startswith(BYTECODE_MAGIC)
    assert opt(data, "canonicalize").text == "module {\n  func.func private @f()\n}\n\n"
    for options in ({"split": True}, {"verify": True}):
        with pytest.raises(UsageError, match="has no text to split"):
            opt(data, **options)


def test_neither_text_nor_bytecode() -> None:
    with pytest.raises(ParseError, match=r"'in.mlir' is neither MLIR bytecode nor UTF-8 text"):
        opt(b"module {}\xff")


# -- expected errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"// expected-error @+1 {{{{{DIVISIBLE}}}}}\n{RAGGED}",
        f"// expected-error@+1 {{{{{DIVISIBLE}}}}}\n{RAGGED}",
        f"// expected-error @below {{{{{DIVISIBLE}}}}}\n{RAGGED}",
        f"// expected-error @+2 {{{{{DIVISIBLE}}}}}\n\n{RAGGED}",
        f"{RAGGED} // expected-error {{{{{DIVISIBLE}}}}}",
        f"{RAGGED}\n// expected-error @above {{{{{DIVISIBLE}}}}}",
        f"{RAGGED}\n// expected-error @-1 {{{{{DIVISIBLE}}}}}",
    ],
)
def test_an_expected_error_is_no_error(text: str) -> None:
    assert opt(text, verify=True) == OptResult(None, [])


def test_expected_errors_keep_their_lines_in_later_parts() -> None:
    part = f"// expected-error @+1 {{{{{DIVISIBLE}}}}}\n{RAGGED}\n"
    assert opt(f"{part}// -----\n\n{part}", split=True, verify=True) == OptResult(None, [])


def test_nothing_expected_and_nothing_wrong() -> None:
    assert opt("func.func private @f()", verify=True) == OptResult(None, [])


def test_an_unexpected_error() -> None:
    (error,) = opt(f"\n{RAGGED}", verify=True).errors
    assert str(error).startswith("in.mlir:2:1: error: unexpected error: in.mlir:2:1: error: ")
    assert DIVISIBLE in error.message


def test_an_error_that_did_not_come() -> None:
    (error,) = opt("// expected-error @+1 {{nothing}}\n", verify=True).errors
    assert str(error) == "in.mlir:2:1: error: expected error was not produced: nothing"


@pytest.mark.parametrize("comment", ["@+2 {{divisible}}", "@+1 {{divided}}"])
def test_an_error_elsewhere_or_of_another_text_is_both(comment: str) -> None:
    errors = opt(f"// expected-error {comment}\n{RAGGED}\n", verify=True).errors
    assert ["unexpected error" in str(error) for error in errors] == [True, False]
    assert "expected error was not produced" in str(errors[1])


def test_one_expectation_meets_one_error() -> None:
    twice = f"// expected-error @+2 {{{{{DIVISIBLE}}}}}\n" * 2
    (error,) = opt(f"{twice}{RAGGED}", verify=True).errors
    assert "expected error was not produced" in str(error)


# -- pipelines ------------------------------------------------------------------------------------


def test_passes_are_parsed() -> None:
    assert parse_pipeline("verify-quantization") == [VerifyQuantization()]
    assert parse_pipeline(" verify-quantization , lower-quant-casts{ } ,canonicalize ") == [
        VerifyQuantization(),
        LowerQuantCasts(),
        UpstreamPass("canonicalize"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "lower-quant-casts{rounding=toward-zero division=exact}",
        "lower-quant-casts{rounding=toward-zero,division=exact}",
        "lower-quant-casts{ division=exact  rounding=toward-zero }",
    ],
)
def test_options_are_parsed(text: str) -> None:
    assert parse_pipeline(text) == [LowerQuantCasts("toward-zero", "exact")]


def test_integer_options_are_integers() -> None:
    assert parse_pipeline("legalize-integer-widths{containers=32}") == [LegalizeIntegerWidths(32)]


def test_upstream_passes_keep_their_text() -> None:
    assert parse_pipeline("func.func(canonicalize,cse),cse") == [
        UpstreamPass("func.func(canonicalize,cse)"),
        UpstreamPass("cse"),
    ]
    (single,) = parse_pipeline("canonicalize{max-iterations=2 region-simplify=disabled}")
    assert single == UpstreamPass("canonicalize{max-iterations=2 region-simplify=disabled}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected at least one pass; see 'subquant opt --list-passes'"),
        (",cse", "expected the name of a pass at ',cse' in ',cse'"),
        ("cse,", "expected the name of a pass after ',' in 'cse,'"),
        ("cse,,cse", "expected the name of a pass at ',cse' in 'cse,,cse'"),
        ("cse cse", "expected ',' between passes at 'cse' in 'cse cse'"),
        ("cse}", "expected ',' between passes at '}' in 'cse}'"),
        ("1cse", "expected the name of a pass at '1cse' in '1cse'"),
        ("lower-quant-casts{rounding=", "'{rounding=' has no closing bracket"),
        ("verify-quantization{deep=1}",
         "pass 'verify-quantization' has no option 'deep=1'; expected name=value with a name "
         "among: none"),
        ("lower-quant-casts{rounding}",
         "pass 'lower-quant-casts' has no option 'rounding'; expected name=value with a name "
         "among: rounding, division"),
        ("lower-quant-casts{rounding=}",
         "option 'rounding' of lower-quant-casts must be one of nearest-even, toward-zero, got ''"),
        *((f"legalize-integer-widths{{containers={wrong}}}",
           f"option 'containers' of legalize-integer-widths must be one of 8, 32, got '{wrong}'")
          for wrong in ("x", "16")),
    ],
)  # fmt: skip
def test_a_pipeline_that_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_pipeline(text)
    assert caught.value.message == message


def test_an_unknown_pass_names_those_there_are() -> None:
    module = parse_text("", create_context())
    with pytest.raises(UsageError, match="no pass is named 'no-such-pass'") as caught:
        run_pipeline(module, parse_pipeline("no-such-pass"))
    for name in PASSES:
        assert name in caught.value.message
    with pytest.raises(UsageError, match="no pass is named 'nothing'"):
        load_pass("nothing")


def test_a_wrong_option_of_an_upstream_pass_is_a_usage_error() -> None:
    with pytest.raises(UsageError) as caught:
        opt("", "canonicalize{nonsense=1}")
    expected = "pass 'canonicalize{nonsense=1}' cannot be created: no such option nonsense"
    assert caught.value.message == expected


def test_upstream_passes_run_on_modules_and_on_functions() -> None:
    text = "func.func private @f() {\n  %y = arith.constant 1 : i32\n  return\n}"
    assert "constant" in opt(text).text
    assert "constant" not in opt(text, "cse").text
    assert "@f" not in opt(text, "symbol-dce").text  # private and not used


@pytest.mark.parametrize(
    ("operation", "name"),
    [("arith.negf", "convert-elementwise-to-linalg"),
     ("stablehlo.abs", "stablehlo-legalize-to-linalg")],
)  # fmt: skip
def test_passes_of_dialects_are_known(operation: str, name: str) -> None:
    text = f"func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {{\n  %y = {operation} %x"
    text += " : tensor<4xf32>\n  return %y : tensor<4xf32>\n}"
    assert "linalg.generic" in opt(text, name).text


class Breaker(ModulePass):
    """A pass that leaves an invalid module: an operation outside of where it may be."""

    name = "breaker"

    def run(self, module):
        with ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]):
            ir.Operation.create("func.return")


def test_the_module_is_verified_after_each_pass() -> None:
    module = parse_text("func.func private @f()", create_context(), "in.mlir")
    with pytest.raises(UnsupportedError) as caught:
        run_pipeline(module, [Breaker()])
    assert caught.value.place is not None


def test_passes_are_announced_in_order() -> None:
    module = parse_text("", create_context())
    seen: list[ModulePass] = []
    steps = parse_pipeline("verify-quantization,cse")
    run_pipeline(module, steps, seen.append)
    assert seen == steps


def test_the_pipeline_of_a_compilation() -> None:
    cpu = compile_pipeline(CompileOptions())
    for_vulkan = {"bound-loops", "expand-sign-extension", "isolate-contraction-operands"}
    for_cpu = {"estimate-work", "raise-attention"}
    with_kernels = {"select-kernels"}  # this device has no kernels
    on_request = {
        "check-integer-only",
        "legalize-qdq-to-quantized-op",
        "legalize-quantized-op-to-qdq",
        "quant-legalize-to-tosa-rescale",
        "tosa-rescale-legalize-to-stablehlo",
    }
    assert [step.name for step in cpu if step.name] == [
        name for name in PASSES if name not in for_vulkan | on_request
    ]
    upstream = [n for n, step in enumerate(cpu) if not step.name]
    assert [cpu[n + 1].name for n in upstream] == ["select-kernels"]
    assert LowerQuantCasts("nearest-even", "native") in cpu
    assert cpu[-1] == CheckHandOff("llvm-cpu", functions=True)
    vulkan = compile_pipeline(
        CompileOptions("vulkan", rounding="toward-zero", vulkan_target="generic-32bit")
    )
    for_bytes = {"pack-narrow-storage"}  # two elements a byte, which this device lacks
    nearest = {"fold-constant-casts"}
    names = [step.name for step in vulkan]
    inlined = names.index("correct-zero-points") - 1  # upstream's, which has no name here
    assert vulkan[inlined] == UpstreamPass(text="inline{default-pipeline=}")
    del names[inlined]
    assert names == [
        name
        for name in PASSES
        if name not in on_request | for_cpu | with_kernels | for_bytes | nearest
    ]
    with_bytes = compile_pipeline(CompileOptions("vulkan", vulkan_target="generic"))
    names = [step.name for step in with_bytes if step.name]
    assert names == [name for name in PASSES if name not in on_request | for_cpu]
    assert LowerQuantCasts("toward-zero", "deferred") in vulkan
    assert LegalizeIntegerWidths(32) in vulkan
    assert vulkan[-1] == CheckHandOff("vulkan:generic-32bit", functions=True)
    integer_only = compile_pipeline(CompileOptions(integer_only=True))
    assert "check-integer-only" in [step.name for step in integer_only]


def test_every_error_is_ours() -> None:
    for text in ("func.func @f(", "}", '"', "\0", "func.func @f() { return } }", "!a = !b"):
        result = opt(text)
        assert result.text is None
        assert all(isinstance(error, SubquantError) for error in result.errors)
        assert len(result.errors) == 1
