"""A short run of ``scripts/fuzz graphs``, and whether it finds a result that differs."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from programs import LONG
from subquant.compiler.compile_options import CompileOptions
from subquant.runtime import Device

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def fuzz() -> Any:
    pytest.importorskip("onnxruntime")
    path = ROOT / "scripts/fuzz_graphs.py"
    specification = importlib.util.spec_from_file_location("fuzz_graphs", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["fuzz_graphs"] = module  # dataclasses look there
    specification.loader.exec_module(module)
    return module


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
