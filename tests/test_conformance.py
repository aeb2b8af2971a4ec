"""``subquant conformance``: the oracle, the reading of others' tests, the run, and the verdict.

The oracle is checked three ways: against worked examples, against StableHLO's interpreter on every
program of the suite that it can run, and against itself with a wrong result, which must be seen.
"""

from __future__ import annotations

import json
import re
import signal
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from subquant.cli import main
from subquant.compiler.reading import parse_text
from subquant.conformance import command, oracle, report, suite
from subquant.conformance.cases import (
    SYMBOL,
    Case,
    Outcome,
    Prepared,
    compare,
    prepare,
    programs_cases,
)
from subquant.conformance.command import save_case
from subquant.conformance.oracle import Golden
from subquant.conformance.program import Program, Quantized, Tensor
from subquant.conformance.runner import run_cases
from subquant.conformance.suite_random import random_programs
from subquant.conformance.testdata import llvm_cases, stablehlo_cases
from subquant.dialects import create_context
from subquant.dialects.stablehlo import OPERATIONS
from subquant.errors import InputError
from subquant.runtime import Device

PROGRAMS = {program.name: program for program in suite.programs()}


# -- the suite ------------------------------------------------------------------------------------


def test_the_suite_covers_every_operation() -> None:
    covered = {program.op for program in PROGRAMS.values()}
    quantized = {name.removeprefix("stablehlo.") for name in OPERATIONS}
    assert quantized - covered == set(suite.NOT_EXPRESSIBLE)
    assert len(PROGRAMS) >= 300


def test_every_program_has_expected_results() -> None:
    """`subquant conformance --update-expected` writes them, once for all devices."""
    expected = report.read_expected(report.EXPECTED_FILE)
    assert {f"suite/{name}" for name in PROGRAMS} == {n for n in expected if n.startswith("suite/")}


def test_every_program_is_a_valid_module() -> None:
    context = create_context()
    for program in [*PROGRAMS.values(), *random_programs(100)]:
        parse_text(program.text(), context, program.name)
        if program.interpreted:
            parse_text(program.text(as_float=True), context, program.name)


def test_inputs_are_the_same_each_time_and_in_range() -> None:
    for program in PROGRAMS.values():
        inputs, repeated = program.make_inputs(), program.make_inputs()
        for tensor, array, other in zip(program.arguments, inputs, repeated, strict=True):
            assert array.shape == tensor.shape
            assert array.tobytes() == other.tobytes()
            if isinstance(tensor.element, Quantized):
                low, high = tensor.element.range
                assert not array.size or low <= array.min() <= array.max() <= high


# -- the oracle -----------------------------------------------------------------------------------


def test_quantize_follows_the_specification_other_reading() -> None:
    i8 = Quantized("i8", 0.5, 1)
    x = np.array([0.25, 0.75, -0.25, 100, -100, np.inf, -np.inf, np.nan], np.float32)
    assert oracle.quantize(x, i8).tolist() == [2, 2, 0, 127, -128, 127, -128, 0]
    u4 = Quantized("u4", 0.25, 7, bounds=(1, 14))
    assert oracle.quantize(np.array([np.nan, 9.0], np.float32), u4).tolist() == [1, 14]
    # 4.1 + 127 is 131.1 and saturates; in bf16 the step at 128 is 1.
    assert oracle.quantize(np.array([4.1]), Quantized("i16", 1.0, 127, expressed="bf16")) == [131]
    assert oracle.quantize(np.array([1e10]), Quantized("i32", 1.0)) == [2**31 - 1]


def test_dequantize_rounds_when_asked() -> None:
    tenth = Quantized("i8", 0.1)
    assert oracle.dequantize(np.array([10], np.int8), tenth)[0] == 10 * float(np.float32(0.1))
    assert oracle.dequantize(np.array([10], np.int8), tenth, "all")[0] == 1.0


