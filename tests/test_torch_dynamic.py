"""Operators on dynamic dimensions of PyTorch modules: results of eager PyTorch for other sizes.

The operators are functions of one executable, which is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import subquant.torch  # noqa: E402  (needs torch)
from subquant.errors import SubquantError  # noqa: E402

BATCH = torch.export.Dim("batch", min=1, max=64)
SIZE = torch.export.Dim("size", min=3, max=64)
HEIGHT, WIDTH = (torch.export.Dim(name, min=4, max=64) for name in ("height", "width"))
BLOCKS = torch.export.Dim("blocks", min=1, max=16)
LONG = {0: BATCH, 1: torch.export.Dim("long", min=5, max=64)}
SEQUENCE, IMAGE = {0: BATCH, 1: SIZE}, {0: BATCH, 2: HEIGHT, 3: WIDTH}

PADDINGS = ("circular", "constant", "reflect", "replicate")
KERNELS = torch.randn(3, 2, 3, 3, generator=torch.Generator().manual_seed(2))


class Function(nn.Module):
    """A function of one tensor as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def blocks(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.shape[0], x.shape[1] // 4, 4, 3).amax(2)


FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[int, Any], tuple[int, ...], Any]] = {
    "average": (
        lambda x: functional.adaptive_avg_pool2d(x, (2, 3)), IMAGE, (2, 3, 8, 8),
        [(1, 3, 4, 4), (2, 3, 9, 16), (2, 3, 17, 5)],
    ),
    "padded": (
        lambda x: [functional.pad(x, (1, 3, 2, 0), mode=mode) for mode in PADDINGS],
        IMAGE, (2, 3, 8, 8), [(1, 3, 4, 4), (2, 3, 9, 16)],
    ),
    "diagonals": (
        lambda x: [(x @ x.mT).diagonal(each, 1, 2) for each in (0, 1, -2)],
        LONG, (2, 6, 3), [(1, 5, 3), (3, 17, 3)],
    ),
    "difference": (lambda x: x.shape[1] - x, SEQUENCE, (2, 6, 3), [(1, 3, 3), (3, 17, 3)]),
    "scans": (
        lambda x: (
            *(x.cumsum(axis) for axis in range(3)),
            x.cumprod(1), x.logcumsumexp(1), (x > 0).cumsum(1), (x > -1).cumprod(1),
        ),
        SEQUENCE, (2, 6, 3), [(1, 3, 3), (3, 17, 3)],
    ),
    "selected": (
        lambda x: x.index_select(1, torch.arange(x.shape[0]) % 3),
        SEQUENCE, (2, 6, 3), [(1, 3, 3), (5, 17, 3)],
    ),
    "windows": (
        lambda x: (x.unfold(1, 2, 1), x.unfold(1, 3, 2), x.unfold(2, 2, 1)),
        LONG, (2, 6, 3), [(1, 5, 3), (3, 17, 3)],
    ),
    "blocks": (blocks, {0: BATCH, 1: 4 * BLOCKS}, (2, 8, 3), [(1, 4, 3), (3, 20, 3)]),
    "maximum": (
        lambda x: functional.adaptive_max_pool2d(x, (2, 3), return_indices=True),
        IMAGE, (2, 3, 8, 8), [(1, 3, 4, 4), (2, 3, 9, 16), (2, 3, 17, 5)],
    ),
    "median": (lambda x: x.median(1), SEQUENCE, (2, 6, 3), [(1, 3, 3), (3, 16, 3)]),
    "resized": (
        lambda x: functional.interpolate(x, scale_factor=(2, 3), mode="nearest"),
        IMAGE,
        (2, 2, 4, 5),
        [(1, 2, 7, 4)],
    ),
    "roll": (lambda x: x.roll((-2, 4), (0, 1)), SEQUENCE, (2, 6, 3), [(1, 3, 3), (3, 17, 3)]),
    "transposed": (
        lambda x: functional.conv_transpose2d(
            x, KERNELS.to(x.dtype), stride=(3, 1), output_padding=(2, 0)
        ),
        IMAGE,
        (2, 3, 8, 8),
        [(1, 3, 5, 9)],
    ),
    "sort": (lambda x: x.sort(1), SEQUENCE, (2, 6, 3), [(1, 3, 3), (3, 17, 3)]),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiled() -> subquant.torch.CompiledModule:
    programs = {
        name: torch.export.export(
            Function(function).eval(), (torch.zeros(shape),), dynamic_shapes=(sizes,)
        )
        for name, (function, sizes, shape, _) in FUNCTIONS.items()
    }
    return subquant.torch.compile(programs)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_sizes_compute_as_eager_pytorch(name: str, compiled: Any) -> None:
    function, _, example, shapes = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(1)
    for shape in (example, *shapes):
        x = torch.randn(shape, generator=generator)
        x.view(-1)[5] = torch.nan
        results = pytree.tree_leaves(compiled.call(name, x))
        for result, exact in zip(results, pytree.tree_leaves(function(x.double())), strict=True):
            expected = exact.to(torch.float32) if exact.is_floating_point() else exact
            torch.testing.assert_close(result, expected, rtol=2e-6, atol=2e-6, equal_nan=True)


def test_operators_on_static_dimensions() -> None:
    def function(x: torch.Tensor) -> Any:
        padded = [functional.pad(x, (1, 3, 2, 0), mode=mode) for mode in PADDINGS]
        scans = x.cumsum(1), x.cumprod(1), x.logcumsumexp(1)
        return *padded, *scans, 2 - x, x.unfold(1, 3, 2), x.index_select(2, torch.arange(2))

    x = torch.randn(2, 3, 8, 9, generator=torch.Generator().manual_seed(1))
    results = subquant.torch.compile(Function(function).eval(), (x,))(x)
    for result, exact in zip(results, function(x.double()), strict=True):
        torch.testing.assert_close(result, exact.to(torch.float32), rtol=2e-6, atol=2e-6)


def test_a_slice_to_a_dynamic_end_is_refused_by_name() -> None:
    module = Function(lambda x: torch.slice_scatter(x, x[:, 1:], 1, 0, x.shape[1] - 1)).eval()
    program = torch.export.export(module, (torch.zeros(2, 6, 3),), dynamic_shapes=(SEQUENCE,))
    with pytest.raises(SubquantError, match=r"test_torch_dynamic\.py:\d+.*aten\.slice_scatter"):
        subquant.torch.compile(program)


def test_a_size_that_is_no_multiple_is_refused(compiled: Any) -> None:
    with pytest.raises(SubquantError, match=r"argument .x. less 0 must be a multiple of 4"):
        compiled.call("blocks", torch.zeros(2, 18, 3))


def test_empty_tensors_have_the_shapes_of_eager_pytorch() -> None:
    functions = {
        "flatten": lambda x: (x.flatten(0, 1), x.reshape(x.shape[0] * x.shape[1], -1)),
        "inferred": lambda x: x.reshape(x.shape[0], -1),
        "repeat": lambda x: x.repeat(2, 3, 1),
    }
    sizes = {axis: torch.export.Dim(name, min=0, max=64) for axis, name in enumerate("bn")}
    compiled = subquant.torch.compile(
        {
            name: torch.export.export(
                Function(function).eval(), (torch.zeros(2, 6, 4),), dynamic_shapes=(sizes,)
            )
            for name, function in functions.items()
        }
    )
    for name, function in functions.items():
        for shape in ((2, 6, 4), (1, 1, 4), (0, 5, 4), (2, 0, 4), (0, 0, 4)):
            x = torch.randn(shape)
            try:
                expected = pytree.tree_leaves(function(x))
            except RuntimeError:  # the size of -1 is ambiguous
                continue
            results = pytree.tree_leaves(compiled.call(name, x))
            assert all(map(torch.equal, results, expected)), (name, shape)
