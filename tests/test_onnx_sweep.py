"""ONNX's node tests, compiled: none is wrong. All of them are in ``scripts/sweep_onnx.py``."""

from __future__ import annotations

import os

import pytest

from onnx_sweep import node_tests, outcomes
from subquant.runtime import Device

_STEP = 1 if os.environ.get("SUBQUANT_LONG") else 19
"""One node test of `_STEP` is run; all of them in the long suite."""
_PARTS = 4
"""The number of tests that share them."""


@pytest.mark.device
@pytest.mark.parametrize("part", range(_PARTS))
def test_no_node_test_is_wrong(part: int, cpu: Device) -> None:
    names = sorted(node_tests())[::_STEP][part::_PARTS]
    results = list(outcomes({name: node_tests()[name] for name in names}, cpu))
    assert len(results) > 20
    assert [each for each in results if each.kind in ("wrong", "crashed")] == []
    assert sum(each.kind == "right" for each in results) > len(results) / 2