def test_f16_may_overflow_in_products_only() -> None:
    """i32 in f16: a difference may be an infinity there, or be multiplied before it is rounded."""
    types = [Quantized("i32", scale, expressed="f16") for scale in (0.0625, 0.25, 1.0)]
    left, right, result = (Tensor((3,), each) for each in types)
    program = Program("x", "divide", (left, right), (result,), "", "divide")
    inputs = [np.array([2**31 - 1, 1000, 2**31 - 1]), np.array([200_000, 200_000, 2**31 - 1])]
    [golden] = oracle.goldens(program, [each.astype(np.int32) for each in inputs])
    assert golden.value.tolist() == [2684, 0, 0]  # exactly 2684.35, 0.001 and 0.25
    assert golden.other is not None
    assert golden.once is not None
    assert golden.other.tolist() == [0, 0, 0]  # inf / inf, 62.5 / inf
    assert golden.once.tolist() == [2**31 - 1, 0, 0]  # inf / 50,000
    got = np.array([2**31 - 1, 0, 0], np.int32)
    assert compare(got, golden).message == ""
    assert compare(got + 1, golden).message


def test_blocks_and_axes_have_their_own_scales() -> None:
    axis = Quantized("i8", (1.0, 2.0), (0, 1), axis=1)
    assert oracle.dequantize(np.array([[3, 3]], np.int8), axis).tolist() == [[3.0, 4.0]]
    blocks = Quantized("i8", ((1.0, 2.0), (3.0, 4.0)), blocks=((0, 1), (1, 2)))
    stored = np.ones((2, 4), np.int8)
    assert oracle.dequantize(stored, blocks).tolist() == [[1, 1, 2, 2], [3, 3, 4, 4]]


def test_the_four_wrong_cases_have_the_right_goldens() -> None:
    def golden(name: str) -> list[int]:
        program = PROGRAMS[name]
        return oracle.goldens(program, program.make_inputs())[0].value.ravel().tolist()

    assert golden("dot_general/wraps-instead-of-saturating") == [127]
    assert golden("dot_general/truncates-instead-of-rounding") == [2]
    assert golden("dot_general/first-scale-for-all") == [32, 16]
    assert golden("uniform_quantize/i32u-special")[7] == 2**31 - 1


def test_near_ties_accept_the_neighbour_and_nothing_else() -> None:
    i8 = Quantized("i8", 1.0)
    golden = oracle.quantize_real(np.array([2.5, 2.4999999, 2.49, 200.0]), i8)
    assert golden.neighbour is not None
    assert golden.value.tolist() == [2, 2, 2, 127]
    assert golden.neighbour.tolist() == [3, 3, 2, 127]
    assert compare(np.array([3, 3, 2, 127], np.int8), golden).near_ties == 2
    assert compare(np.array([2, 2, 3, 127], np.int8), golden).message


def test_goldens_agree_with_the_reference_interpreter() -> None:
    """Every operation: NumPy in float64 against StableHLO's interpreter in f64."""
    chosen: dict[str, list[Program]] = {}
    for program in PROGRAMS.values():
        if program.interpreted and program.runs:
            chosen.setdefault(program.op, []).append(program)
    some = [program for group in chosen.values() for program in group[::4]]
    some += [program for program in random_programs(40) if program.interpreted]
    outcomes = run_cases(programs_cases(some), "interpreter", 2)
    assert len(outcomes) == len(some) > 150
    assert [o for o in outcomes if not o.passes] == []


def test_a_wrong_golden_is_seen_by_the_interpreter() -> None:
    program = replace(PROGRAMS["multiply/i8-i8-to-i8"], oracle="add")
    (outcome,) = run_cases(programs_cases([program]), "interpreter", 1)
    assert outcome.status == "wrong"
    assert "elements differ, the first at [" in outcome.message


# -- comparing ------------------------------------------------------------------------------------


def test_floats_compare_by_bits_or_by_a_bound() -> None:
    exact = Golden(np.array([1.0, np.nan], np.float32))
    assert compare(np.array([1.0, np.nan], np.float32), exact).message == ""
    next_value = np.nextafter(1.0, 2, dtype="f4")
    assert "1 of 2" in compare(np.array([next_value, np.nan], "f4"), exact).message
    zero = Golden(np.array([0.0], np.float32))
    assert compare(np.array([-0.0], np.float32), zero).message
    bounded = Golden(np.array([1.0, 2.0], np.float32), bound=np.array([0.1, 0.0]))
    assert compare(np.array([1.05, 2.0], np.float32), bounded).message == ""
    assert "[1]" in compare(np.array([1.0, 2.01], np.float32), bounded).message
    assert compare(np.array([1.0, np.nan], np.float32), bounded).message


def test_another_shape_or_type_is_wrong() -> None:
    golden = Golden(np.zeros(2, np.int8))
    assert "expected shape (2,)" in compare(np.zeros(3, np.int8), golden).message
    assert "uint8" in compare(np.zeros(2, np.uint8), golden).message


