"""Operators that torch-mlir lowers wrongly or not at all: results of eager PyTorch.

The operators are functions of one executable, which is compiled once.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from torch import nn  # noqa: E402
from torch.ao.quantization.fx import _decomposed as _registered  # noqa: E402, F401

import subquant.torch  # noqa: E402  (needs torch)
from eager_pytorch import Cases, assert_results_are_close, compiled_of  # noqa: E402

GRID = torch.arange(60.0).reshape(3, 4, 5)
PLACES = torch.tensor([-1, 0, -3])
COLUMNS = torch.tensor([[2, -1, 1]])
COMPARISONS = (torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne)
INTEGERS = torch.arange(-9, 9)


def written(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    result = values.clone()
    result[rows] = 7.0
    return result


def constants(x: torch.Tensor) -> Any:
    """Arithmetic of a constant and negative integers, which torch-mlir evaluates."""
    c = torch.full((), 127, dtype=torch.int8).to(torch.float32)
    shifted = c - -128, c + -128, c * -2, torch.add(c, c, alpha=-2)
    compared = [operator(c, -3).to(torch.float32) for operator in COMPARISONS]
    return [x * each for each in (*shifted, *compared)]


DIVIDENDS = torch.tensor([127, -128, 5, -5], dtype=torch.int32)
DIVISORS = torch.tensor([-2, 5, -3, 3], dtype=torch.int32)


def divisions(x: torch.Tensor) -> Any:
    """Divisions of constants, which torch-mlir evaluates without a sign."""
    reals, whole = torch.tensor([-128.0, 7.5, -7.5, 0.5]), torch.full((4,), 127, dtype=torch.int32)
    quotients = [
        torch.div(dividend, divisor, rounding_mode=mode)
        for dividend, divisor in ((DIVIDENDS, DIVISORS), (whole, -2), (reals, -2.5))
        for mode in ("floor", "trunc")
    ]
    remainders = [
        operator(*each)
        for operator in (torch.remainder, torch.fmod)
        for each in ((DIVIDENDS, DIVISORS), (DIVIDENDS, -3), (reals, 5))
    ]
    return [x + each for each in (*quotients, torch.floor_divide(whole, -2), *remainders)]


def numbers(seed: int, scale: float) -> torch.Tensor:
    return torch.randn(50, generator=torch.Generator().manual_seed(seed)) * scale


def strided(x: torch.Tensor) -> torch.Tensor:
    result = x.clone()
    result[-1, ..., ::2] = -1.0
    result[0, 1:3, 1::3] = x[1, 2:, :2]
    return result


def masked(x: torch.Tensor) -> torch.Tensor:
    result = x.clone()
    result[result > 40] = 3.0
    result[:, result[0, :, 0] > 8] = 2.0
    return result


MASKS = (*(torch.arange(size) % 3 != 1 for size in (3, 5, 12)), torch.ones(5) > 0)
POSITIONS = torch.tensor([[0, 2, 2], [3, 2, 1]])
NAN, INFINITY = float("nan"), float("inf")
UNORDERED = torch.tensor(
    [[2.0, NAN, -1.0, 3.0, NAN, INFINITY], [0.0, -2.0, 0.0, 1.0, -INFINITY, 1.0]]
)

FLAGS = torch.tensor([[0, 1, 1], [0, 1, 0]], dtype=torch.bool)


def booleans(x: torch.Tensor) -> Any:
    """Extremes of booleans, and comparisons with numbers that are none."""
    compared = [operator(x, each) for operator in COMPARISONS for each in (-2, 0, 1, 2, 0.5)]
    extremes = [operator(x, axis) for operator in (torch.amax, torch.amin) for axis in (0, 1)]
    return [*compared, *extremes, *x.max(1), *x.min(1), x.amax((0, 1), keepdim=True)]


BYTES = torch.tensor([0, 255, 254, 7, 44], dtype=torch.uint8)


def bytes_and_numbers(x: torch.Tensor) -> Any:
    return [operator(x, each) for operator in COMPARISONS for each in (-2, 300, 7, 0.5)]


SIGNED = torch.tensor([-1, -2, 5, 127, -128], dtype=torch.int8)
COUNTS = torch.tensor([0, 1, 4, 7, 2], dtype=torch.int16)


def promoted(flags: torch.Tensor, codes: torch.Tensor, i: torch.Tensor, counts: Any) -> Any:
    """Operators of two types of integers, or of integers and a number of another type."""
    pairs = [(codes, i), (i, codes), (codes, counts), (flags, i), (codes, flags)]
    return [
        *(operator(left, right) for operator in COMPARISONS for left, right in pairs),
        *(operator(flags, 3) for operator in (torch.remainder, torch.fmod)),
        *(torch.div(flags, each, rounding_mode="floor") for each in (-2, 2.5)),
        *(codes.clamp(i, counts), i.clamp(-4, 4.5), flags.clamp(-1, 5), flags.clamp(0, 5).prod(0)),
        *(codes << counts, codes >> counts, i << counts, i >> counts, codes >> i.abs(), codes >> 9),
        *(codes // counts.clamp(1), codes % i, torch.fmod(i, codes | 1), codes * -1, codes**2 * -3),
        *(codes.isfinite(), counts.isinf(), codes % -5, codes // -4, codes - 5 + -1),
        *(flags | 3, flags ^ -5),
    ]


CASES: Cases = {
    "booleans": (booleans, (FLAGS,)),
    "bytes_and_numbers": (bytes_and_numbers, (BYTES,)),
    "promoted": (promoted, (BYTES > 40, BYTES, SIGNED, COUNTS)),
    "index_list": (lambda x: x[..., [-1], :], (GRID,)),
    "index_rows": (lambda x, i: x[i], (GRID, PLACES)),
    "index_two": (lambda x, i, j: x[i, j], (GRID, PLACES, COLUMNS)),
    "index_after_slice": (lambda x, i: x[:, i, 0], (GRID, PLACES)),
    "index_apart": (lambda x, i: x[i, :, i], (GRID, PLACES)),
    "index_put": (written, (GRID, PLACES)),
    "remainder": (torch.remainder, (numbers(0, 9.0), numbers(1, 3.0))),
    "remainder_scalars": (lambda x: (x % 3, x % -3, torch.fmod(x, -2.5)), (numbers(2, 9.0),)),
    "remainder_integers": (lambda i: (i % 2, i % -4, torch.fmod(i, -2)), (INTEGERS,)),
    "fmod": (torch.fmod, (numbers(3, 9.0), numbers(4, 3.0))),
    "floor_division": (lambda x, i: (x // -7, i // 2, i // -2), (GRID - 30, INTEGERS)),
    "divisions": (divisions, (torch.tensor([7, -7, 6, -6], dtype=torch.int32),)),
    "constants": (constants, (torch.ones(3),)),
    "sort": (
        lambda x: (x.sort(stable=True), x.sort(stable=True, descending=True), x.topk(3)[0]),
        (UNORDERED,),
    ),
    "sort_integers": (lambda i: (i % 4).sort(stable=True), (INTEGERS,)),
    "extremes": (
        lambda x: (
            x.argmax(),
            x.argmax(1),
            x.argmin(0),
            x.max(1),
            x.min(1, keepdim=True),
            x.amax(),
        ),
        (UNORDERED,),
    ),
    "equal_to_itself": (lambda x: (x == x, x != x), (UNORDERED,)),
    "strided_update": (strided, (GRID,)),
    "masked_update": (masked, (GRID,)),
    "diagonal": (lambda x: (x.diagonal(), x.diagonal(-1, 1, 2), x[0].diagonal(9)), (GRID,)),
    "unfold": (lambda x: (x.unfold(1, 2, 1), x.unfold(-1, 2, 3)), (GRID,)),
    "empty_slice": (lambda x: (x[:0], x[2:1], torch.cat([x[:, 4:], x], 1)), (GRID,)),
    "histogram": (lambda x: (x.histc(4, 10, 50), x.histc(3, 0, 59)), (GRID,)),
    "bucketize": (
        lambda x, b: (torch.bucketize(x, b), torch.searchsorted(b, x, right=True)),
        (UNORDERED, torch.tensor([-1.0, 0.0, 1.0])),
    ),
    "clamp_integers": (lambda i: (i.clamp(-2.5, 2.5), i.clamp(min=-3)), (INTEGERS,)),
    "roll": (lambda x: (x.roll((-1, 2), (0, 1)), x.roll(7)), (GRID,)),
    "running_extremes": (
        lambda x, i: (x.cummax(1), x.cummin(0), (i % 4).cummax(0), (i % 4).cummin(0)),
        (UNORDERED, INTEGERS),
    ),
    "medians": (
        lambda x, i: (
            *(x.median(), x.median(1), x.nanmedian(), x.nanmedian(1, keepdim=True)),
            *((i % 5).median(), x.kthvalue(2, 1), i.kthvalue(7)),
        ),
        (UNORDERED[:, [0, 2, 3, 1, 4, 5]], INTEGERS),
    ),
    "bytes": (
        lambda a: (
            *(a.max(), a.min(1), a.argmax(0), a.amin(), a.any(), a.all(1)),
            *(a // 3, a % 7, torch.div(a, 50, rounding_mode="trunc"), a // a.flip(0), a.abs()),
        ),
        (torch.tensor([[3, 7, 1], [9, 2, 7]], dtype=torch.uint8),),
    ),
    "large_bytes": (
        lambda a: (a.max(0), a.min(), a.argmin(1), a % 100),
        (torch.tensor([[200, 201, 199], [250, 130, 200]], dtype=torch.uint8),),
    ),
    "masks_of_constants": (
        lambda x: [x.reshape(-1)[: len(m)].masked_fill(m, -1.0) for m in MASKS],
        (GRID,),
    ),
    "diagonal_updates": (
        lambda x: (
            x[0].clone().fill_diagonal_(7.0),
            torch.diagonal_scatter(x[0], x[1, 0, :3], -1),
            torch.diagonal_scatter(x, torch.ones(4, 3), 2, 0, 2),
            x.slice_scatter(x[:, :2] + 1, 1, -2),
        ),
        (GRID,),
    ),
    "adaptive_maxima": (
        lambda x: (
            nn.functional.adaptive_max_pool2d(x, (3, 2), return_indices=True),
            nn.functional.adaptive_max_pool3d(x[None], (2, 3, 1), return_indices=True),
        ),
        (GRID,),
    ),
    "scattered_extremes": (
        lambda x, i, s: [
            each.scatter_reduce(1, i, values, how, include_self=include)
            for how in ("amax", "amin")
            for include in (False, True)
            for each, values in ((x, s), (x.to(torch.int32), s.to(torch.int32)))
        ],
        (GRID[:, :, 0], POSITIONS, GRID[:2, :, 1] - 20),
    ),
}

WORDS = torch.tensor([3, 1, 4, 1, 5, 2, 6, 5])
OFFSETS = torch.tensor([0, 3, 3, 4])


def tokens(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows that are quantized with a scale and a zero point of each."""
    operators = torch.ops.quantized_decomposed
    parameters = operators.choose_qparams_per_token_asymmetric(x, torch.int8)
    how = *parameters, -128, 127, torch.int8
    integers = operators.quantize_per_token(x, *how)
    return integers, operators.dequantize_per_token(integers, *how, torch.float32)


