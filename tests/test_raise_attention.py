"""``raise-attention``: results of raised softmaxes are those of the formula in float64."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

import subquant
from programs import run_passes
from subquant.runtime import Device


@dataclass(frozen=True)
class Case:
    """Sizes of queries ``[heads, count, size]`` and keys ``[heads, context, size]``."""

    heads: int
    count: int
    context: int
    size: int
    are_keys_transposed: bool = False

    @property
    def text(self) -> str:
        """The products, and the softmax that is 0 where all scores are -inf."""
        heads, count, context, size = self.heads, self.count, self.context, self.size
        q, s, y = f"{heads}x{count}x{size}", f"{heads}x{count}x{context}", f"{heads}x{count}"
        v = f"{heads}x{context}x{size}"
        k, axis = (v, 2) if self.are_keys_transposed else (f"{heads}x{size}x{context}", 1)
        along = "across dimensions = [2]"
        return f"""
            func.func @main(%q: tensor<{q}xf32>, %k: tensor<{k}xf32>, %v: tensor<{v}xf32>)
                -> tensor<{q}xf32> {{
              %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
              %zero = stablehlo.constant dense<0.0> : tensor<f32>
              %true = stablehlo.constant dense<true> : tensor<i1>
              %infinite = stablehlo.constant dense<0xFF800000> : tensor<{s}xf32>
              %zeros = stablehlo.constant dense<0.0> : tensor<{s}xf32>
              %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0],
                contracting_dims = [2] x [{axis}]
                : (tensor<{q}xf32>, tensor<{k}xf32>) -> tensor<{s}xf32>
              %m = stablehlo.reduce(%s init: %least) applies stablehlo.maximum {along}
                : (tensor<{s}xf32>, tensor<f32>) -> tensor<{y}xf32>
              %mb = stablehlo.broadcast_in_dim %m, dims = [0, 1]
                : (tensor<{y}xf32>) -> tensor<{s}xf32>
              %d = stablehlo.subtract %s, %mb : tensor<{s}xf32>
              %e = stablehlo.exponential %d : tensor<{s}xf32>
              %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add {along}
                : (tensor<{s}xf32>, tensor<f32>) -> tensor<{y}xf32>
              %tb = stablehlo.broadcast_in_dim %t, dims = [0, 1]
                : (tensor<{y}xf32>) -> tensor<{s}xf32>
              %p = stablehlo.divide %e, %tb : tensor<{s}xf32>
              %is = stablehlo.compare EQ, %s, %infinite, FLOAT
                : (tensor<{s}xf32>, tensor<{s}xf32>) -> tensor<{s}xi1>
              %all = stablehlo.reduce(%is init: %true) applies stablehlo.and {along}
                : (tensor<{s}xi1>, tensor<i1>) -> tensor<{y}xi1>
              %allb = stablehlo.broadcast_in_dim %all, dims = [0, 1]
                : (tensor<{y}xi1>) -> tensor<{s}xi1>
              %w = stablehlo.select %allb, %zeros, %p : tensor<{s}xi1>, tensor<{s}xf32>
              %y = stablehlo.dot_general %w, %v, batching_dims = [0] x [0],
                contracting_dims = [2] x [1]
                : (tensor<{s}xf32>, tensor<{v}xf32>) -> tensor<{q}xf32>
              return %y : tensor<{q}xf32>
            }}"""

    def arrays(self) -> list[npt.NDArray[np.float32]]:
        """Query, keys ``[heads, context, size]`` and values."""
        rng = np.random.default_rng(0)
        shapes = [(self.heads, count, self.size) for count in (self.count, *[self.context] * 2)]
        return [rng.uniform(0.1, 1, shape).astype(np.float32) for shape in shapes]

    def inputs(self, keys: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The keys as the program takes them."""
        return keys if self.are_keys_transposed else np.ascontiguousarray(keys.swapaxes(1, 2))


CASES = [
    Case(12, 128, 128, 32),
    Case(3, 197, 197, 64),
    Case(2, 20, 9, 12),
    Case(4, 1, 77, 16, are_keys_transposed=True),
    Case(2, 50, 70, 40, are_keys_transposed=True),
]


def _expected(
    query: npt.NDArray[np.float32], keys: npt.NDArray[np.float32], values: npt.NDArray[np.float32]
) -> npt.NDArray[np.float64]:
    scores = query.astype(np.float64) @ keys.swapaxes(1, 2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result: npt.NDArray[np.float64] = weights / weights.sum(-1, keepdims=True) @ values
    return result


@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.parametrize("kernels", ["auto", "avx2", "none"])
def test_results(case: Case, kernels: str, cpu: Device) -> None:
    """Results are near float64; a query whose scores are all -inf has the result 0."""
    query, keys, values = case.arrays()
    query[0, -1] = -np.inf
    executable = subquant.compile(case.text, device=cpu, kernels=kernels)
    result = np.asarray(executable.main(query, case.inputs(keys), values))
    np.testing.assert_array_equal(result[0, -1], 0)
    query[0, -1] = 1
    exact = _expected(query, keys, values)
    exact[0, -1] = 0
    np.testing.assert_allclose(result, exact, rtol=2e-6)


@pytest.mark.parametrize("case", CASES[:2], ids=repr)
def test_nan_stays_nan(case: Case, cpu: Device) -> None:
    query, keys, values = case.arrays()
    query[1, 0, 3] = np.nan
    result = np.asarray(
        subquant.compile(case.text, device=cpu).main(query, case.inputs(keys), values)
    )
    is_nan = np.isnan(result)
    assert is_nan[1, 0].all()
    assert is_nan.sum() == case.size


def _raised(text: str) -> bool:
    module, _ = run_passes(text, "raise-attention")
    return "subquant.attention" in str(module)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("dense<0xFF800000> : tensor<2x20x9xf32>", "dense<-1.0e30> : tensor<2x20x9xf32>"),
        ("dense<0.0> : tensor<2x20x9xf32>", "dense<0.5> : tensor<2x20x9xf32>"),
        ("applies stablehlo.and", "applies stablehlo.or"),
        ("applies stablehlo.maximum", "applies stablehlo.minimum"),
        ("compare EQ", "compare LE"),
        ("divide %e, %tb", "divide %tb, %e"),
        ("subtract %s, %mb", "subtract %mb, %s"),
        ("return %y", "%other = stablehlo.negate %w : tensor<2x20x9xf32>\n return %y"),
    ],
)
def test_other_programs_are_left_alone(before: str, after: str) -> None:
    text = Case(2, 20, 9, 12).text
    assert _raised(text)
    assert before in text
    assert not _raised(re.sub(re.escape(before), after, text))
