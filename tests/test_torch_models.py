"""Models of common architectures: results of eager PyTorch, also with a dynamic batch.

A result may differ from eager PyTorch by 1e-6 of the largest element, or by as much as eager
PyTorch differs from itself in f64. Models of transformers need the package ``transformers``; the
short suite runs the smallest models.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from programs import LONG

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from torch import nn  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import subquant.torch  # noqa: E402  (needs torch)
from subquant.errors import ExecutionError  # noqa: E402
from torch_models import MODELS, tokens  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes")

BATCHES = (1, 3, 8)
SMALLEST = ("MLP", "CNN")


def some(names: Iterable[str]) -> list[str]:
    """All names in the long suite, the smallest models in the short one."""
    return [name for name in names if LONG or name in SMALLEST]


def model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0]().eval()


def in_f64(value: Any) -> Any:
    return value.double() if torch.is_tensor(value) and value.is_floating_point() else value


def check(module: nn.Module, compiled: Any, *args: Any) -> None:
    """Check the results of a compiled module against eager PyTorch in f32 and f64."""
    with torch.no_grad():
        expected = module(*args)
        exact = copy.deepcopy(module).double()(*pytree.tree_map(in_f64, args))
    results = compiled(*args)
    assert pytree.tree_structure(results) == pytree.tree_structure(expected)
    leaves = (pytree.tree_leaves(each) for each in (results, expected, exact))
    for result, reference, precise in zip(*leaves, strict=True):
        assert (result.shape, result.dtype) == (reference.shape, reference.dtype)
        difference = float((result - reference).abs().max() / reference.abs().max())
        if difference > 1e-6:
            errors = (float((each - precise).abs().max()) for each in (result, reference))
            assert np.less_equal(*errors), difference


@pytest.mark.parametrize("name", some(MODELS))
def test_models_compute_as_eager_pytorch(name: str) -> None:
    module, args = model(name), MODELS[name][1](2)
    check(module, subquant.torch.compile(module, args), *args)


@pytest.mark.parametrize("name", some(MODELS))
def test_one_executable_takes_every_batch(name: str) -> None:
    module, inputs = model(name), MODELS[name][1]
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = tuple({0: batch} for _ in inputs(2))
    compiled = subquant.torch.compile(module, inputs(2), dynamic_shapes=shapes)
    for size in BATCHES:
        check(module, compiled, *inputs(size))
    with pytest.raises(ExecutionError, match="must be at most 64"):
        compiled(*inputs(65))


@pytest.mark.skipif(not LONG, reason="belongs to the long suite")
def test_batch_and_length_may_vary() -> None:
    module = model("Llama-like")
    shapes = {0: torch.export.Dim("batch", max=16), 1: torch.export.Dim("length", max=64)}
    compiled = subquant.torch.compile(module, tokens(2, 5), dynamic_shapes=(shapes,))
    for batch, length in ((1, 3), (3, 8), (8, 1)):
        check(module, compiled, *tokens(batch, length))