class Unpooling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled, indices = nn.functional.max_pool2d(x, 2, return_indices=True)
        return nn.functional.max_unpool2d(pooled, indices, 2, output_size=x.shape)


ROUNDED: Cases = {
    "erfc": (lambda x: (torch.erfc(x), torch.erfc(x.half())), (numbers(5, 3.0),)),
    "erfc_limits": (torch.erfc, (UNORDERED,)),
    "scattered_sums": (
        lambda x, i, s: [
            x.scatter_reduce(1, i, s, how, include_self=include)
            for how in ("sum", "mean", "prod")
            for include in (False, True)
        ],
        (GRID[:, :, 0] / 7, POSITIONS, GRID[:2, :, 1] / 7),
    ),
    "scattered_integers": (
        lambda x, i, s: [x.scatter_reduce(1, i, s, how) for how in ("sum", "mean", "prod")],
        (GRID[:, :, 0].long() - 20, POSITIONS, GRID[:2, :, 1].long() % 5 - 2),
    ),
    "scattered_slices": (
        lambda x, i: (
            x.index_reduce(1, i, x[:, :3], "mean"),
            x.index_reduce(0, i[:2], x[:2], "amin", include_self=False),
            x[:, :, 0].scatter(1, i[None], 2.0, reduce="multiply"),
        ),
        (GRID / 7, torch.tensor([0, 2, 0])),
    ),
    **{
        f"bags_{mode}": (
            lambda i, o, t, mode=mode: (
                nn.functional.embedding_bag(i, t, o, mode=mode),
                nn.functional.embedding_bag(i, t, o * 2, mode=mode, include_last_offset=True),
                nn.functional.embedding_bag(i, t, o, mode=mode, padding_idx=1),
                nn.functional.embedding_bag(i.reshape(2, 4), t, mode=mode),
            ),
            (WORDS, OFFSETS, numbers(6, 1.0).reshape(10, 5)),
        )
        for mode in ("sum", "mean", "max")
    },
    "weighted_bags": (
        lambda i, o, t, w: nn.functional.embedding_bag(i, t, o, mode="sum", per_sample_weights=w),
        (WORDS, OFFSETS, numbers(6, 1.0).reshape(10, 5), numbers(7, 1.0)[:8]),
    ),
    "running_products": (lambda x: (x.cumprod(0), x.cumprod(1)), (numbers(9, 1.0).reshape(5, 10),)),
    "norms": (
        lambda x, y: (
            *(torch.hypot(x, y), torch.dist(x, y), torch.hypot(x * 1e30, y * 1e30)),
            torch.addmv(x[:5], y.reshape(5, 10), x[:10], beta=0.5, alpha=2),
        ),
        (numbers(10, 1.0), numbers(11, 1.0)),
    ),
    "adaptive_averages": (
        lambda x: nn.functional.adaptive_avg_pool2d(x, (3, 7)),
        (numbers(13, 1.0).reshape(2, 5, 5),),
    ),
    "erf_of_integers": (torch.erf, (INTEGERS,)),
    "tokens": (tokens, (numbers(12, 1.0).reshape(2, 5, 5),)),
    "unpooling": (Unpooling(), (numbers(8, 1.0)[:36].reshape(1, 1, 6, 6),)),
}