# -- running --------------------------------------------------------------------------------------

ON_DEVICES = (
    "uniform_quantize/i8-special", "uniform_dequantize/i4", "uniform_quantize/i8-to-i8b",
    "qcast/blocks-u4-8", "dcast/axis-i8:0", "add/i8-i8b-to-i8f", "tanh/u8-to-u8",
    "multiply/i8p-i8p-to-i8c", "compare/NE-i8-i8b", "dot_general/i8-to-i8",
    "dot_general/wraps-instead-of-saturating", "dot_general/truncates-instead-of-rounding",
    "dot_general/first-scale-for-all", "dot_general/axis-to-axis-i32", "dot_general/hybrid",
    "dot_general/i8-scale-near-one", "convolution/nhwc-same-i8-to-i8",
    "convolution/nchw-oihw-axis-to-axis-i32", "reduce/add-i8-in-i32", "reduce/two-operands",
    "reduce_window/padded-maximum-i8", "pad/i8", "transpose/axis", "while/i8",
)  # fmt: skip


def _chosen() -> list[Case]:
    return programs_cases([PROGRAMS[name] for name in ON_DEVICES])


def test_a_part_of_the_suite_on_llvm_cpu() -> None:
    outcomes = run_cases(_chosen(), "llvm-cpu", 2)
    assert [o.name for o in outcomes] == [f"suite/{name}" for name in ON_DEVICES]
    assert [o for o in outcomes if not o.passes] == []
    assert sum(o.elements for o in outcomes) > 300


@pytest.mark.vulkan
def test_a_part_of_the_suite_on_vulkan(vulkan: Device) -> None:
    outcomes = run_cases(_chosen(), "vulkan", 2)
    expected = report.read_expected(report.EXPECTED_FILE)
    unexpected = report.judge(outcomes, expected)
    assert [o for o in outcomes if o.key in unexpected and not o.passes] == []
    assert sum(o.passes for o in outcomes) >= len(ON_DEVICES) - 1


def _case(text: str, inputs: list[np.ndarray], golden: list[int] | None = None) -> Case:
    value = np.array(golden or [2, 4], np.int32)
    body = text.replace("@f", f"@{SYMBOL}")
    return Case("own/case", "add", prepared=Prepared(body, inputs, [Golden(value)]))


DOUBLE = "func.func @f(%x: tensor<2xi32>) -> tensor<2xi32> {\n" \
         "  %y = arith.addi %x, %x : tensor<2xi32>\n  return %y : tensor<2xi32>\n}"  # fmt: skip
REFUSED = "func.func @f(%x: tensor<2xi32>) -> tensor<2xi32> {\n" \
          '  %y = "other.op"(%x) : (tensor<2xi32>) -> tensor<2xi32>\n' \
          "  return %y : tensor<2xi32>\n}"  # fmt: skip
ONE_TWO = [np.array([1, 2], np.int32)]


def test_one_refused_case_does_not_spoil_its_batch() -> None:
    cases = [
        replace(_case(DOUBLE, ONE_TWO), name="a"),
        replace(_case(REFUSED, ONE_TWO), name="b"),
        replace(_case(DOUBLE, ONE_TWO, [2, 5]), name="c"),
        replace(_case(DOUBLE, [np.zeros(3, np.int32)]), name="d"),
    ]
    outcomes = run_cases(cases, "llvm-cpu", 1)
    assert [o.status for o in outcomes] == ["pass", "unsupported", "wrong", "error"]
    assert "'other.op'" in outcomes[1].message
    assert outcomes[2].message == (
        "result 0: 1 of 2 elements differ, the first at [1]: expected 5, got 4"
    )


def test_an_exception_is_a_crash_of_its_case() -> None:
    broken = replace(_case(DOUBLE, ONE_TWO), name="broken", prepared=None)  # no program either
    outcomes = run_cases([replace(_case(DOUBLE, ONE_TWO), name="a"), broken], "llvm-cpu", 1)
    assert [(o.name, o.status) for o in outcomes] == [("a", "pass"), ("broken", "crash")]
    assert "AssertionError at cases.py" in outcomes[1].message


