"""``torch.cond`` and ``while_loop`` of PyTorch modules, compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
pytest.importorskip("torch_mlir", reason="the extra 'torch' is not installed")

from torch import nn  # noqa: E402
from torch._higher_order_ops import while_loop  # noqa: E402

import subquant.torch  # noqa: E402
from subquant.errors import UnsupportedError  # noqa: E402

Tensor = torch.Tensor


class Function(nn.Module):
    """A function of a linear layer and of arguments."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.layer = function, nn.Linear(8, 8)

    def forward(self, *arguments: Tensor) -> object:
        return self.function(self.layer, *arguments)


def chosen(layer: nn.Linear, x: Tensor) -> Tensor:
    """One of three branches; the condition of the inner choice has an axis."""

    def positive(x: Tensor) -> Tensor:
        return torch.cond(x.max().reshape(1) > 5, layer, lambda x: x - 1, (x,))

    return torch.cond(x.sum() > 0, positive, lambda x: -x, (x,))


def repeated(layer: nn.Linear, x: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """A count, and a layer or a sine in each iteration by the count."""

    def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.cond(i % 2 == 0, layer, lambda x: x.sin(), (x,))

    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: (i < limit) & (x.sum() < 100), body, (start, x))  # type: ignore[no-any-return]


def check(compiled: Any, module: nn.Module, *arguments: Tensor) -> None:
    results, expected = compiled(*arguments), module(*arguments)
    for result, right in zip(
        *(each if isinstance(each, (tuple, list)) else [each] for each in (results, expected)),
        strict=True,
    ):
        assert result.dtype == right.dtype
        np.testing.assert_allclose(result, right.detach(), rtol=1e-5, atol=1e-6)


def test_a_choice() -> None:
    module = Function(chosen).eval()
    compiled = subquant.torch.compile(module, (torch.zeros(3, 8),))
    for value in (1.0, 9.0, -1.0):
        check(compiled, module, torch.full((3, 8), value))


def test_a_loop_of_a_dynamic_size() -> None:
    module = Function(repeated).eval()
    rows = torch.export.Dim("rows")
    example = torch.zeros(3, 8), torch.tensor(0)
    compiled = subquant.torch.compile(module, example, dynamic_shapes=(({0: rows}, None),))
    for count, value, limit in ((3, 1.0, 4), (1, -1.0, 3), (2, 9.0, 4), (5, 1.0, 0)):
        check(compiled, module, torch.full((count, 8), value), torch.tensor(limit))


def test_functions_with_branches_of_one_name() -> None:
    modules = {
        "add": Function(lambda _, x: torch.cond(x.sum() > 0, lambda x: x + 1, torch.sin, (x,))),
        "scale": Function(lambda _, x: torch.cond(x.sum() > 0, lambda x: x * 3, torch.cos, (x,))),
    }
    example = (torch.ones(4),)
    programs = {name: torch.export.export(each.eval(), example) for name, each in modules.items()}
    compiled = subquant.torch.compile(programs)
    for name, module in modules.items():
        for x in (torch.ones(4), -torch.ones(4)):
            check(lambda each, name=name: compiled.call(name, each), module, x)


REFUSED: dict[str, Callable[[object, Tensor], object]] = {
    "draws random numbers": lambda _, x: torch.cond(x.sum() > 0, torch.rand_like, torch.sin, (x,)),
    "aten.nonzero makes a size": lambda _, x: torch.cond(
        x.sum() > 0, lambda x: x.nonzero().sum(), lambda x: x.sum().long(), (x,)
    ),
    "'while_loop' of numbers of Python": lambda _, x: while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (0, x)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
@pytest.mark.share(3)
def test_refusals_in_branches_name_the_line(message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        subquant.torch.export(Function(REFUSED[message]).eval(), (torch.ones(8),))
    assert caught.value.place is not None
    assert caught.value.place.file == __file__