def test_operators_compute_as_eager_pytorch() -> None:
    assert_results_are_close(CASES, 0)


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_products_sums_and_functions_compute_as_eager_pytorch() -> None:
    assert_results_are_close(ROUNDED, 1e-6)


@pytest.mark.parametrize("rank", [2, 3])
def test_grids_are_sampled_as_eager_pytorch_does(rank: int) -> None:
    """The grid has positions outside, at ties of ``nearest``, and for zeros infinite ones."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, *(7, 9, 5)[:rank], generator=generator)
    grid = torch.rand(2, *(5, 4, 3)[:rank], rank, generator=generator) * 3 - 1.5
    infinite = grid.clone()
    infinite[0, 1] = INFINITY
    grid[1, 0] = torch.round(grid[1, 0] * 2) / 2
    cases: Cases = {
        f"{mode}_{padding}_{align}": (
            lambda x, g, how=(mode, padding, align): nn.functional.grid_sample(x, g, *how),
            (images, infinite if padding == "zeros" else grid),
        )
        for mode in (("bilinear", "nearest", "bicubic") if rank == 2 else ("bilinear", "nearest"))
        for padding in ("zeros", "border", "reflection")
        for align in (False, True)
    }
    assert_results_are_close(cases, 1e-6)


def test_images_are_resized_as_eager_pytorch_does() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 17, 23, generator=generator)
    of_rank = {"linear": images[:, :, 0], "trilinear": images[..., None].expand(-1, -1, -1, -1, 2)}
    cases: Cases = {}
    for mode in ("linear", "bilinear", "bicubic", "trilinear", "nearest", "nearest-exact"):
        x = of_rank.get(mode, images)
        spatial = x.dim() - 2
        of_mode: list[dict[str, Any]] = [
            {"size": (20, 9, 1)[:spatial]},
            {"scale_factor": (0.5, 1.7, 3)[:spatial]},
            {"scale_factor": 2.0},
        ]
        for number, size in enumerate(of_mode if spatial == 2 else of_mode[:1]):
            has_corners = "linear" in mode or "cubic" in mode
            for align in ((False, True) if number == 0 else (False,)) if has_corners else (None,):
                how = dict(size, mode=mode, align_corners=align)
                cases[f"{mode}_{number}_{align}".replace("-", "_")] = (
                    lambda x, how=how: nn.functional.interpolate(x, **how),
                    (x,),
                )
    cases["of_f16"] = (
        lambda x: nn.functional.interpolate(x, scale_factor=2, mode="bilinear"),
        (images.half(),),
    )
    assert_results_are_close(cases, 1e-5)


def test_large_updates_are_scattered() -> None:
    """IREE keeps updates that it computes in the same dispatch on a stack of 32 KiB."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 64, generator=generator)
    targets = torch.randint(0, 500, (300, 64), generator=generator)
    images = torch.randn(1, 8, 20, 20, generator=generator)
    cases: Cases = {
        "added": (
            lambda x, i: torch.zeros(500, 64).scatter_add(0, i, torch.relu(x)), (rows, targets)
        ),
        "written": (
            lambda x, i: torch.zeros(500, 64).index_put((i,), torch.relu(x)),
            (rows, torch.randperm(500, generator=generator)[:300]),
        ),
        "folded": (
            lambda x: nn.functional.fold(nn.functional.unfold(torch.relu(x), 3), (20, 20), 3),
            (images,),
        ),
        "summed": (
            lambda i, w: nn.functional.embedding_bag(i, torch.relu(w)),
            (targets[:20, :10] % 300, rows),
        ),
    }  # fmt: skip
    assert_results_are_close(cases, 1e-5)


