"""Quantized PyTorch modules: recovered weights, integer kernels, and results of eager PyTorch.

Modules that write the arithmetic of PT2E and torchao need torch only; the others need torchao.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from torch import nn  # noqa: E402

import subquant.torch  # noqa: E402  (needs torch)
from subquant.compiler import mlir_client  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

INSTRUCTIONS = ("auto", "avx2", "portable")


def quantized(x: torch.Tensor, scale: float, zero_point: int) -> torch.Tensor:
    """``x`` as i8, in the operations of PT2E."""
    scaled = torch.round(x * (1.0 / scale)) + zero_point
    return torch.clamp(scaled, -128, 127).to(torch.int8)


def dequantized(q: torch.Tensor, scale: Any, zero_point: Any) -> torch.Tensor:
    return (q.to(torch.float32) - zero_point) * scale


class Static(nn.Module):
    """A layer of i8 activations and weights, in the operations of PT2E."""

    def __init__(self, weight: tuple[int, ...], apply: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.register_buffer(
            "weight", torch.randint(-127, 128, weight, generator=generator, dtype=torch.int8)
        )
        shape = (weight[0], *[1] * (len(weight) - 1))
        self.register_buffer("scales", torch.rand(shape, generator=generator) * 0.01 + 0.001)
        self.register_buffer("bias", torch.randn(weight[0], generator=generator))
        self.apply_to = apply

    def operands(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The integers of activations, less their zero point, and of the weight."""
        return quantized(x, 0.03, -7).to(torch.int64) + 7, self.weight.to(torch.int64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activations = dequantized(quantized(x, 0.03, -7), 0.03, -7)
        weight = dequantized(self.weight, self.scales, 0)
        return self.apply_to(activations, weight, self.bias)


def convolution(**options: int) -> Callable[..., torch.Tensor]:
    return lambda x, w, bias=None: nn.functional.conv2d(x, w, bias, **options)


LAYERS = {
    "linear": ((48, 96), (5, 96), nn.functional.linear),
    "convolution": ((16, 8, 3, 3), (2, 8, 9, 9), convolution(padding=1, stride=2)),
    "groups": ((32, 4, 3, 3), (1, 16, 8, 8), convolution(groups=4)),
    "depthwise": ((32, 1, 3, 3), (1, 32, 8, 8), convolution(padding=1, groups=32)),
}


def remarks_of(module: nn.Module, *args: torch.Tensor, **options: Any) -> tuple[Any, list[str]]:
    """A compiled module, and its remarks on contractions."""
    remarks: list[Any] = []
    compiled = subquant.torch.compile(
        module, args, explain=True, on_remark=remarks.append, **options
    )
    return compiled, [f"{remark.op_name} {remark.message}" for remark in remarks]


def inspected(module: nn.Module, *args: torch.Tensor) -> list[Any]:
    """The quantized tensors of an exported module."""
    return mlir_client.inspect(subquant.torch.export(module.eval(), args).bytecode)


@pytest.mark.parametrize("kernels", INSTRUCTIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_static_layers_contract_integers_exactly(name: str, kernels: str) -> None:
    weight, shape, apply = LAYERS[name]
    module, x = Static(weight, apply).eval(), torch.randn(shape)
    compiled, remarks = remarks_of(module, x, kernels=kernels)
    assert len(remarks) == 1
    assert "is computed by a kernel" in remarks[0]
    q, w = module.operands(x)
    exact = apply(q.to(torch.float64), w.to(torch.float64)).numpy()
    channels = (1, -1) if exact.ndim == 2 else (1, -1, 1, 1)
    scales = (np.float32(0.03) * module.scales.numpy()).reshape(channels)
    bias = module.bias.numpy().reshape(channels)
    rounded = exact.astype(np.float32) * scales + bias
    fused = (exact * scales.astype(np.float64) + bias).astype(np.float32)  # one rounding
    result = compiled(x).numpy()
    assert ((result == rounded) | (result == fused)).all()
    # The sum of floats of eager PyTorch is within its own bound of rounding.
    magnitudes = apply(q.abs().to(torch.float64), w.abs().to(torch.float64)).numpy() * scales
    products = np.prod(weight[1:]) + 3
    assert (np.abs(module(x).numpy() - result) <= products * 2.0**-24 * (magnitudes + 4)).all()


def dynamic_batch() -> Any:
    return ({0: torch.export.Dim("batch", min=1, max=64)},)


def check_batches(module: nn.Module, shape: tuple[int, ...], limit: float) -> None:
    """Compile once, and compare batches of three sizes with eager PyTorch."""
    compiled = subquant.torch.compile(
        module, (torch.randn(2, *shape),), dynamic_shapes=dynamic_batch()
    )
    for size in (1, 3, 8):
        x = torch.randn(size, *shape)
        with torch.no_grad():
            expected = module(x)
        result = compiled(x)
        assert float((result - expected).abs().max()) <= limit * float(expected.abs().max())


@pytest.mark.parametrize("name", ["linear", "convolution"])
def test_static_layers_take_every_batch(name: str) -> None:
    weight, shape, apply = LAYERS[name]
    check_batches(Static(weight, apply).eval(), shape[1:], 1e-6)


class Requantized(nn.Module):
    """A static layer whose result is quantized, as PT2E quantizes each result."""

    def __init__(self, layer: Static) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return quantized(torch.relu(self.layer(x)), 0.05, -128)


@pytest.mark.parametrize("name", LAYERS)
def test_requantized_results_are_those_of_eager_pytorch(name: str) -> None:
    weight, shape, apply = LAYERS[name]
    module, x = Requantized(Static(weight, apply)).eval(), torch.randn(shape)
    compiled = subquant.torch.compile(module, (x,))
    assert torch.equal(compiled(x), module(x))


class DynamicRows(nn.Module):
    """A scale and a zero point computed for each row of activations, as in torchao."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Static((48, 96), nn.functional.linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, high = torch.aminmax(x, dim=1, keepdim=True)
        scale = (high - low) / 255
        zero_point = torch.clamp(-128 - torch.round(low / scale), -128, 127).to(torch.int8)
        q = torch.clamp(torch.round(x / scale) + zero_point, -128, 127).to(torch.int8)
        activations = dequantized(q, scale, zero_point.to(torch.float32))
        return nn.functional.linear(activations, dequantized(self.layer.weight, 0.01, 0))


def test_computed_zero_points_are_subtracted_from_the_sum() -> None:
    module, x = DynamicRows().eval(), torch.randn(5, 96)
    compiled, remarks = remarks_of(module, x)
    assert len(remarks) == 1
    assert "is computed by a kernel" in remarks[0]
    assert compiled(x).numpy() == pytest.approx(module(x).numpy(), rel=1e-5, abs=1e-4)


class DynamicImages(nn.Module):
    """A convolution of images with a computed scale and zero point, in the operations of PT2E."""

    def __init__(self, name: str) -> None:
        super().__init__()
        weight, _, apply = LAYERS[name]
        self.layer = Static(weight, apply)

    def operands(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        low, high = torch.aminmax(x)
        scale = (torch.clamp(high, min=0.0) - torch.clamp(low, max=0.0)) / 255
        steps = torch.round(torch.clamp(low, max=0.0) / scale).to(torch.int32)
        zero_point = torch.clamp(-128 - steps, -128, 127).to(torch.int64)
        q = torch.clamp(torch.round(x / scale) + zero_point, -128, 127).to(torch.int8)
        return q, scale, zero_point

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = dequantized(self.layer.weight, self.layer.scales, 0)
        return self.layer.apply_to(dequantized(*self.operands(x)), weight)


@pytest.mark.parametrize("name", ["convolution", "groups", "depthwise"])
def test_a_computed_zero_point_is_the_padding_of_a_convolution(name: str) -> None:
    module, x = DynamicImages(name).eval(), torch.randn(LAYERS[name][1]) - 0.5
    compiled, remarks = remarks_of(module, x)
    assert len(remarks) == 1
    assert "is computed by a kernel" in remarks[0]
    q, scale, zero_point = module.operands(x)
    accumulators = module.layer.apply_to(q.double() - zero_point, module.layer.weight.double())
    exact = accumulators * scale.double() * module.layer.scales.double().reshape(-1, 1, 1)
    assert compiled(x).numpy() == pytest.approx(exact.numpy(), rel=2e-7, abs=0.0)  # 3 roundings
    bound = 3e-6 * float(exact.abs().max())  # that of eager PyTorch's sums of floats
    assert compiled(x).numpy() == pytest.approx(module(x).numpy(), rel=1e-5, abs=bound)


class WeightOnly(nn.Module):
    """Groups of 32 integers in bytes, with zero points, in the operations of torchao."""

    def __init__(self, low: int, high: int, zero_points: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        shape = (64, 8, 32)
        integers = torch.randint(low, high + 1, shape, generator=generator, dtype=torch.int8)
        self.register_buffer("weight", integers)
        self.register_buffer("scales", torch.rand((64, 8, 1), generator=generator) * 0.01)
        count = high + 1 if zero_points else 1
        points = torch.randint(0, count, (64, 8, 1), generator=generator, dtype=torch.int8)
        self.register_buffer("zero_points", points)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = self.weight.to(torch.float32) - self.zero_points.to(torch.float32)
        return nn.functional.linear(x, (shifted * self.scales).reshape(64, 256))


@pytest.mark.parametrize(
    ("low", "high", "zero_points", "bits"),
    [
        *[(-2, 1, False, 3.0), (-4, 3, False, 4.0), (-4, 3, True, 4.25)],
        *[(-8, 7, False, 5.0), (-8, 7, True, 5.125), (-9, 7, False, 6.0), (-32, 31, False, 7.0)],
        *[(-32, 31, True, 7.25), (-33, 31, False, 9.0)],
    ],
)
def test_weights_have_the_bits_of_their_range(
    low: int, high: int, zero_points: bool, bits: float
) -> None:
    module, x = WeightOnly(low, high, zero_points).eval(), torch.randn(4, 256)
    [tensor] = inspected(module, x)
    assert tensor.bits_per_element == bits
    compiled, remarks = remarks_of(module, x)
    assert len(remarks) == 1
    assert "is computed by a kernel" in remarks[0]
    assert compiled(x).numpy() == pytest.approx(module(x).numpy(), rel=1e-5, abs=1e-4)


class Rounded(nn.Module):
    """A layer that quantizes its float weight at each call, as Brevitas does."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.linear, self.limit = nn.Linear(256, 128), limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.linear.weight
        scale = torch.abs(weight.reshape(-1)).max() / self.limit
        rounded = torch.round(weight / scale)
        rounded = torch.where(rounded > self.limit, self.limit, rounded)
        rounded = torch.clamp(rounded, -self.limit, self.limit)
        return nn.functional.linear(x, rounded * scale, self.linear.bias)


@pytest.mark.parametrize(("limit", "width"), [(7.0, 4), (127.0, 8), (1.0, 2)])
def test_rounded_weights_are_integers_with_a_scale(limit: float, width: int) -> None:
    torch.manual_seed(0)
    module, x = Rounded(limit).eval(), torch.randn(4, 256)
    weight = module.linear.weight.detach()
    [tensor] = inspected(module, x)
    assert tensor.parameters.storage.width == width
    assert tensor.scale_range == (scale := float(weight.abs().max() / limit), scale)
    compiled, remarks = remarks_of(module, x)
    assert len(remarks) == 1
    assert "is computed by a kernel" in remarks[0]
    with torch.no_grad():
        assert compiled(x).numpy() == pytest.approx(module(x).numpy(), rel=1e-5, abs=1e-5)


class IntegerMatmul(nn.Module):
    """The integer matrix product of torchao's dynamic quantization."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Static((48, 96), nn.functional.linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(quantized(x, 0.03, 0), self.layer.weight.t())


def test_an_integer_matmul_is_computed_by_a_kernel() -> None:
    module, x = IntegerMatmul().eval(), torch.randn(32, 96)
    compiled, remarks = remarks_of(module, x)
    assert len(remarks) == 1
    assert "is computed by a kernel" in remarks[0]
    assert torch.equal(compiled(x), module(x))


# -- torchao --------------------------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, 128, bias=False), nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.silu(self.first(x)))


class Images(nn.Module):
    """A convolution, a depthwise and a pointwise one, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.pointwise, self.last = nn.Conv2d(16, 32, 1), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.pointwise(self.depthwise(torch.relu(self.first(x)))))
        return self.last(x.mean((2, 3)))


def pt2e(
    module: nn.Module, x: torch.Tensor, dynamic_shapes: Any = None, **options: bool
) -> nn.Module:
    pytest.importorskip("torchao", reason="PT2E's quantizers are in torchao")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.testing.pt2e._xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(**options))
    program = torch.export.export(module, (x,), dynamic_shapes=dynamic_shapes)
    prepared = prepare_pt2e(program.module(), quantizer)
    for _ in range(4):
        prepared(torch.randn_like(x))
    return convert_pt2e(prepared)


