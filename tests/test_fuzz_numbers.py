"""Short runs of ``scripts/fuzz numbers`` and ``graphs``, which find wrong results."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from programs import LONG, load_script
from subquant.compiler.compile_options import CompileOptions
from subquant.conformance.interpreter import interpret
from subquant.kernels.epilogue import requant_analysis
from subquant.runtime import Device


@pytest.fixture(scope="module")
def fuzz() -> Any:
    return load_script("fuzz_numbers")


def show(failures: list[Any]) -> str:
    return "\n".join(f"{each.kind}:{each.number}: {each.reason}" for each in failures)


@pytest.mark.parametrize("kind", ["chains", "requantizations", "rescales"])
@pytest.mark.share(6)
def test_programs_give_their_numbers(fuzz: Any, kind: str) -> None:
    failures = fuzz.run(3, kind, range(48 if LONG else 4), fuzz.instructions_here()[:1])
    assert not failures, show(failures)


def test_proved_lines_are_right(fuzz: Any) -> None:
    cases = [fuzz.draw_program(3, "monotone", number) for number in range(400 if LONG else 30)]
    checks = [fuzz.check_monotone(case) for case in cases]
    assert [reason for reason, _ in checks if reason] == []
    assert sum(is_proved for _, is_proved in checks) > len(checks) / 3


@pytest.mark.parametrize("kind", ["chains", "requantizations"])
def test_numbers_are_those_of_the_reference_interpreter(fuzz: Any, kind: str) -> None:
    """The reference interpreter computes the expected results a second time."""
    checked = 0
    for number in range(30):
        program = fuzz.draw_program(5, kind, number)
        if program.contraction.accumulators().size > 600:
            continue
        results = interpret(program.text("main"), program.arguments())
        for each, expected in zip(results, program.expected(), strict=True):
            each = each.astype(expected.dtype)
            np.testing.assert_array_equal(each, expected, err_msg=str(number))
        checked += 1
    assert checked > 5


def test_a_wrong_program_is_minimized_and_saved(
    fuzz: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each exclusive or counts as wrong."""

    def compared(programs: dict[str, Any], kernels: str) -> dict[str, str]:
        return {
            name: f"kernels {kernels}: result 0 is wrong"
            for name, program in programs.items()
            if any(step.op == "xor" for step in program.steps)
        }

    monkeypatch.setattr(fuzz, "_compared", compared)
    monkeypatch.setattr(fuzz, "FAILURES", tmp_path)
    monkeypatch.setattr(sys, "argv", ["fuzz", "--kinds", "chains", "--count", "24"])
    with pytest.raises(SystemExit) as ended:
        fuzz.main()
    assert ended.value.code == 1
    assert "24 programs, " in capsys.readouterr().out
    folders = sorted(tmp_path.iterdir())
    assert folders
    for folder in folders:
        kind, _, number = folder.name.partition("-")
        text = (folder / "program.mlir").read_text()
        steps = [line for line in text.splitlines() if " %v" in line or "%v" in line.split("=")[0]]
        assert len(steps) <= len(fuzz.draw_program(0, kind, int(number)).steps) + 1
        assert sum("stablehlo.xor" in line for line in steps) == 1
        results = interpret(text, [np.load(each) for each in sorted(folder.glob("argument_*"))])
        expected = [np.load(each) for each in sorted(folder.glob("expected_*"))]
        for one, other in zip(results, expected, strict=True):
            np.testing.assert_array_equal(one.astype(other.dtype), other)
        assert f"--replay {kind}:{number} --seed 0" in (folder / "wrong").read_text()


def test_a_shifted_line_is_reported(fuzz: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prove = requant_analysis.monotone_requant

    def shifted(*arguments: Any) -> Any:
        line = prove(*arguments)
        return None if line is None else replace(line, offset=line.offset + 0.01)

    monkeypatch.setattr(requant_analysis, "monotone_requant", shifted)
    programs = [fuzz.draw_program(3, "monotone", number) for number in range(30)]
    assert sum(bool(fuzz.check_monotone(program)[0]) for program in programs) > 5


def test_unknown_kinds(
    fuzz: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz", "--kinds", "none"])
    with pytest.raises(SystemExit) as ended:
        fuzz.main()
    assert ended.value.code == 2
    assert "no kinds are named none; expected some of chains" in capsys.readouterr().err


# -- graphs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graphs() -> Any:
    pytest.importorskip("onnxruntime")
    return load_script("fuzz_graphs")


@pytest.mark.parametrize("number", range(200 if LONG else 12))
def test_graphs_give_the_results_of_onnx_runtime(graphs: Any, number: int, cpu: Device) -> None:
    case = graphs.draw(number)
    assert graphs.difference(case, cpu, CompileOptions()) == "", str(case)


def test_a_result_that_differs_in_the_last_bit_is_found(graphs: Any, cpu: Device) -> None:
    case = next(each for each in map(graphs.draw, range(100)) if _exact_floats(each))
    name = _exact_floats(case)[0]
    changed = np.nextafter(case.results[name], np.float32(np.inf))
    wrong = replace(case, results={**case.results, name: changed})
    assert name in graphs.difference(wrong, cpu, CompileOptions())


def _exact_floats(case: Any) -> list[str]:
    return [
        name
        for name, value in case.results.items()
        if value.dtype == np.float32 and name not in case.rounded
    ]
