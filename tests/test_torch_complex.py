"""Programs with complex tensors inside, and Fourier transforms: results of eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from torch import nn  # noqa: E402

import subquant.torch  # noqa: E402  (needs torch)
from eager_pytorch import Cases, Function, assert_results_are_close  # noqa: E402
from subquant.errors import UnsupportedError  # noqa: E402

GENERATOR = torch.Generator().manual_seed(0)
WINDOW = torch.hann_window(64)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def arithmetic(a: torch.Tensor, b: torch.Tensor) -> Any:
    z, y = torch.complex(a, b), torch.complex(b, a)
    complexes = [
        *(z / y, z + y - 2 * z, z @ y.T, torch.sqrt(z), torch.log(z), torch.exp(z), z**2, z**1.5),
        *(z.sum(0), z.mean(), torch.cat([z, y]), z * 1j, torch.where(a > 0, z, y), 1 / z, -z),
        *(z.conj(), z.to(torch.complex64) * a, z - 3, torch.sgn(z), z[1:, :2].flip(0), 2**z),
        *(torch.stack(z.unbind(1)), torch.nn.functional.pad(z, (1, 2)), z * (1 + 2j), z - y * a),
    ]
    complexes += torch.split(z, 2, dim=1)
    complexes.append(torch.complex(a[:, :1], b[0]))
    reals = [z.abs(), z.norm(), (z == y), z.real.sum(), torch.angle(z + 3)]
    return [torch.view_as_real(each.resolve_conj()) for each in complexes] + reals


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    rotation = torch.polar(torch.ones_like(angles), angles)[None, :, None]
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).flatten(3)


def spectral_layer(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A layer of a Fourier neural operator."""
    spectrum, weight = torch.fft.rfft2(x), torch.complex(a, b)
    result = torch.zeros(2, 5, 16, 9, dtype=torch.cfloat)
    for rows in (slice(0, 4), slice(-4, None)):
        chosen = spectrum[:, :, rows, :4]
        result[:, :, rows, :4] = torch.einsum("bixy,ioxy->boxy", chosen, weight)
    return torch.fft.irfft2(result, s=(16, 16))


def mixed_tokens(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real


def transforms(x: torch.Tensor, norm: str) -> Any:
    spectrum = torch.fft.fft(x, n=12, norm=norm)
    return (
        torch.fft.ifft(spectrum, norm=norm).real,
        torch.fft.irfft(torch.fft.rfft(x, norm=norm), n=9, norm=norm),
        torch.fft.fftn(x, s=(4, 6), norm=norm).imag,
        torch.fft.irfftn(torch.fft.rfftn(x, norm=norm), norm=norm, s=(3, 10)),
        torch.fft.ifft2(x, norm=norm).abs(),
    )


def test_complex_arithmetic() -> None:
    assert_results_are_close({"main": (arithmetic, (numbers(3, 4), numbers(3, 4)))}, 2e-6)


def test_layers_with_complex_numbers() -> None:
    cases: Cases = {
        "rotated": (rotated, (numbers(2, 10, 4, 16), numbers(10, 8))),
        "spectral": (spectral_layer, (numbers(2, 3, 16, 16), *numbers(2, 3, 5, 4, 4))),
        "mixed": (mixed_tokens, (numbers(2, 10, 16),)),
    }
    assert_results_are_close(cases, 2e-6)


def test_transforms_of_all_norms() -> None:
    cases: Cases = {
        norm: (lambda x, norm=norm: transforms(x, norm), (numbers(3, 10),))
        for norm in ("ortho", "forward", "backward")
    }
    assert_results_are_close(cases, 2e-6)


@pytest.mark.filterwarnings("ignore:A window was not provided", "ignore:stft with return_complex")
def test_spectrograms() -> None:
    def stft(x: torch.Tensor, **how: Any) -> torch.Tensor:
        return torch.stft(x, 64, 16, return_complex=True, **how)

    short = torch.hamming_window(40)
    cases: Cases = {
        "power": (lambda x: stft(x, window=WINDOW).abs() ** 2, (numbers(2, 500),)),
        "window_inside": (
            lambda x: stft(x, window=torch.hann_window(64, device=x.device)).abs(),
            (numbers(500),),
        ),
        "parts": (
            lambda x: torch.view_as_real(stft(x, window=WINDOW, center=False)),
            (numbers(500),),
        ),
        "whole": (
            lambda x: stft(x, win_length=40, window=short, normalized=True, onesided=False).imag,
            (numbers(2, 500),),
        ),
        "real": (lambda x: torch.stft(x, 64, 16, return_complex=False), (numbers(2, 500),)),
        "no_window": (lambda x: stft(x, pad_mode="constant").real, (numbers(2, 500),)),
        "inverse": (
            lambda x: torch.istft(
                stft(x, win_length=40, window=short, normalized=True), 64, 16, 40, short,
                normalized=True,
            ),
            (numbers(2, 500),),
        ),
        "inverse_of_length": (
            lambda x: torch.istft(stft(x, window=WINDOW), 64, 16, window=WINDOW, length=520),
            (numbers(2, 500),),
        ),
    }  # fmt: skip
    assert_results_are_close(cases, 2e-6)


def test_windows() -> None:
    windows = (
        *(torch.bartlett_window, torch.blackman_window),
        *(torch.hamming_window, torch.hann_window),
    )
    cases: Cases = {
        window.__name__: (
            lambda x, window=window: (
                *(window(40), window(7, periodic=False), window(1), x * window(8)),
            ),
            (numbers(8),),
        )
        for window in windows
    }
    cases["coefficients"] = (
        lambda x: x * torch.hamming_window(8, False, 0.5, 0.4), (numbers(8),)
    )  # fmt: skip
    assert_results_are_close(cases, 1e-6)


class Rotation(nn.Module):
    """A complex parameter and a complex buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.complex(numbers(8), numbers(8)))
        self.register_buffer("rotation", torch.polar(torch.ones(10, 8), numbers(10, 8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        rotated = pairs * self.rotation * self.factor + torch.tensor(1 + 2j)
        return torch.view_as_real(rotated).flatten(-2)


def test_complex_parameters_and_dynamic_sizes() -> None:
    module = Rotation().eval().requires_grad_(False)
    batch = torch.export.Dim("batch", min=2, max=64)
    compiled = subquant.torch.compile(module, (numbers(3, 10, 16),), dynamic_shapes=({0: batch},))
    for size in (3, 5):
        x = numbers(size, 10, 16)
        torch.testing.assert_close(compiled(x), module(x), rtol=0, atol=1e-5)


def branched(x: torch.Tensor) -> torch.Tensor:
    spectrum = torch.fft.fft(x)
    chosen = torch.cond(x.sum() > 0, torch.neg, torch.clone, (spectrum,))
    return chosen.abs()


@pytest.mark.parametrize(
    ("function", "x", "message"),
    [
        (torch.abs, torch.ones(3, dtype=torch.cfloat), "the argument 'args_0' is complex; pass"),
        (torch.fft.fft, torch.ones(3), "the result 'fft_fft' is complex; return it by"),
        (lambda x: torch.linalg.det(torch.fft.fft(x)).abs(), torch.eye(3), "aten.linalg_det of"),
        (branched, torch.eye(3), "cond of complex numbers"),
    ],
    ids=["argument", "result", "operator", "branch"],
)
def test_complex_numbers_are_refused(function: Any, x: torch.Tensor, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        subquant.torch.compile(Function(function).eval(), (x,))
