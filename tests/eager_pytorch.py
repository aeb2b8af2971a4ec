"""Functions of PyTorch, compiled together, whose results are compared with eager PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import subquant.torch

Cases = dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def compiled_of(cases: Cases) -> subquant.torch.CompiledModule:
    """One executable with a function for each case."""
    return subquant.torch.compile(
        {
            name: torch.export.export(Function(function).eval(), args)
            for name, (function, args) in cases.items()
        }
    )


def assert_results_are_close(cases: Cases, error: float) -> None:
    """The results are those of eager PyTorch; the error is relative to the largest result."""
    compiled = compiled_of(cases)
    for name, (function, args) in cases.items():
        expected = pytree.tree_leaves(function(*args))
        results = pytree.tree_leaves(compiled.call(name, *args))
        for result, reference in zip(results, expected, strict=True):
            assert result.dtype == reference.dtype, name
            finite = reference[reference.isfinite()].to(torch.float64).abs()
            limit = error * float(finite.max()) if finite.numel() else 0
            torch.testing.assert_close(
                result,
                reference,
                rtol=0,
                atol=limit,
                equal_nan=True,
                msg=lambda m, n=name: f"{n}: {m}",
            )
