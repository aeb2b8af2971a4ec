"""Models of common architectures: results of eager PyTorch, also with a dynamic batch.

A result may differ from eager PyTorch by 1e-6 of the largest element, or from eager PyTorch in f64
by twice as much as eager PyTorch in f32. Models of transformers need the package ``transformers``;
the short suite runs the smallest models.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import succeed
from programs import LONG

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from torch import nn  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import subquant.torch  # noqa: E402  (needs torch)
from subquant.errors import ExecutionError  # noqa: E402
from torch_models import MODELS, tokens  # noqa: E402
from transformers_models import NAMES, case  # noqa: E402

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
    """Check the results of a compiled module against eager PyTorch in f32, or in f64."""
    with torch.no_grad():
        expected = module(*args)
    results = compiled(*args)
    assert pytree.tree_structure(results) == pytree.tree_structure(expected)
    leaves = zip(pytree.tree_leaves(results), pytree.tree_leaves(expected), strict=True)
    for number, (result, reference) in enumerate(leaves):
        assert (result.shape, result.dtype) == (reference.shape, reference.dtype)
        largest = float(reference.abs().max())
        assert largest > 0
        if float((result - reference).abs().max()) > 1e-6 * largest:
            with torch.no_grad():
                exact = copy.deepcopy(module).double()(*pytree.tree_map(in_f64, args))
            precise = pytree.tree_leaves(exact)[number]
            error, eager_error = (
                float((each - precise).abs().max()) for each in (result, reference)
            )
            assert error <= 2 * eager_error


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


@pytest.mark.parametrize(
    "name", [n for n in ("MLP", "BERT-like", "Llama-like") if n in SMALLEST or LONG]
)
def test_files_compile_and_run_by_the_command_line(name: str, tmp_path: Path) -> None:
    module, inputs = model(name), MODELS[name][1]
    shapes = tuple({0: torch.export.Dim("batch", min=1, max=64)} for _ in inputs(2))
    path, executable = tmp_path / "model.pt2", tmp_path / "model.vmfb"
    torch.export.save(torch.export.export(module, inputs(2), dynamic_shapes=shapes), path)
    succeed("compile", path, "-o", executable)
    args, results = inputs(3), [tmp_path / f"result{n}.npy" for n in range(2)]
    options = []
    for n, tensor in enumerate(args):
        np.save(tmp_path / f"input{n}.npy", tensor.numpy())
        options += ["--input", f"@{tmp_path / f'input{n}.npy'}"]
    with torch.no_grad():
        expected = pytree.tree_leaves(module(*args))
    for each in results[: len(expected)]:
        options += ["--output", f"@{each}"]
    succeed("run", executable, *options)
    for each, reference in zip(results, expected, strict=False):
        difference = np.abs(np.load(each) - reference.numpy()).max()
        assert difference <= 1e-6 * float(reference.abs().max())


@pytest.mark.skipif(not LONG, reason="belongs to the long suite")
def test_batch_and_length_may_vary() -> None:
    module = model("Llama-like")
    shapes = {0: torch.export.Dim("batch", max=16), 1: torch.export.Dim("length", max=64)}
    compiled = subquant.torch.compile(module, tokens(2, 5), dynamic_shapes=(shapes,))
    for batch, length in ((1, 3), (3, 8), (8, 1)):
        check(module, compiled, *tokens(batch, length))


@pytest.mark.skipif(not LONG, reason="belongs to the long suite")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_models_of_transformers_compute_as_eager_pytorch(name: str) -> None:
    pytest.importorskip("transformers", reason="not in the environment of the tests")
    module, args = case(name)
    check(module, subquant.torch.compile(module, args), *args)