@pytest.mark.parametrize("is_per_channel", [False, True])
@pytest.mark.parametrize(("module", "shape"), [(Mlp, (4, 256)), (Images, (2, 3, 16, 16))])
def test_pt2e_uses_kernels(
    module: type[nn.Module], shape: tuple[int, ...], is_per_channel: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    converted = pt2e(module().eval(), x, is_per_channel=is_per_channel)
    compiled, remarks = remarks_of(converted, x)
    assert len(remarks) == (2 if module is Mlp else 4)
    assert all("is computed by a kernel" in remark for remark in remarks)
    if module is Mlp:  # the others are compared in test_torch_ties.py
        assert torch.equal(compiled(x), converted(x))


@pytest.mark.parametrize("options", [{}, {"is_per_channel": True}, {"is_dynamic": True}])
def test_layers_of_pt2e_take_every_batch(options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 256)
    converted = pt2e(Mlp().eval(), x, dynamic_batch(), **options)
    check_batches(converted, (256,), 1e-6 if options.get("is_dynamic") else 0.0)


@pytest.mark.parametrize("is_per_channel", [False, True])
def test_dynamic_pt2e_contracts_integers(is_per_channel: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 256)
    converted = pt2e(Mlp().eval(), x, is_per_channel=is_per_channel, is_dynamic=True)
    compiled, remarks = remarks_of(converted, x)
    assert len(remarks) == 2
    assert all("dot_general is computed by a kernel" in remark for remark in remarks)
    result, expected = compiled(x), converted(x)
    assert (result - expected).abs().max() <= 1e-6 * expected.abs().max()


def torchao(name: str) -> nn.Module:
    pytest.importorskip("torchao")
    from torchao import quantization

    group = quantization.PerGroup(32)
    configs = {
        "int4": lambda: quantization.IntxWeightOnlyConfig(
            weight_dtype=torch.int4, granularity=group
        ),
        "int2": lambda: quantization.IntxWeightOnlyConfig(
            weight_dtype=torch.int2, granularity=group
        ),
        "8da4w": lambda: quantization.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=group
        ),
        "int8": quantization.Int8WeightOnlyConfig,
        "int8_dynamic": quantization.Int8DynamicActivationInt8WeightConfig,
    }
    torch.manual_seed(0)
    module = Mlp().eval()
    quantization.quantize_(module, configs[name]())
    return module


@pytest.mark.parametrize("name", ["int4", "int2", "8da4w", "int8", "int8_dynamic"])
def test_layers_of_torchao_use_kernels(name: str) -> None:
    module, x = torchao(name), torch.randn(4, 256)
    compiled, remarks = remarks_of(module, x)
    remarks = [remark for remark in remarks if "is computed by a kernel" in remark]
    assert len(remarks) == 2
    if name == "int8_dynamic":
        assert all("dot_general" in remark for remark in remarks)
    with torch.no_grad():
        assert compiled(x).numpy() == pytest.approx(module(x).numpy(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", ["int4", "8da4w", "int8", "int8_dynamic"])
def test_layers_of_torchao_take_every_batch(name: str) -> None:
    check_batches(torchao(name), (256,), 2e-6)


@pytest.mark.parametrize(("name", "bits"), [("int4", 5.0), ("int2", 3.0), ("8da4w", 5.0)])
def test_groups_of_torchao_are_packed(name: str, bits: float) -> None:
    tensors = [
        tensor
        for tensor in inspected(torchao(name), torch.randn(4, 256))
        if tensor.shape in ((128, 256), (128, 128))
    ]
    assert [tensor.bits_per_element for tensor in tensors] == [bits, bits]