def test_a_process_that_ends_is_a_crash_of_its_case() -> None:
    """The interpreter aborts on an operation that it does not know."""
    norm = replace(PROGRAMS["batch_norm_inference/i8-2d"], interpreted=True)
    cases = programs_cases([PROGRAMS["add/i8-i8-to-i8"], norm, PROGRAMS["abs/i8-to-i8"]])
    outcomes = run_cases(cases, "interpreter", 1)
    assert [o.status for o in outcomes] == ["pass", "crash", "pass"]
    assert "batch_norm_inference is unsupported" in outcomes[1].message


def test_lowering_only() -> None:
    (outcome,) = run_cases(programs_cases([PROGRAMS["send/i8"]]), "llvm-cpu", 1)
    assert outcome.status == "legalized"


def test_a_case_is_saved_and_replayed(tmp_path: Path) -> None:
    case = programs_cases([PROGRAMS["qcast/i8-special"]])[0]
    command = save_case(case, tmp_path)
    words = command.split()
    assert words[:2] == ["subquant", "exec"]
    result = CliRunner().invoke(main, words[1:])
    assert result.exit_code == 0, result.output
    assert "1 of 1 results are as expected" in result.output


# -- others' tests --------------------------------------------------------------------------------

QUANTIZED_FILE = """\
// RUN: nothing

module {
  func.func @main() -> tensor<i1> {
    %golden = stablehlo.constant dense<[1.0, 15.5]> : tensor<2xf32>
    %x = stablehlo.constant dense<[1.0, 100.0]> : tensor<2xf32>
    %q = stablehlo.uniform_quantize %x
        : (tensor<2xf32>) -> tensor<2x!quant.uniform<i8:f32, 0.125:3>>
    %y = stablehlo.uniform_dequantize %q
        : (tensor<2x!quant.uniform<i8:f32, 0.125:3>>) -> tensor<2xf32>
    %ok = stablehlo.custom_call @check.eq(%golden, %y)
        : (tensor<2xf32>, tensor<2xf32>) -> tensor<i1>
    return %ok : tensor<i1>
  }
}

// -----

func.func @plain() {
  %a = stablehlo.constant dense<[1, 7]> : tensor<2xi4>
  %b = stablehlo.constant dense<-1> : tensor<2xi4>
  %c = stablehlo.add %a, %b : tensor<2xi4>
  "check.expect_eq_const"(%c) <{value = dense<[0, 6]> : tensor<2xi4>}> : (tensor<2xi4>) -> ()
  return
}

// -----

func.func @complex() {
  %0 = stablehlo.constant dense<[(1.0, 2.0), (-3.0, 0.5)]> : tensor<2xcomplex<f32>>
  %1 = stablehlo.multiply %0, %0 : tensor<2xcomplex<f32>>
  "check.expect_almost_eq_const"(%1) <{value = dense<[(-3.0, 4.0), (8.75, -3.0)]> : tensor<2xcomplex<f32>>}> : (tensor<2xcomplex<f32>>) -> ()
  return
}

// -----

func.func @constant() {
  %a = stablehlo.constant dense<[1, 2]> : tensor<2xi4>
  "check.expect_eq_const"(%a) <{value = dense<[1, 2]> : tensor<2xi4>}> : (tensor<2xi4>) -> ()
  return
}
"""  # noqa: E501 - a line of theirs

PRETTY_FILE = """\
func.func @same() {
  %a = stablehlo.constant dense<[4.0, 15.0]> : tensor<2xf32>
  %b = stablehlo.abs %a : tensor<2xf32>
  check.expect_almost_eq_const %b, dense<[4.0, 15.00005]> : tensor<2xf32>
  func.return
}

// -----

func.func @same() {
  %a = stablehlo.constant dense<[4.0, 15.0]> : tensor<2xf32>
  %b = stablehlo.negate %a : tensor<2xf32>
  check.expect_almost_eq_const %b, dense<[-4.4, -15.0]>, tolerance = 0.5 : tensor<2xf32>
  func.return
}
"""


def _checkout(root: Path, quantized: str, pretty: str | None = None) -> Path:
    folder = root / "stablehlo/testdata/quantized"
    folder.mkdir(parents=True)
    (folder / "own_qi8.mlir").write_text(quantized)
    if pretty is not None:
        (root / "stablehlo/tests/interpret").mkdir(parents=True)
        (root / "stablehlo/tests/interpret/quantized_ops.mlir").write_text(pretty)
    return root


