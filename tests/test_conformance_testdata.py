"""``subquant conformance`` on tests of StableHLO and LLVM: their files are read, run and judged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from command_line import call
from subquant.conformance.cases import prepare
from subquant.conformance.runner import run_cases
from subquant.conformance.testdata import llvm_cases, stablehlo_cases

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
    assert [None if bound is None else bound[0] for bound in bounds] == [1e-4, 0.5]
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
        pytest.param(
            QUANTIZED_FILE.replace("%b = stablehlo.constant", "%b = stablehlo.oops"),
            r"own_qi8.mlir:21:8: error: ", id="in a later part",
        ),
        (
            "func.func @f() {\n  %a = stablehlo.constant dense<1> : tensor<i32>\n"
            '  "check.expect_odd_const"(%a) {value = dense<1> : tensor<i32>} : (tensor<i32>) -> ()'
            "\n  return\n}",
            r"own_qi8.mlir:3:3: error: 'check.expect_odd_const' op is a check that is not known",
        ),
    ],
)  # fmt: skip
def test_files_of_another_form_are_located_errors(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        stablehlo_cases(_checkout(tmp_path, text))


def test_a_file_that_kills_the_parser_is_an_error(tmp_path: Path) -> None:
    text = "#C = #sparse_tensor.encoding<{}>\nfunc.func @f(tensor<4xf32, #C>)"
    file = _checkout(tmp_path, text) / "stablehlo/testdata/quantized/own_qi8.mlir"
    result = call("conformance", "--stablehlo", str(tmp_path), "--list")
    assert result.exit_code == 1
    crash = f"{file}: error: upstream's MLIR crashed while it parsed the module (SIG"
    assert (result.stderr.count("\n"), result.stderr[: len(crash)]) == (1, crash)
    assert file.read_text() == text


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


def test_a_regression_fails_and_a_new_pass_fails_if_strict(tmp_path: Path) -> None:
    checkout = _checkout(tmp_path, QUANTIZED_FILE.replace("15.5", "15.25"))
    expected = tmp_path / "expected.json"
    base = ("--stablehlo", str(checkout), "--filter", "own_qi8", "--device", "interpreter",
            "--expected", str(expected))  # fmt: skip
    expected.write_text('{"version": 1, "results": {}}')
    result = call("conformance", *base, "--save", str(tmp_path / "saved"))
    assert result.exit_code == 1
    assert "regressions: 1" in result.output
    assert "stablehlo/own_qi8:main on interpreter: wrong: result 0: 1 of 2" in result.output
    assert (tmp_path / "saved/stablehlo_own_qi8_main.mlir").is_file()
    assert call("conformance", *base, "--update-expected").exit_code == 0
    assert call("conformance", *base).exit_code == 0
    (checkout / "stablehlo/testdata/quantized/own_qi8.mlir").write_text(QUANTIZED_FILE)
    result = call("conformance", *base)
    assert (result.exit_code, "newly passing: 1" in result.output) == (0, True)
    assert call("conformance", *base, "--strict").exit_code == 1
