"""Modules of `subquant.torch.nn`: eager, compiled, and as the layers of NumPy compute."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

import subquant.torch  # noqa: E402  (needs torch)
from ggml_blocks import COMPUTED, moderate_blocks  # noqa: E402
from subquant import ops  # noqa: E402
from subquant.compiler import mlir_client  # noqa: E402
from subquant.errors import UnsupportedError, UsageError  # noqa: E402
from subquant.layouts import (  # noqa: E402
    ActivationQuantization,
    BlockAffineLayout,
    BlockScaledFloat8Layout,
    DynamicScaledQuantizer,
    InferenceTensor,
    LookupBlockScaledLayout,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedLayout,
    QuantizedTensor,
    StaticScaledQuantizer,
)
from subquant.numerics.parameters import StorageType  # noqa: E402
from subquant.torch import nn  # noqa: E402
from subquant.weights.quantizing import WeightQuantization, quantize_array  # noqa: E402
from subquant.weights.theta import Theta  # noqa: E402

FLOAT_ERROR = 1e-6
"""The relative error of a sum of 256 products, at most: floats are added in any order."""


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def quantized(array: np.ndarray, **how: Any) -> PlanarQuantizedTensor:
    return PlanarQuantizedTensor(quantize_array(array, WeightQuantization(**how)), "weight")


def reals(result: Any) -> np.ndarray:
    return result.unpack().dequant() if isinstance(result, QuantizedTensor) else result


def error_of(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def compiled_result(module: torch.nn.Module, *inputs: torch.Tensor) -> tuple[np.ndarray, str]:
    """The result of the compiled module, and the remarks."""
    remarks: list[Any] = []
    compiled = subquant.torch.compile(module, inputs, explain=True, on_remark=remarks.append)
    return compiled(*inputs).numpy(), "\n".join(map(str, remarks))


def ordered_layout() -> QuantizedLayout:
    rng = np.random.default_rng(2)
    stored, zero_points = (rng.integers(0, 16, (32, n), np.int32) for n in (256, 8))
    scales = rng.uniform(0.01, 0.1, (32, 8)).astype(np.float32)
    order = rng.permutation(256).astype(np.int32)
    storage = StorageType(4, False)
    return BlockAffineLayout.of(stored.astype(np.uint8), scales, zero_points, (1, 32), storage,
                                order)  # fmt: skip


def float8_layout(rows: int = 32) -> QuantizedLayout:
    rng = np.random.default_rng(3)
    planes = {
        "d": rng.uniform(0.01, 0.1, (rows // 32, 2)).astype(np.float32),
        "qs": rng.integers(0, 120, (rows, 256), np.uint8),
    }
    return BlockScaledFloat8Layout(
        (rows, 256), planes, {"block_shape": [32, 128], "format": "f8E4M3FN"}
    )


WEIGHTS: dict[str, InferenceTensor] = {
    **{name: moderate_blocks(name, (32, 256), np.random.default_rng(1)) for name in COMPUTED},
    **{
        f"{bits} bits": quantized(normal(32, 256), bits=bits, asymmetric=bits % 2 == 0)
        for bits in range(2, 9)
    },
    "signed nibbles": quantized(normal(32, 256), bits=4),
    "axis": quantized(normal(32, 256), granularity="axis"),
    "columns in another order": PlanarQuantizedTensor(ordered_layout(), "weight"),
    "float8": PlanarQuantizedTensor(float8_layout(), "weight"),
    "float": PrimitiveTensor(normal(32, 256), "weight"),
}


def lookup_layout(table: list[Any], block: int, **planes: Any) -> QuantizedLayout:
    rng = np.random.default_rng(5)
    scales = rng.uniform(0.01, 0.1, (512, 256 // block, 1)).astype(planes.pop("scales", np.float32))
    indices = rng.integers(0, 256, (512, 256 // block, block // 2), np.uint8)
    return LookupBlockScaledLayout(
        (512, 256), {"d": scales, "qs": indices, **planes}, {"table": table}
    )


E2M1 = [sign * each for sign in (1, -1) for each in (0, 1, 2, 3, 4, 6, 8, 12)]
LOOKUPS: dict[str, tuple[QuantizedLayout, float | None]] = {
    "MXFP4": (lookup_layout(E2M1, 32), 5.0),
    "NVFP4": (
        lookup_layout(E2M1, 16, scales=np.float16, divisor=np.float32(1.5).reshape(())), 6.0
    ),
    "NF4": (lookup_layout(np.linspace(-1, 1, 16, dtype=np.float32).tolist(), 64), None),
}  # fmt: skip
"""Layouts of indices, and the bits of an element: floats that are looked up are not inspected."""


@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups_are_computed_by_a_kernel(name: str) -> None:
    layout, bits = LOOKUPS[name]
    module = nn.Linear(PlanarQuantizedTensor(layout, "weight")).eval()
    x = torch.from_numpy(normal(3, 256))
    result, remarks = compiled_result(module, x)
    assert "is computed by a kernel" in remarks
    assert error_of(result, ops.linear(x.numpy(), layout)) < FLOAT_ERROR
    tensors = mlir_client.inspect(subquant.torch.export(module, (x,)).bytecode)
    assert [each.bits_per_element for each in tensors] == ([] if bits is None else [bits])


def test_float8_weights_are_computed_by_a_kernel() -> None:
    layout, x = float8_layout(512), normal(3, 256)
    module = nn.Linear(PlanarQuantizedTensor(layout, "weight")).eval()
    result, remarks = compiled_result(module, torch.from_numpy(x))
    assert "is computed by a kernel" in remarks
    assert error_of(result, ops.linear(x, layout)) < FLOAT_ERROR


@functools.cache
def layouts_compiled() -> Any:
    """One executable with a function for each weight."""
    example = torch.zeros(3, 256)
    return subquant.torch.compile(
        {name_of(name): nn.Linear(weight).eval() for name, weight in WEIGHTS.items()}, (example,)
    )


def name_of(weight: str) -> str:
    return re.sub(r"\W", "_", f"linear {weight}")


@pytest.mark.parametrize("name", WEIGHTS)
def test_linear_takes_weights_of_all_layouts(name: str) -> None:
    """Buffers have the values of their planes, to the bit; sums of floats differ in their order."""
    weight, x = WEIGHTS[name], normal(3, 256, seed=4)
    module = nn.Linear(weight).eval()
    if isinstance(weight, QuantizedTensor):
        layout = module._theta().tensor("weight").unpack()
        assert np.array_equal(layout.dequant().tensor.numpy(), weight.unpack().dequant())
    expected = ops.linear(x, weight)
    eager = module(torch.from_numpy(x))
    assert error_of(eager.numpy(), expected) < FLOAT_ERROR
    compiled = layouts_compiled().call(name_of(name), torch.from_numpy(x))
    assert error_of(compiled.numpy(), expected) < FLOAT_ERROR


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_blocks_are_computed_by_a_kernel(bits: int, asymmetric: bool) -> None:
    module = nn.Linear(quantized(normal(128, 256), bits=bits, asymmetric=asymmetric)).eval()
    x = torch.from_numpy(normal(1, 256))
    _, remarks = compiled_result(module, x)
    assert "is computed by a kernel" in remarks
    [tensor] = mlir_client.inspect(subquant.torch.export(module, (x,)).bytecode)
    zero_point_bits = (bits if bits in (2, 4) else 8) if asymmetric else 0
    assert tensor.bits_per_element == bits + (32 + zero_point_bits) / 32


QUANTIZERS = {
    "static": (False, StaticScaledQuantizer(reciprocal_scale=np.float32(0.03))),
    "static, offset": (
        False,
        StaticScaledQuantizer(reciprocal_scale=np.float32(0.03), offset=np.int8(5)),
    ),
    "static, unsigned, weight with offsets": (
        True,
        StaticScaledQuantizer(
            reciprocal_scale=np.float32(0.03), offset=np.uint8(130), dtype=np.uint8
        ),
    ),
    "dynamic": (False, DynamicScaledQuantizer()),
}


def integer_theta(name: str, weight: np.ndarray) -> Theta:
    asymmetric, quantizer = QUANTIZERS[name]
    tensor = quantized(weight, granularity="axis", asymmetric=asymmetric)
    return Theta({"weight": tensor, "q_input": quantizer})


@pytest.mark.parametrize("name", QUANTIZERS)
def test_linear_multiplies_integers_exactly(name: str) -> None:
    """The sums are exact, and each result is rounded as in NumPy."""
    theta, x = integer_theta(name, normal(32, 256)), normal(4, 256, seed=1)
    with ops.recorded() as ran:
        expected = ops.Linear(theta)(x)
        module = nn.Linear(theta).eval()
        eager = module(torch.from_numpy(x)).numpy()
    assert [(each.op, each.implementation) for each in ran] == [("linear", "affine")] * 2
    assert np.array_equal(eager, expected)
    assert np.array_equal(compiled_result(module, torch.from_numpy(x))[0], expected)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_conv2d_multiplies_integers_exactly(name: str) -> None:
    theta, x = integer_theta(name, normal(16, 4, 3, 3)), normal(2, 8, 9, 10, seed=1)
    options = {"padding": ((1, 2), (0, 1)), "groups": 2}
    expected = ops.Conv2d(theta, strides=(2, 1), dilations=(1, 2), **options)(x)
    module = nn.Conv2d(theta, stride=(2, 1), dilation=(1, 2), **options).eval()
    assert np.array_equal(module(torch.from_numpy(x)).numpy(), expected)
    assert np.array_equal(compiled_result(module, torch.from_numpy(x))[0], expected)


@pytest.mark.parametrize("bits", [4, 8])
def test_conv2d_dequantizes_weights_of_floats(bits: int) -> None:
    weight, x, bias = quantized(normal(16, 8, 3, 32), bits=bits), normal(1, 8, 5, 40), normal(16)
    expected = ops.conv2d(x, weight, bias, padding=(1, 1))
    module = nn.Conv2d(weight, torch.from_numpy(bias), padding=1).eval()
    assert error_of(module(torch.from_numpy(x)).numpy(), expected) < FLOAT_ERROR
    assert error_of(compiled_result(module, torch.from_numpy(x))[0], expected) < FLOAT_ERROR


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q4_K", "axis", "float"])
def test_embedding_dequantizes_rows(name: str) -> None:
    ids = np.array([[1, 31], [0, 7]])
    expected = ops.embedding_lookup(ids, WEIGHTS[name])
    module = nn.Embedding(WEIGHTS[name]).eval()
    assert np.array_equal(module(torch.from_numpy(ids)).numpy(), expected)
    assert np.array_equal(compiled_result(module, torch.from_numpy(ids))[0], expected)


def test_a_linear_with_all_tensors_computes_as_in_numpy() -> None:
    theta = Theta(
        {
            "weight": quantized(normal(32, 256), granularity="axis"),
            "bias": PrimitiveTensor(normal(32, seed=1)),
            "premul_input": PrimitiveTensor(np.abs(normal(256, seed=2))),
            "q_input": StaticScaledQuantizer(reciprocal_scale=np.float32(0.05)),
            "q_output": StaticScaledQuantizer(reciprocal_scale=np.float32(0.5)),
        }
    )
    x = normal(4, 256, seed=3)
    expected = reals(ops.Linear(theta)(x))
    module = nn.Linear(theta).eval()
    assert np.array_equal(module(torch.from_numpy(x)).numpy(), expected)
    assert np.array_equal(compiled_result(module, torch.from_numpy(x))[0], expected)


def test_planes_are_in_the_state() -> None:
    source = nn.Linear(quantized(normal(32, 256), bits=4), torch.ones(32))
    target = nn.Linear(quantized(normal(32, 256, seed=1), bits=4), torch.zeros(32))
    assert list(source.state_dict()) == ["weight_d", "weight_qs", "weight_z", "bias"]
    assert source.weight_qs.dtype == torch.uint8
    target.load_state_dict(source.state_dict())
    x = torch.from_numpy(normal(2, 256))
    assert torch.equal(source(x), target(x))


def test_results_have_the_type_of_the_input() -> None:
    module = nn.Linear(quantized(normal(32, 256), bits=4))
    x = torch.from_numpy(normal(2, 256))
    assert module(x.to(torch.bfloat16)).dtype == torch.bfloat16
    half = module.to(torch.float16)
    assert half.weight_d.dtype == torch.float16
    assert error_of(half(x).numpy(), module(x).numpy()) < 1e-3  # scales of f16


def test_missing_and_unknown_tensors_are_refused() -> None:
    with pytest.raises(UsageError, match=r"Embedding has the tensors \['bias', 'weight'\]"):
        nn.Embedding(torch.ones(4, 2), torch.ones(4))
    with pytest.raises(UsageError, match=r"Linear has the tensors \['scale'\], expected 'weight'"):
        nn.Linear(Theta({"scale": PrimitiveTensor(np.ones(3))}))
    with pytest.raises(UsageError, match="'weight' is a list, expected a tensor"):
        nn.Linear([1.0])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"linear takes x \[..., K\] and w \[N, K\]"):
        nn.Linear(torch.ones(4, 2))(torch.ones(1, 3))


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 64, padding_idx=0)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2))
        self.blocks.append(self.blocks[0])
        self.images = torch.nn.Conv2d(1, 8, 3, stride=1, padding="same")
        self.recurrent = torch.nn.GRU(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = x + torch.nn.functional.gelu(block(x))
        return self.images(x[:, None])


def network() -> Network:
    torch.manual_seed(0)
    return Network().eval()


EIGHT_BITS = WeightQuantization(granularity="axis")


def test_a_quantized_module_computes_nearly_as_before() -> None:
    ids = torch.arange(24).reshape(2, 12)
    module = network()
    with torch.no_grad():
        expected = module(ids).numpy()
    report = subquant.torch.quantize_module(
        module, {"images": EIGHT_BITS, "": WeightQuantization()}
    )
    assert [each.name for each in report.errors] == ["table", "blocks.0", "blocks.1", "images"]
    assert report.unchanged == {"recurrent": "a GRU is not replaced"}
    assert "blocks.0: 64x64, 9.00 bits an element, signal to noise" in str(report)
    assert module.blocks[0] is module.blocks[2]
    eager = module(ids).numpy()
    assert 1e-5 < error_of(eager, expected) < 1e-2  # steps of 1/254 of the greatest weight
    assert error_of(compiled_result(module, ids)[0], eager) < FLOAT_ERROR
    assert (
        error_of(module.blocks[0].weight.numpy(), network().blocks[0].weight.detach().numpy())
        < 0.01
    )


def test_layers_may_be_kept() -> None:
    module = network()
    report = subquant.torch.quantize_module(module, {r"blocks\.1": WeightQuantization(bits=4)})
    assert [each.name for each in report.errors] == ["blocks.1"]
    assert report.unchanged["table"] == "no quantization is given for its name"
    assert type(module.blocks[0]) is torch.nn.Linear
    assert isinstance(module.blocks[1], nn.Linear)
    assert (module.blocks[1].in_features, module.blocks[1].out_features) == (64, 64)


class Derived(torch.nn.Linear):
    """A layer that may compute something else."""


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "layer": (torch.nn.Linear(32, 32), EIGHT_BITS, "the module is a Linear, which cannot"),
    "blocks": (
        torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3)),
        WeightQuantization(),
        "weight of Conv2d '0' has a last axis of 3 elements.* one with granularity='axis'",
    ),
    "derived": (
        torch.nn.Sequential(Derived(32, 32)), WeightQuantization(), "'0' is a Derived, of a derived"
    ),
    "padding": (
        torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")),
        EIGHT_BITS,
        "'0' pads with other values than zeros; keep it",
    ),
    "norm": (
        torch.nn.Sequential(torch.nn.Embedding(4, 32, max_norm=1.0)), EIGHT_BITS, "limits the norms"
    ),
    "pattern": (
        torch.nn.Sequential(torch.nn.Linear(32, 32)), {"head": EIGHT_BITS}, "'head' applies to no"
    ),
    "expression": (torch.nn.Sequential(), {"(": EIGHT_BITS}, r"'\(' is no regular expression"),
    "no quantization": (
        torch.nn.Sequential(torch.nn.Linear(8, 4)), 4, "expected a WeightQuantization, .* got 4"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_modules_that_cannot_be_quantized_are_refused(name: str) -> None:
    module, how, message = REFUSED[name]
    before = [type(each) for each in module.modules()]
    with pytest.raises((UsageError, UnsupportedError), match=message):
        subquant.torch.quantize_module(module, how)
    assert [type(each) for each in module.modules()] == before


ACTIVATIONS: dict[str, tuple[ActivationQuantization, dict[str, Any], bool]] = {
    "tokens": (ActivationQuantization("i8"), {"granularity": "axis"}, True),
    "zero points": (
        ActivationQuantization("i8", is_symmetric=False), {"granularity": "axis"}, True
    ),
    "static": (
        ActivationQuantization("i8", "tensor", is_dynamic=False, scale=0.03),
        {"granularity": "axis"},
        True,
    ),
    "MXFP4": (
        ActivationQuantization("f4E2M1FN", "group", 32, scale_type="f8E8M0FNU"), {"bits": 4}, False
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_rounded_as_a_checkpoint_asks_for(name: str) -> None:
    settings, how, is_exact = ACTIVATIONS[name]
    layout = quantize_array(normal(32, 256), WeightQuantization(**how))
    metadata = {**layout.metadata, "activations": settings.record}
    weight = PlanarQuantizedTensor(type(layout)(layout.shape, layout.planes, metadata), "weight")
    x = normal(2, 3, 256, seed=1)
    expected = ops.Linear(Theta({"weight": weight}))(x)
    module = nn.Linear(weight).eval()
    eager, compiled = module(torch.from_numpy(x)), compiled_result(module, torch.from_numpy(x))[0]
    assert np.abs(expected - ops.linear(x, weight)).max() > 0.01
    if is_exact:
        assert np.array_equal(eager.numpy(), expected)
        assert np.array_equal(compiled, expected)
    assert max(error_of(each, expected) for each in (eager.numpy(), compiled)) < FLOAT_ERROR


def test_a_convolution_of_integers_is_computed_by_a_kernel() -> None:
    theta = integer_theta("static", normal(16, 8, 3, 3))
    module = nn.Conv2d(theta, padding=1).eval()
    _, remarks = compiled_result(module, torch.from_numpy(normal(1, 8, 16, 16)))
    assert "is computed by a kernel" in remarks


def test_a_convolution_of_rounded_floats_is_refused() -> None:
    layout = quantize_array(normal(4, 4, 1, 1), EIGHT_BITS)
    settings = {"activations": ActivationQuantization("i8").record}
    weight = PlanarQuantizedTensor(type(layout)(layout.shape, layout.planes, settings), "c.weight")
    with pytest.raises(UsageError, match=r"'weight' asks for a rounded input.*tensor q_input"):
        nn.Conv2d(weight)(torch.ones(1, 4, 2, 2))


def test_one_executable_takes_several_sizes_of_a_batch() -> None:
    module = nn.Linear(quantized(normal(32, 256), bits=4), torch.ones(32)).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    compiled = subquant.torch.compile(
        module, (torch.zeros(4, 256),), dynamic_shapes={"x": {0: batch}}
    )
    for size in (1, 7, 64):
        x = torch.from_numpy(normal(size, 256))
        assert error_of(compiled(x).numpy(), module(x).numpy()) < FLOAT_ERROR