def test_constants_become_arguments_and_checks_goldens(tmp_path: Path) -> None:
    cases = stablehlo_cases(_checkout(tmp_path, QUANTIZED_FILE, PRETTY_FILE))
    assert [case.name for case in cases] == [
        "stablehlo/own_qi8:main", "stablehlo/own_qi8:plain", "stablehlo/own_qi8:complex",
        "stablehlo/own_qi8:constant", "stablehlo/quantized_ops:same",
        "stablehlo/quantized_ops:same.2",
    ]  # fmt: skip
    prepared = [prepare(case) for case in cases]
    assert all("constant" not in p.text and "check" not in p.text for p in prepared)
    assert prepared[0].inputs[0].tolist() == [1.0, 100.0]
    assert prepared[0].goldens[0].value.tolist() == [1.0, 15.5]
    assert [a.tolist() for a in prepared[1].inputs] == [[1, 7], [-1, -1]]
    assert prepared[1].goldens[0].value.dtype == np.int8
    assert [a.tolist() for a in prepared[2].inputs] == [[1, -3], [2, 0.5]]
    assert [g.value.tolist() for g in prepared[2].goldens] == [[-3, 8.75], [4, -3]]
    assert prepared[3].inputs[0].tolist() == prepared[3].goldens[0].value.tolist() == [1, 2]
    bounds = [p.goldens[0].bound for p in prepared[4:]]
    assert bounds[0] is not None
    assert bounds[1] is not None
    assert (bounds[0][0], bounds[1][0]) == (1e-4, 0.5)
    assert [case.op for case in cases] == [
        "uniform_quantize", "add", "multiply", "uniform_quantize", "abs", "negate"
    ]  # fmt: skip


