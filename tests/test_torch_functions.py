"""Functions that torch-mlir lacks, or lowers wrongly for some arguments: results of eager PyTorch.

The functions of a test are functions of one executable, which is compiled once.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from torch.nn import functional as F  # noqa: E402, N812

from eager_pytorch import Cases, assert_results_are_close, compiled_of  # noqa: E402

GENERATOR = torch.Generator().manual_seed(0)
NAN, INFINITY = float("nan"), float("inf")
FLAGS = torch.tensor([True, False, True])


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def integers(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=GENERATOR)


def test_operands_are_broadcast() -> None:
    special = torch.tensor([1.0, NAN, INFINITY, INFINITY, -1.0])
    compared = torch.tensor([1.05, NAN, INFINITY, -INFINITY, INFINITY])
    cases: Cases = {
        "fmax": (torch.fmax, (special[:, None], compared)),
        "fmin": (torch.fmin, (special[:, None], compared)),
        "fmax_of_integers": (torch.fmax, (integers(0, 9, 4, 1), integers(0, 9, 3))),
        "is_close": (lambda x, y: torch.isclose(x, y, rtol=0.1), (special[:, None], compared)),
        "is_equal_nan": (lambda x, y: torch.isclose(x, y, equal_nan=True), (special, compared)),
        "are_close_integers": (
            lambda x, y: torch.isclose(x, y, atol=1), (integers(0, 4, 9), integers(0, 4, 9)),
        ),
        "limits": (
            lambda x, y, z: (x.clamp(y, z), x.clamp_min(y), x.clamp(max=z)),
            (numbers(5, 1), numbers(5) - 1, numbers(5) + 1),
        ),
        "limits_of_integers": (
            lambda x, y: x.clamp(y, y + 2), (integers(0, 9, 4), integers(0, 9, 3, 4))
        ),
        "masked": (
            lambda x, m, s: x.masked_scatter(m, s),
            (numbers(5), integers(0, 2, 4, 5) > 0, numbers(4, 5)),
        ),
        "angles": (torch.angle, (torch.tensor([-1.0, 0.0, -0.0, NAN, 3.0]),)),
    }  # fmt: skip
    assert_results_are_close(cases, 0)


def test_tensors_without_axes() -> None:
    """Some of them ended torch-mlir's process."""
    x, count = torch.tensor(3.0), torch.tensor(7)
    cases: Cases = {
        "extremes": (lambda x: (*x.max(0), *x.min(0, True)), (x,)),
        "sums": (lambda n: (n.cumsum(0), n.cumprod(0)), (count,)),
        "log_of_sum": (lambda x: torch.logsumexp(x, 0, True), (x,)),
        "error": (lambda x, y: (F.mse_loss(x, y), torch.dist(x, y)), (x, x + 2)),
        "softmax": (
            lambda x: (x.softmax(0), x.log_softmax(0), *torch.aminmax(x, dim=0), x.amax()),
            (x,),
        ),
        "windows": (lambda x: x.unfold(0, 1, 1), (x,)),
        "element": (torch.take, (numbers(3, 4), count)),
    }
    assert_results_are_close(cases, 0)


def assigned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    result = torch.relu(x)
    result[:, 1:] = torch.relu(y[:, :-1])
    result[0] = 2
    result[..., ::2] += 1
    return result


def test_slices_are_assigned() -> None:
    """The slices are larger than the stack of a dispatch, 32 KiB."""
    volume, rows = numbers(40, 40, 40), numbers(40, 20, 40)
    positions = torch.randperm(40, generator=GENERATOR)[:20]
    cases: Cases = {
        "slice": (
            lambda x, y: torch.slice_scatter(torch.relu(x), torch.relu(y), 1, 3, 23),
            (volume, rows),
        ),
        "last": (
            lambda x, y: torch.slice_scatter(x, y, -1, -5, None),
            (numbers(3, 4, 20), numbers(3, 4, 5)),
        ),
        "assigned": (assigned, (volume, numbers(40, 40, 40))),
        "copied": (
            lambda x, i, y: torch.relu(x).index_copy(1, i, torch.relu(y)), (volume, positions, rows)
        ),
        "added": (
            lambda x, i, y: torch.relu(x).index_add(2, i, torch.relu(y)),
            (volume, positions, numbers(40, 40, 20)),
        ),
    }  # fmt: skip
    assert_results_are_close(cases, 0)


