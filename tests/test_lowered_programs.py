"""Conformance programs, lowered for the interpreter, against the oracle.

StableHLO's interpreter evaluates the lowered integer operations; the oracle computes in float64,
and shares no code with the passes.
"""

from __future__ import annotations

import pytest

from programs import LONG
from subquant.conformance import oracle, suite
from subquant.conformance.cases import compare
from subquant.conformance.program import Program
from subquant.conformance.suite_random import random_programs
from subquant.errors import UnsupportedError
from subquant.interpreter.interpreted_module import InterpretedModule

CONTRACTIONS = ("convolution", "dot", "dot_general", "dynamic_conv")
CASTS = ("uniform_dequantize", "uniform_quantize")
REDUCTIONS = ("reduce", "reduce_window", "select_and_scatter")


def group_of(program: Program) -> str:
    if program.op in CONTRACTIONS:
        return "contractions"
    if program.op in CASTS:
        return "casts"
    return "reductions" if program.op in REDUCTIONS else "others"


@pytest.mark.parametrize("group", ["casts", "contractions", "reductions", "others"])
def test_lowered_programs_give_what_the_oracle_says(group: str) -> None:
    checked, wrong = 0, []
    chosen = [p for p in [*suite.programs(), *random_programs(120)] if group_of(p) == group]
    steps = {"others": 3} if LONG else {"casts": 2, "contractions": 4, "others": 10}
    for program in chosen[:: steps.get(group, 1)]:
        if not program.runs:
            continue
        inputs = program.make_inputs()
        try:
            results = InterpretedModule(program.text())["main"].invoke(inputs)
        except UnsupportedError:
            continue  # an operation or type that the interpreter does not know
        checked += 1
        for result, golden in zip(results, oracle.goldens(program, inputs), strict=True):
            message = compare(result, golden).message
            wrong += [f"{program.name}: {message}"] if message else []
    assert not wrong, "\n".join(wrong)
    assert checked >= 30, checked