@pytest.mark.parametrize("device", ["interpreter", "llvm-cpu"])
def test_read_cases_run(tmp_path: Path, device: str) -> None:
    cases = stablehlo_cases(_checkout(tmp_path, QUANTIZED_FILE, PRETTY_FILE))
    assert [o.status for o in run_cases(cases, device, 1)] == ["pass"] * 6
    wrong = QUANTIZED_FILE.replace("15.5", "15.500001")  # within StableHLO's tolerance
    (tmp_path / "stablehlo/testdata/quantized/own_qi8.mlir").write_text(wrong)
    assert run_cases(stablehlo_cases(tmp_path)[:1], device, 1)[0].status == "wrong"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func @f() { return }", r"own_qi8.mlir:1:1: error: 'func.func' op has no check"),
        ("func.func @f() { oops }", r"own_qi8.mlir:1:18: error: "),
        (
            "func.func @f() {\n  %a = stablehlo.constant dense<1> : tensor<i32>\n"
            '  "check.expect_odd_const"(%a) {value = dense<1> : tensor<i32>} : (tensor<i32>) -> ()'
            "\n  return\n}",
            r"own_qi8.mlir:3:3: error: 'check.expect_odd_const' op is a check that is not known",
        ),
    ],
)
def test_files_of_another_form_are_located_errors(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        stablehlo_cases(_checkout(tmp_path, text))


def test_a_file_that_kills_the_parser_is_an_error(tmp_path: Path) -> None:
    text = "#C = #sparse_tensor.encoding<{}>\nfunc.func @f(tensor<4xf32, #C>)"
    file = _checkout(tmp_path, text) / "stablehlo/testdata/quantized/own_qi8.mlir"
    result = _invoke("--stablehlo", str(tmp_path), "--list")
    assert result.exit_code == 1
    crash = f"{file}: error: upstream's MLIR crashed while it parsed the module (SIG"
    assert (result.stderr.count("\n"), result.stderr[: len(crash)]) == (1, crash)
    assert file.read_text() == text


def test_places_in_later_parts_are_those_of_the_file(tmp_path: Path) -> None:
    broken = QUANTIZED_FILE.replace("%b = stablehlo.constant", "%b = stablehlo.oops")
    with pytest.raises(Exception, match=r"own_qi8.mlir:21:8: error: "):
        stablehlo_cases(_checkout(tmp_path, broken))


LLVM_FILE = """\
// RUN: nothing

!qalias = !quant.uniform<i8:f32, 1.0>
func.func @fine(%x: tensor<4xf32>) -> tensor<4x!qalias> {
  %q = quant.qcast %x : tensor<4xf32> to tensor<4x!qalias>
  return %q : tensor<4x!qalias>
}

// -----
// expected-error@+1 {{illegal storage type size}}
!qalias = !quant.uniform<i33:f32, 0.5:127>

// -----

func.func @wrong(%x: f32) {
  // expected-error@below {{operand #0 must be quantized}}
  %0 = quant.dcast %x : f32 to f32
  return
}

// -----

func.func @accepted_but_should_not(%x: f32) {
  // expected-error@+1 {{something}}
  return
}

// -----

func.func @refused_but_should_not(%x: f32) {
  %0 = quant.dcast %x : f32 to f32
  return
}

// -----

// Only a comment.

// -----

func.func @elsewhere(%x: f32) {
  // expected-error@+2 {{on another line}}
  %0 = quant.dcast %x : f32 to f32
  return
}

// -----

func.func @unsupported(%x: tensor<2x!quant.uniform<i8:f32, 1.0>>) {
  "other.op"(%x) : (tensor<2x!quant.uniform<i8:f32, 1.0>>) -> ()
  return
}
"""


def test_verdicts(tmp_path: Path) -> None:
    folder = tmp_path / "mlir/test/Dialect/Quant/Bytecode"
    folder.mkdir(parents=True)
    (folder / "own.mlir").write_text(LLVM_FILE)
    cases = llvm_cases(tmp_path)
    assert [case.name for case in cases] == [
        f"llvm/Bytecode/own.mlir:{n}" for n in (0, 1, 2, 3, 4, 6, 7)
    ]
    outcomes = run_cases(cases, "llvm-cpu", 1)
    statuses = ["pass", "pass", "pass", "wrong", "wrong", "wrong", "refused"]
    assert [o.status for o in outcomes] == statuses
    assert outcomes[3].message == "accepted, and an error is expected"
    assert "refused as invalid, and it is valid" in outcomes[4].message
    assert "expected an error on line 5, got: -:4:" in outcomes[5].message
    assert "'other.op'" in outcomes[6].message


# -- reports --------------------------------------------------------------------------------------

OUTCOMES = [
    Outcome("suite/a", "add", "llvm-cpu", "pass", 10, 1, 2, seconds=0.25),
    Outcome("suite/b", "add", "llvm-cpu", "wrong", 10, message="expected 1, got 2 \x1b<&"),
    Outcome("suite/c", "sine", "llvm-cpu", "unsupported", message="-:1:1: error: no"),
    Outcome("suite/d", "send", "llvm-cpu", "legalized"),
    Outcome("suite/a", "add", "vulkan", "pass", 10),
]
EXPECTED = {
    "suite/a": {"llvm-cpu": "pass", "vulkan": "wrong"},
    "suite/b": {"llvm-cpu": "pass"},
    "suite/c": {"llvm-cpu": "unsupported"},
}


def test_regressions_and_new_passes() -> None:
    assert report.judge(OUTCOMES, EXPECTED) == {("suite/b", "llvm-cpu"), ("suite/a", "vulkan")}
    assert {name for name, _ in report.judge(OUTCOMES, {})} == {"suite/b", "suite/c"}


def test_expected_results_are_merged_and_read_back(tmp_path: Path) -> None:
    text = report.updated_expected(OUTCOMES[:2], {"suite/a": {"vulkan": "wrong"}, "suite/z": {}})
    file = tmp_path / "expected.json"
    file.write_text(text)
    assert report.read_expected(file) == {
        "suite/a": {"llvm-cpu": "pass", "vulkan": "wrong"},
        "suite/b": {"llvm-cpu": "wrong"},
        "suite/z": {},
    }
    assert text.splitlines()[1] == '  "suite/a": {"llvm-cpu": "pass", "vulkan": "wrong"},'


# -- the command ----------------------------------------------------------------------------------


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["conformance", *arguments])


def test_the_command_shows_a_table_and_writes_files(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("o.json", "o.xml", "e.json")]
    json_file, junit_file, expected_file = files
    chosen = ("--filter", "suite/(abs|qcast)/i8b?-(to-i8$|special)", "--device",
              "interpreter,llvm-cpu", "--jobs", "1", "--expected", expected_file)  # fmt: skip
    result = _invoke(*chosen, "--update-expected")
    assert result.exit_code == 0, result.output
    assert re.search(r"abs +1/1 +1/1", result.output)
    assert re.search(r"qcast +- +2/2", result.output)
    result = _invoke(*chosen, "--json", json_file, "--junit", junit_file)
    assert result.exit_code == 0, result.output
    assert json.loads(Path(json_file).read_text())["summary"] == {
        "interpreter": {"pass": 1}, "llvm-cpu": {"pass": 3},
    }  # fmt: skip
    assert len(ElementTree.parse(junit_file).findall(".//testcase")) == 4