def test_shifts_are_broadcast() -> None:
    cases: Cases = {
        "shifted": (
            lambda x, y: (x << y, x >> y),
            (integers(0, 9, 10, 1, 5), integers(0, 4, 10, 5)),
        )
    }
    assert_results_are_close(cases, 0)


def test_positions_of_flat_tensors() -> None:
    x, positions = numbers(3, 4), torch.tensor([[1, -1], [5, -12]])
    cases: Cases = {
        "taken": (torch.take, (x, positions)),
        "put": (
            lambda x, i, s: (x.put(i, s), x.put(i, s, accumulate=True)),
            (x, positions, numbers(2, 2)),
        ),
        "not_zero": (
            lambda x: (
                torch.nonzero_static(x, size=3),
                torch.nonzero_static(x, size=30, fill_value=7),
            ),
            (integers(0, 2, 4, 5),),
        ),
        "copies": (
            lambda x: (
                *(torch.narrow_copy(x, 1, 2, 2), *torch.unbind_copy(x)),
                *(torch.view_copy(x, (2, 6)), torch.permute_copy(x, (1, 0))),
                torch.as_strided_copy(x, (12,), (1,)),
            ),
            (x,),
        ),
        "shifted": (
            lambda x: (torch.fft.fftshift(x), torch.fft.ifftshift(x, dim=-1)), (numbers(4, 5),)
        ),
    }  # fmt: skip
    assert_results_are_close(cases, 0)


def compared(x: torch.Tensor) -> Any:
    """Comparisons of constants with numbers, which torch-mlir evaluates wrongly."""
    operators = (torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne)
    constants = (0.1, -0.1, 2.0, 0.0, -3.5)
    results = [
        x + operator(torch.full((2,), constant), number)
        for constant in constants
        for number in (0, 1, -1, 2, 0.5, 0.1)
        for operator in operators
    ]
    values = torch.tensor([0.5, -2, 3.75, 0])
    return [*results, *(x[0] + torch.sign(each) for each in (values, torch.full((2,), 2.5))),
            x[0] + torch.rsub(values, -3), x[0] + torch.sort(values)[0]]  # fmt: skip


