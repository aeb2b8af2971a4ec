"""8-bit floats in PyTorch modules: conversions, weights and activations of torchao's float8.

Modules that write the arithmetic of torchao need torch only; the others need torchao.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from torch import nn  # noqa: E402

import subquant.torch  # noqa: E402  (needs torch)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

FORMATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
INSTRUCTIONS = ("auto", "avx2", "portable")


def all_floats(name: str) -> torch.Tensor:
    """The floats of a format, the f32 between neighbors, and those beside them; some beyond all."""
    table = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)).float()
    finite = table[table.isfinite()].unique()
    middles = (finite[1:] + finite[:-1]) / 2
    beside = [torch.nextafter(middles, torch.tensor(sign * torch.inf)) for sign in (-1, 1)]
    beyond = finite[-1] * torch.tensor([1.03, 1.04, 1.0625, 1.07, 1.13, 1.2, 1e30, torch.inf])
    tiny = torch.tensor([0.0, -0.0, 1e-38, torch.nan])
    return torch.cat([finite, middles, *beside, beyond, -beyond, tiny])


class Conversion(nn.Module):
    """Reals rounded to a format, by way of bytes, in another shape and order."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.dtype = getattr(torch, name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = x.to(self.dtype).view(torch.uint8)
        return codes.reshape(2, -1).view(self.dtype).t().to(torch.float32)


@pytest.mark.parametrize("source", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMATS)
def test_conversions_are_those_of_eager_pytorch(name: str, source: str) -> None:
    x = all_floats(name).to(getattr(torch, source))
    x = x[: len(x) // 2 * 2]
    module = Conversion(name).eval()
    result, expected = subquant.torch.compile(module, (x,))(x), module(x)
    assert torch.equal(result.isnan(), expected.isnan())
    numbers = expected.nan_to_num(0.25)
    assert torch.equal(result.nan_to_num(0.25), numbers)
    assert torch.equal(result.nan_to_num(0.25).signbit(), numbers.signbit())


class Weights(nn.Module):
    """A layer with a weight of 8-bit floats and a scale for each channel."""

    def __init__(self, name: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        weight = torch.randn(96, 256, generator=generator).to(getattr(torch, name))
        self.register_buffer("weight", weight)
        self.register_buffer("scales", torch.rand(96, 1, generator=generator) + 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight.t().to(torch.float32) * self.scales.t())


class Activations(Weights):
    """Activations are 8-bit floats too, of one scale for each row."""

    def rows(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scales = x.abs().amax(dim=-1, keepdim=True) / 448.0
        return (x / scales).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scales

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product, (rows, scales) = torch.ops.aten._scaled_mm.default, self.rows(x)
        weight = self.weight.t(), scales, self.scales.t()
        return product(rows, *weight, None, None, torch.float32)


def assert_within_rounding(result: torch.Tensor, x: torch.Tensor, module: Weights) -> None:
    """Sums of floats are within the bound of any order."""
    weight = module.weight.double() * module.scales.double()
    bound = 256 * 2.0**-24 * (x.abs().double() @ weight.abs().t())
    assert ((result.double() - x.double() @ weight.t()).abs() <= bound).all()


@pytest.mark.parametrize("kernels", INSTRUCTIONS)
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_weights_are_decoded_by_a_kernel(name: str, kernels: str) -> None:
    module, x = Weights(name).eval(), torch.randn(5, 256)
    remarks: list[Any] = []
    compiled = subquant.torch.compile(
        module, (x,), explain=True, kernels=kernels, on_remark=remarks.append
    )
    [message] = [remark.message for remark in remarks]
    assert "is computed by a kernel" in message
    assert_within_rounding(compiled(x), x, module)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_activations_are_rounded_as_in_eager_pytorch(is_dynamic: bool) -> None:
    """PyTorch adds in another order: results differ by up to 2e-5."""
    generator = torch.Generator().manual_seed(2)
    module, x = Activations("float8_e4m3fn").eval(), torch.randn(5, 256, generator=generator)
    shapes = ({0: torch.export.Dim("rows", min=2, max=64)},) if is_dynamic else None
    compiled = subquant.torch.compile(module, (x,), dynamic_shapes=shapes)
    for count in (5, 9) if is_dynamic else (5,):
        x = torch.randn(count, 256, generator=generator)
        rows, scales = module.rows(x)
        result = compiled(x)
        assert_within_rounding(result, rows.float() * scales, module)
        torch.testing.assert_close(result, module(x), rtol=1e-4, atol=1e-4)


# -- torchao --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Float8WeightOnlyConfig", "dynamic"])
def test_layers_of_torchao(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers with 8-bit activations run on CPUs, where torchao refuses to make them.

    Sums of 256 and 192 products in f32 in another order differ by about 1e-6, those of two layers
    on both sides by 4e-6.
    """
    pytest.importorskip("torchao")
    from torchao import quantization

    config: Any = quantization.Float8WeightOnlyConfig()
    if name == "dynamic":
        settings = importlib.import_module("torchao.quantization.quant_api")
        monkeypatch.setattr(settings, "_check_hardware_support", lambda granularity: None)
        config = quantization.Float8DynamicActivationFloat8WeightConfig(
            granularity=quantization.PerTensor()
        )
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(256, 192), nn.SiLU(), nn.Linear(192, 96)).eval()
    quantization.quantize_(module, config)
    x = torch.randn(4, 256)
    remarks: list[Any] = []
    compiled = subquant.torch.compile(module, (x,), explain=True, on_remark=remarks.append)
    messages = [remark.message for remark in remarks if "computed" in remark.message]
    assert len(messages) == 2
    assert all("is computed by a kernel" in message for message in messages)
    expected = module(x)
    assert (compiled(x) - expected).abs().max() <= 4e-6 * expected.abs().max()