@pytest.mark.parametrize(
    ("ends", "status"), [(KeyboardInterrupt(), 1), (SystemExit(128 + signal.SIGTERM), 143)]
)
def test_a_run_that_is_ended_shows_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: BaseException, status: int
) -> None:
    def run(cases, device, jobs, progress, **options):
        first = cases[0]
        progress(Outcome(first.name, first.op, device, "wrong", message="is 2, expected 3"))
        raise ends

    monkeypatch.setattr(command, "run_cases", run)
    written = tmp_path / "o.json"
    result = _invoke("--filter", "^suite/abs/", "--device", "interpreter", "--json", str(written))
    assert result.exit_code == status
    assert re.search(r"abs +0/1", result.output)
    assert "is 2, expected 3" in result.output
    assert re.search(r"missing: \d+ results: the run was ended", result.output)
    assert not written.exists()


def test_a_regression_fails_and_a_new_pass_fails_if_strict(tmp_path: Path) -> None:
    checkout = _checkout(tmp_path, QUANTIZED_FILE.replace("15.5", "15.25"))
    expected = tmp_path / "expected.json"
    base = ("--stablehlo", str(checkout), "--filter", "own_qi8", "--device", "interpreter",
            "--expected", str(expected))  # fmt: skip
    expected.write_text('{"version": 1, "results": {}}')
    result = _invoke(*base, "--save", str(tmp_path / "saved"))
    assert result.exit_code == 1
    assert "regressions: 1" in result.output
    assert "stablehlo/own_qi8:main on interpreter: wrong: result 0: 1 of 2" in result.output
    assert (tmp_path / "saved/stablehlo_own_qi8_main.mlir").is_file()
    assert _invoke(*base, "--update-expected").exit_code == 0
    assert _invoke(*base).exit_code == 0
    (checkout / "stablehlo/testdata/quantized/own_qi8.mlir").write_text(QUANTIZED_FILE)
    result = _invoke(*base)
    assert (result.exit_code, "newly passing: 1" in result.output) == (0, True)
    assert _invoke(*base, "--strict").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--filter", "("), 2, "error: '(' is no regular expression"),
        (("--filter", "no such case"), 2, "error: no case matches 'no such case'"),
        (("--device", "tpu"), 2, "error: no device is named 'tpu'; expected an IREE device URI or"),
        (("--device", ","), 2, "error: expected at least one device"),
        (("--jobs", "x"), 2, "'x' is not a valid integer"),
        (("--stablehlo", "missing"), 1, "error: 'missing' has no folder 'stablehlo/testdata"),
        (("--llvm", "missing"), 1, "error: 'missing' has no folder 'mlir/test/Dialect/Quant'"),
        (("--expected", "missing.json"), 1, "error: cannot read 'missing.json'"),
    ],
)
def test_wrong_calls(
    arguments: tuple[str, ...], status: int, message: str, in_temporary_folder: Path
) -> None:
    result = _invoke("--filter", "suite/abs/i8-to-i8$", *arguments)
    assert result.exit_code == status
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("text", ["[]", "{", '{"version": 2, "results": {}}', "\xff",
                                  '{"version": 1, "results": {"a": 1}}'])  # fmt: skip
def test_expected_results_of_another_form(tmp_path: Path, text: str) -> None:
    file = tmp_path / "e.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=re.escape(str(file))):
        report.read_expected(file)


def test_list_and_help() -> None:
    result = _invoke("--list", "--filter", "first-scale")
    assert result.output == "suite/dot_general/first-scale-for-all\n"
    assert "subquant conformance --device llvm-cpu,vulkan" in _invoke("--help").output


def test_a_program_shows_its_types() -> None:
    element = Quantized("i4", ((1e-5,), (2.0,)), ((1,), (0,)), blocks=((0, 1), (1, 2)))
    assert Tensor((2, 2), element, (0,)).text() == (
        "tensor<?x2x!quant.uniform<i4:f32:{0:1,1:2}, {{1.0e-05:1}, {2.0:0}}>>"
    )
    assert Tensor((2,), "f32").text(as_float=True) == "tensor<2xf64>"