def divided(a: torch.Tensor, b: torch.Tensor) -> Any:
    return (
        *(torch.floor_divide(a, b), torch.div(a, b, rounding_mode="floor"), a // 0.1, a // 3),
        *(torch.div(a, b, rounding_mode="trunc"), a // 2, torch.remainder(a, b)),
    )


def test_constants_are_compared() -> None:
    assert_results_are_close({"main": (compared, (torch.zeros(2),))}, 0)


def test_quotients_are_rounded_down() -> None:
    """1.0 // 0.1 is 9, as the float 0.1 is more than a tenth."""
    a = torch.tensor([1.0, 3.0, -1.0, 5.5, 7.0, -7.0, 0.0, 1e30, -0.3, INFINITY, 1.0])
    b = torch.tensor([0.1, 0.1, 0.1, -0.1, 2.0, 2.0, 0.1, 3.0, 0.1, 2.0, 0.0])
    x, y = torch.rand(500, generator=GENERATOR) * 300, torch.rand(500, generator=GENERATOR) + 0.1
    cases: Cases = {
        "special": (divided, (a, b)),
        **{
            name: (divided, (x.to(getattr(torch, name)), y.to(getattr(torch, name))))
            for name in ("float32", "float16", "bfloat16")
        },
    }
    assert_results_are_close(cases, 0)


def test_integers_are_reduced() -> None:
    x = integers(0, 2, 4, 5)
    cases: Cases = {
        "all": (
            lambda x: (torch.all(x, dim=(0, 1), keepdim=True), torch.any(x, dim=(0, -1))), (x,)
        ),
        "extremes": (lambda n: (n.argmin(), n.argmax(), n + n.argmin(0)), (torch.tensor(3),)),
        "products": (torch.addbmm, (x, integers(0, 9, 2, 4, 3), integers(0, 9, 2, 3, 5))),
        "sums_of_booleans": (
            lambda x: ((FLAGS + FLAGS) & (x > 0), (x > 0) & (FLAGS + True)), (torch.ones(3),)
        ),
        "digamma": (torch.digamma, (torch.tensor([0.0, -0.0, -1.0, 0.5, -1.5, INFINITY]),)),
    }  # fmt: skip
    assert_results_are_close(cases, 1e-6)


def functions_of_halves(x: torch.Tensor) -> Any:
    small = x * 0.1
    return (
        *(F.gelu(x), F.gelu(x, approximate="tanh"), torch.sigmoid(x), F.elu(x), F.selu(x)),
        *(x.softmax(1), x.std(1), x.var(0), torch.cumsum(x.abs(), 1), torch.asinh(x)),
        *(torch.log2(x.abs() + 1), torch.log10(x.abs() + 1), torch.rsqrt(x.abs() + 1)),
        *(torch.atanh(small), torch.asin(small), torch.hypot(x, small), F.leaky_relu(x)),
    )


def test_functions_of_halves_are_rounded_once() -> None:
    """Rounded after each step, GELU of negative numbers had errors of 300 units."""
    x = (numbers(40, 60) * 3).half()
    compiled = compiled_of({"main": (functions_of_halves, (x,))})
    for result, expected in zip(compiled(x), functions_of_halves(x), strict=True):
        torch.testing.assert_close(result, expected, rtol=1.1 * 2**-10, atol=1e-6, equal_nan=True)


def test_running_logarithms_do_not_overflow() -> None:
    x = numbers(5, 6, 7)
    x[0, 0, 0], x[1, 1], x[2, 0, :2], x[3, 2, :3] = 10000.0, -INFINITY, INFINITY, -INFINITY
    cases: Cases = {
        f"axis_{axis}": (lambda x, axis=axis: torch.logcumsumexp(x, axis), (x,))
        for axis in range(3)
    }
    assert_results_are_close(cases, 1e-6)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_variances_without_freedom() -> None:
    cases: Cases = {
        f"{name}_{number}": (
            lambda x, name=name, correction=correction: getattr(torch, name)(
                x, dim=0, correction=correction
            ),
            (numbers(size, 5),),
        )
        for name in ("std", "std_mean", "var", "var_mean")
        for number, (size, correction) in enumerate(((0, 1), (1, 1), (2, 3), (9, 1)))
    }
    assert_results_are_close(cases, 1e-6)


def test_averages_with_a_divisor() -> None:
    """torch-mlir drops a divisor of three axes, without a message."""
    volumes = numbers(2, 3, 7, 8, 9)
    hows: list[dict[str, Any]] = [
        {"divisor_override": 2},
        {"divisor_override": 3, "ceil_mode": True},
        {"divisor_override": 5, "count_include_pad": False},
    ]
    cases: Cases = {
        f"{name}_{number}": (
            lambda x, how=how, name=name: getattr(F, name)(x, 3, 2, 1, **how), (x,)
        )
        for name, x in (("avg_pool2d", volumes[0]), ("avg_pool3d", volumes))
        for number, how in enumerate(hows)
    }  # fmt: skip
    cases["of_integers"] = (
        lambda x: (F.avg_pool2d(x, 3, 2), F.avg_pool1d(x[0], 3)), (integers(-90, 90, 2, 3, 9, 9),)
    )  # fmt: skip
    assert_results_are_close(cases, 1e-6)


def test_maxima_of_volumes() -> None:
    volumes = numbers(2, 3, 9, 8, 7)
    volumes[0, 0, 3, 3, 3] = NAN
    hows: list[tuple[Any, dict[str, Any]]] = [
        (2, {}),
        (3, {"stride": 2, "padding": 1}),
        (3, {"stride": 2, "padding": 1, "ceil_mode": True}),
        ((2, 3, 2), {"stride": (1, 2, 2), "padding": (1, 1, 0), "dilation": (1, 2, 2)}),
    ]
    cases: Cases = {
        f"maxima_{number}": (
            lambda x, kernel=kernel, how=how: (
                F.max_pool3d(x, kernel, **how),
                *F.max_pool3d(x, kernel, return_indices=True, **how),
            ),
            (volumes,),
        )
        for number, (kernel, how) in enumerate(hows)
    }
    assert_results_are_close(cases, 0)


def test_images_are_resized_without_aliasing() -> None:
    images = numbers(2, 3, 33, 47)
    hows: list[dict[str, Any]] = [
        {"size": (16, 20)},
        {"size": (50, 20)},
        {"size": (7, 100), "align_corners": True},
        {"scale_factor": (0.3, 1.7)},
    ]
    cases: Cases = {
        f"{mode}_{number}": (
            lambda x, how=how, mode=mode: F.interpolate(x, mode=mode, antialias=True, **how),
            (images,),
        )
        for mode in ("bilinear", "bicubic")
        for number, how in enumerate(hows)
    }
    assert_results_are_close(cases, 1e-5)


@pytest.mark.filterwarnings("ignore:index_reduce", "ignore:The reduce argument")
def test_elements_are_scattered() -> None:
    rows, positions = numbers(40, 8), integers(0, 9, 40, 7)
    cases: Cases = {}
    for name in ("amax", "amin", "prod", "sum", "mean"):
        for includes in (True, False):
            how = {"reduce": name, "include_self": includes}
            suffix = f"{name}_{includes}"
            cases[f"along_0_{suffix}"] = (
                lambda z, i, x, how=how: z.scatter_reduce(0, i, x, **how),
                (numbers(9, 7), positions, rows),
            )
            cases[f"along_1_{suffix}"] = (
                lambda z, i, x, how=how: z.scatter_reduce(1, i, x, **how),
                (numbers(42, 11), positions, rows),
            )
            cases[f"of_integers_{suffix}"] = (
                lambda z, i, x, how=how: z.scatter_reduce(-2, i, x, **how),
                (integers(-9, 9, 9, 7), positions, integers(-9, 9, 40, 7)),
            )
        cases[f"number_{name}"] = (
            lambda z, i, x, name=name: z.scatter_reduce(0, i, x, name),
            (torch.tensor(3.0), torch.tensor(0), torch.tensor(5.0)),
        )
    cases["multiplied"] = (
        lambda z, i, x: (
            z.scatter(0, i, x, reduce="multiply"),
            z.index_reduce(0, i[:9, 0], z, "amax"),
        ),
        (numbers(9, 7), positions, rows),
    )
    with_nan = rows.clone()
    with_nan[3, 3] = NAN
    cases["nan"] = (
        lambda z, i, x: z.scatter_reduce(0, i, x, "amax"), (numbers(9, 7), positions, with_nan)
    )  # fmt: skip
    assert_results_are_close(cases, 1e-6)


def test_functions_of_probability() -> None:
    x = torch.rand(200, generator=GENERATOR)
    cases: Cases = {
        "lgamma": (torch.lgamma, (x * 5 + 0.01,)),
        "lgamma_of_negative": (torch.lgamma, (-x,)),
        "lgamma_of_integers": (torch.lgamma, (integers(1, 9, 9),)),
        "digamma": (torch.digamma, (x * 5 + 0.1,)),
        "polygamma": (lambda x: torch.polygamma(2, x), (x * 5 + 0.2,)),
        "erfinv": (torch.erfinv, (x * 2 - 1,)),
        "i1e": (torch.special.i1e, (x * 5,)),
    }
    assert_results_are_close(cases, 1e-5)
