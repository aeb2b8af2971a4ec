"""A short run of ``scripts/fuzz graphs``, and whether it finds a result that differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from programs import LONG, load_script
from subquant.compiler.compile_options import CompileOptions
from subquant.runtime import Device


@pytest.fixture(scope="module")
def fuzz() -> Any:
    pytest.importorskip("onnxruntime")
    return load_script("fuzz_graphs")


@pytest.mark.parametrize("number", range(200 if LONG else 12))
def test_graphs_give_the_results_of_onnx_runtime(fuzz: Any, number: int, cpu: Device) -> None:
    case = fuzz.draw(number)
    assert fuzz.difference(case, cpu, CompileOptions()) == "", str(case)


def test_a_result_that_differs_in_the_last_bit_is_found(fuzz: Any, cpu: Device) -> None:
    case = next(each for each in map(fuzz.draw, range(100)) if _exact_floats(each))
    name = _exact_floats(case)[0]
    changed = np.nextafter(case.results[name], np.float32(np.inf))
    wrong = replace(case, results={**case.results, name: changed})
    assert name in fuzz.difference(wrong, cpu, CompileOptions())


def _exact_floats(case: Any) -> list[str]:
    return [
        name
        for name, value in case.results.items()
        if value.dtype == np.float32 and name not in case.rounded
    ]
