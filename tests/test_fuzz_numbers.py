"""A short run of ``scripts/fuzz numbers``, and whether it finds what is wrong."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from programs import LONG
from subquant.conformance.interpreter import interpret

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def fuzz() -> Any:
    specification = importlib.util.spec_from_file_location(
        "fuzz_numbers", ROOT / "scripts/fuzz_numbers.py"
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["fuzz_numbers"] = module  # dataclasses look there
    specification.loader.exec_module(module)
    return module


def show(wrong: list[Any]) -> str:
    return "\n".join(f"{each.kind}:{each.number}: {each.why}" for each in wrong)


@pytest.mark.parametrize("kind", ["chains", "requantizations", "rescales"])
@pytest.mark.share(3)
def test_programs_give_their_numbers(fuzz: Any, kind: str) -> None:
    wrong = fuzz.run(3, kind, range(48 if LONG else 4), fuzz.instructions_here()[:1])
    assert not wrong, show(wrong)


def test_staircases_are_what_is_proved(fuzz: Any) -> None:
    programs = [fuzz.drawn(3, "staircases", number) for number in range(400 if LONG else 30)]
    found = [fuzz.check_stairs(program) for program in programs]
    assert [why for why, _ in found if why] == []
    assert sum(proved for _, proved in found) > len(found) / 3


@pytest.mark.parametrize("kind", ["chains", "requantizations"])
def test_numbers_are_those_of_the_reference_interpreter(fuzz: Any, kind: str) -> None:
    """What a program must give is computed here a second time."""
    checked = 0
    for number in range(30):
        program = fuzz.drawn(5, kind, number)
        if program.contraction.sums().size > 600:
            continue
        found = interpret(program.text("main"), program.arguments())
        for each, wanted in zip(found, program.wanted(), strict=True):
            np.testing.assert_array_equal(each.astype(wanted.dtype), wanted, err_msg=str(number))
        checked += 1
    assert checked > 5


def test_a_wrong_program_is_made_smaller_and_kept(
    fuzz: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As if each exclusive or were wrong."""

    def compared(programs: dict[str, Any], kernels: str) -> dict[str, str]:
        return {
            name: f"kernels {kernels}: result 0 is wrong"
            for name, program in programs.items()
            if any(step.op == "xor" for step in program.steps)
        }

    monkeypatch.setattr(fuzz, "_compared", compared)
    monkeypatch.setattr(fuzz, "_KEPT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["fuzz", "--kinds", "chains", "--count", "24"])
    with pytest.raises(SystemExit) as ended:
        fuzz.main()
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "24 programs, " in said
    folders = sorted(tmp_path.iterdir())
    assert folders
    for folder in folders:
        kind, _, number = folder.name.partition("-")
        text = (folder / "program.mlir").read_text()
        steps = [line for line in text.splitlines() if " %v" in line or "%v" in line.split("=")[0]]
        assert len(steps) <= len(fuzz.drawn(0, kind, int(number)).steps) + 1
        assert sum("stablehlo.xor" in line for line in steps) == 1
        found = interpret(text, [np.load(each) for each in sorted(folder.glob("argument_*"))])
        wanted = [np.load(each) for each in sorted(folder.glob("wanted_*"))]
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one.astype(other.dtype), other)
        assert f"--replay {kind}:{number} --seed 0" in (folder / "wrong").read_text()


def test_a_line_that_is_off_is_found(fuzz: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import subquant.kernels.epilogue.requant_analysis as proving

    real = proving.monotone_requant

    def moved(*arguments: Any) -> Any:
        found = real(*arguments)
        return None if found is None else replace(found, offset=found.offset + 0.01)

    monkeypatch.setattr(proving, "monotone_requant", moved)
    programs = [fuzz.drawn(3, "staircases", number) for number in range(30)]
    assert sum(bool(fuzz.check_stairs(program)[0]) for program in programs) > 5


def test_unknown_kinds(
    fuzz: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz", "--kinds", "none"])
    with pytest.raises(SystemExit) as ended:
        fuzz.main()
    assert ended.value.code == 2
    assert "no kinds are named none; expected some of chains" in capsys.readouterr().err
