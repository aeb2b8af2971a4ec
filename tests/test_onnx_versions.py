"""Operators of every version of the operator sets keep the meaning that the version defines.

ONNX's node tests are compiled as well: none is wrong. ``scripts/sweep_onnx.py`` runs all of them.
"""

from __future__ import annotations

import numpy as np
import pytest

from onnx_models import computed, text_of
from onnx_sweep import node_tests, outcomes
from onnx_version_cases import cases
from onnx_versions import VersionCase, at_version, expected, feeds_of, tolerance, versions
from programs import LONG
from subquant.runtime import Device

_CASES = cases()
_OPERATORS = sorted({case.operator for case in _CASES})


def check(case: VersionCase, version: int) -> int:
    """Compare one case at one version with its expected results; return the number of models."""
    model = at_version(case, version)
    if model is None:
        return 0
    feeds = feeds_of(case, model)
    results = expected(model, feeds)
    if results is None:
        return 0
    if version == versions(case.operator)[-1]:  # an operator that only NumPy computes is refused
        text_of(model)
    for result, target in zip(computed(model, None, *feeds.values()), results, strict=True):
        assert result.dtype == target.dtype
        assert result.shape == target.shape
        relative, absolute = tolerance(target.dtype)
        if target.dtype.kind in "biu":
            np.testing.assert_array_equal(result, target)
        else:
            # Sums of products cancel: their error is relative to the greatest of them.
            greatest = np.abs(target[np.isfinite(target)].astype(np.float64)).max(initial=0)
            np.testing.assert_allclose(
                result.astype(np.float64),
                target.astype(np.float64),
                relative,
                absolute + relative * min(float(greatest), 100.0),
            )
    return 1


@pytest.mark.share(24)
@pytest.mark.parametrize("operator", _OPERATORS)
def test_every_version_of_an_operator(operator: str) -> None:
    """ONNX Runtime, or the reference evaluator where it has no kernel, computes the same."""
    count = 0
    for case in _CASES:
        if case.operator == operator:
            for version in versions(operator):
                try:
                    count += check(case, version)
                except BaseException as error:
                    types = {n: None if a is None else (a.dtype.name, a.shape)
                             for n, a in case.inputs.items()}  # fmt: skip
                    error.add_note(f"{operator} of operator set {version}: {types} "
                                   f"{dict(case.attributes)}")  # fmt: skip
                    raise
    assert count


_STEP = 1 if LONG else 19
"""One node test of `_STEP` is run; all of them in the long suite."""
_PARTS = 4
"""The number of tests that share them."""


@pytest.mark.skipif(not LONG, reason="5 s; the operators have tests of their own")
@pytest.mark.device
@pytest.mark.parametrize("part", range(_PARTS))
def test_no_node_test_is_wrong(part: int, cpu: Device) -> None:
    names = sorted(node_tests())[::_STEP][part::_PARTS]
    results = list(outcomes({name: node_tests()[name] for name in names}, cpu))
    assert len(results) > 20
    assert [each for each in results if each.kind in ("wrong", "crashed")] == []
    assert sum(each.kind == "right" for each in results) > len(results) / 2
