"""``subquant conformance``: the oracle, the reading of others' tests, the run, and the verdict.

The oracle is checked three ways: against worked examples, against StableHLO's interpreter on every
program of the suite that it can run, and against itself with a wrong result, which must be seen.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import succeed
from subquant.compiler.reading import parse_text
from subquant.conformance import oracle, report, suite
from subquant.conformance.cases import SYMBOL, Case, Prepared, compare, programs_cases
from subquant.conformance.command import save_case
from subquant.conformance.oracle import Golden
from subquant.conformance.program import Program, Quantized, Tensor
from subquant.conformance.runner import run_cases
from subquant.conformance.suite_random import random_programs
from subquant.dialects import create_context
from subquant.dialects.stablehlo import OPERATIONS
from subquant.runtime import Device

PROGRAMS = {program.name: program for program in suite.programs()}


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
    golden = oracle.quantize_real(np.array([2.5, 2.4999999, 2.49, 200.0]), Quantized("i8", 1.0))
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


def test_floats_compare_by_bits_or_by_a_bound() -> None:
    exact = Golden(np.array([1.0, np.nan], np.float32))
    assert compare(np.array([1.0, np.nan], np.float32), exact).message == ""
    next_value = np.nextafter(1.0, 2, dtype="f4")
    assert "1 of 2" in compare(np.array([next_value, np.nan], "f4"), exact).message
    assert compare(np.array([-0.0], np.float32), Golden(np.array([0.0], np.float32))).message
    bounded = Golden(np.array([1.0, 2.0], np.float32), bound=np.array([0.1, 0.0]))
    assert compare(np.array([1.05, 2.0], np.float32), bounded).message == ""
    assert "[1]" in compare(np.array([1.0, 2.01], np.float32), bounded).message
    assert compare(np.array([1.0, np.nan], np.float32), bounded).message


def test_another_shape_or_type_is_wrong() -> None:
    golden = Golden(np.zeros(2, np.int8))
    assert "expected shape (2,)" in compare(np.zeros(3, np.int8), golden).message
    assert "uint8" in compare(np.zeros(2, np.uint8), golden).message


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
    unexpected = report.judge(outcomes, report.read_expected(report.EXPECTED_FILE))
    assert [o for o in outcomes if o.key in unexpected and not o.passes] == []
    assert sum(o.passes for o in outcomes) >= len(ON_DEVICES) - 1


def _case(text: str, inputs: list[np.ndarray], golden: list[int] | None = None) -> Case:
    value = np.array(golden or [2, 4], np.int32)
    body = text.replace("@f", f"@{SYMBOL}")
    return Case("own/case", "add", prepared=Prepared(body, inputs, [Golden(value)]))


DOUBLE = """func.func @f(%x: tensor<2xi32>) -> tensor<2xi32> {
  %y = arith.addi %x, %x : tensor<2xi32>
  return %y : tensor<2xi32>
}"""
REFUSED = DOUBLE.replace("arith.addi %x, %x :", '"other.op"(%x) : (tensor<2xi32>) ->')
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
    words = save_case(programs_cases([PROGRAMS["qcast/i8-special"]])[0], tmp_path).split()
    assert words[:2] == ["subquant", "exec"]
    assert "1 of 1 results are as expected" in succeed(*words[1:]).output


def test_a_program_shows_its_types() -> None:
    element = Quantized("i4", ((1e-5,), (2.0,)), ((1,), (0,)), blocks=((0, 1), (1, 2)))
    assert Tensor((2, 2), element, (0,)).text() == (
        "tensor<?x2x!quant.uniform<i4:f32:{0:1,1:2}, {{1.0e-05:1}, {2.0:0}}>>"
    )
    assert Tensor((2,), "f32").text(as_float=True) == "tensor<2xf64>"