def test_rows_of_more_than_the_stack_are_sorted() -> None:
    x = torch.randn(2, 9000, generator=torch.Generator().manual_seed(0))
    cases: Cases = {
        "sorted": (lambda x: torch.sort(torch.relu(x), dim=1, stable=True), (x,)),
        "greatest": (lambda x: torch.topk(x, 50, 1), (x,)),
        "middle": (lambda x: torch.median(x, 1), (x,)),
    }
    assert_results_are_close(cases, 0)


def test_erfc_is_as_accurate_for_large_numbers() -> None:
    """Relative errors down to the least normal f32; ``1 - erf(x)`` has none above 4."""
    x = torch.linspace(-4, 9.1, 500)
    result = compiled_of({"main": (torch.erfc, (x,))})(x).to(torch.float64)
    expected = torch.erfc(x.to(torch.float64))
    assert float(((result - expected) / expected).abs().max()) < 1e-6


class Constants(torch.nn.Module):
    """Returns constants of several sizes, added to an input."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for size in (1, 2, 3, 16, 65, 300):
            numbers = torch.randn(size, generator=generator)
            self.register_buffer(f"constant_{size}", numbers.to(dtype))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x + each for each in self.buffers()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_constants_of_16_bits_keep_their_bits(dtype: torch.dtype) -> None:
    module, zero = Constants(dtype).eval(), torch.zeros(1, dtype=dtype)
    results = subquant.torch.compile(module, (zero,))(zero)
    for actual, expected in zip(results, module.buffers(), strict=True):
        assert actual.dtype == dtype
        assert torch.equal(actual, expected)


class HalfPrecision(nn.Module):
    """Arithmetic whose numbers, sums or squares f16 cannot hold."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            *(x * -1e9, x / 1e5, 1e5 / x, x + 1e5, x * torch.tensor(1e-8)),
            torch.add(x, x, alpha=1e-8),
            *(nn.functional.layer_norm(x, (4,)), nn.functional.rms_norm(x, (4,)), x.norm(dim=1)),
            *(x.mean(), x.mean(1), 5 / x.to(torch.int32)),
        )


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_halves_are_computed_in_f32(name: str) -> None:
    """Norms in another order of additions may round the other way."""
    x = torch.tensor([[0, 1, -3, 60000], [300, -60000, 30000, 60000.0]]).to(getattr(torch, name))
    module = HalfPrecision().eval()
    for result, expected in zip(subquant.torch.compile(module, (x,))(x), module(x), strict=True):
        assert result.dtype == expected.dtype
        torch.testing.assert_close(result, expected, rtol=2**-7, atol=0.0, equal_nan=True)
