"""Folders of torchao, quantized and saved by transformers on the CPU.

``torchao_int4`` is torchao's `Int4Tensor`, two weights in a byte, for which torchao calls two
functions of mslk, a library for GPUs: `_quantize_int4` and `_pack_int4` stand in for them. torchao
has no dequantization of it, so the reference is the formula of mslk's kernels, with q from -8 to 7:
``weight[n, k] = q[n, k] * scale[k // 32, n] + zero_point[k // 32, n]``.

``torchao_intx4`` has a byte for each weight of 4 bits, and integer zero points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torchao.core.config import AOBaseConfig
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxUnpackedToInt8Tensor,
    IntxWeightOnlyConfig,
    PerGroup,
)
from torchao.quantization.quantize_.workflows.int4 import int4_tensor
from torchao.utils import TorchAOBaseTensor
from transformers import AutoModelForCausalLM, TorchAoConfig

from .architectures import load_float32, one_block_config
from .models import (
    check_loads,
    float32_model,
    forward,
    random_model,
    read_arrays,
    tokens_of,
    write_expected,
)

_GROUP = 32
_STEPS = 15
"""The number of steps between the least and the largest value of 4 bits."""


def _quantize_int4(
    weight: torch.Tensor, group_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return integers from -8 to 7, and the transposed scales and float zero points."""
    groups = weight.float().unflatten(-1, (-1, group_size))
    least, largest = groups.amin(-1), groups.amax(-1)
    scales = (largest - least) / _STEPS
    zero_points = least + 8 * scales
    steps = ((groups - least[..., None]) / scales[..., None]).round().clamp(0, _STEPS)
    return (
        (steps - 8).flatten(-2).to(torch.int8),
        scales.T.contiguous(),
        zero_points.T.contiguous(),
    )


def _pack_int4(values: torch.Tensor) -> torch.Tensor:
    """Return two integers in each byte, the first one in the low bits."""
    pairs = values.unflatten(-1, (-1, 2))
    return ((pairs[..., 0] & 0xF) | (pairs[..., 1] << 4)).contiguous()


@contextmanager
def _replaced_mslk() -> Iterator[None]:
    """Replace mslk's functions in torchao."""
    names = {"int4_row_quantize_zp": _quantize_int4, "pack_int4": _pack_int4}
    saved = {name: getattr(int4_tensor, name) for name in names}
    for name, function in names.items():
        setattr(int4_tensor, name, function)
    try:
        yield
    finally:
        for name, function in saved.items():
            setattr(int4_tensor, name, function)


def _dequantized(weight: TorchAOBaseTensor) -> torch.Tensor:
    """Return a weight in float32, of scales in float32."""
    if isinstance(weight, int4_tensor.Int4Tensor):
        low, high = (weight.qdata << 4) >> 4, weight.qdata >> 4
        values = torch.stack([low, high], -1).flatten(-2).float()
        scales, zero_points = (
            plane.float().T.repeat_interleave(_GROUP, 1)
            for plane in (weight.scale, weight.zero_point)
        )
        return values * scales + zero_points
    if isinstance(weight, IntxUnpackedToInt8Tensor):
        return weight.to(torch.float32).dequantize()
    return weight.dequantize(torch.float32)


def _write(folder: Path, quantization: AOBaseConfig, has_quantized_forward: bool = False) -> None:
    config = one_block_config()
    with TemporaryDirectory() as temporary, _replaced_mslk():
        random_model(config).save_pretrained(temporary)
        AutoModelForCausalLM.from_pretrained(
            temporary,
            dtype=torch.bfloat16,
            device_map="cpu",
            quantization_config=TorchAoConfig(quantization),
        ).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    is_packed = isinstance(quantization, Int4WeightOnlyConfig)
    state, rounded = {}, {}
    for name, parameter in model.named_parameters():
        if isinstance(parameter, TorchAOBaseTensor):
            state[name] = _dequantized(parameter.data)
            if not is_packed:
                rounded[name] = parameter.dequantize()
    layers = tuple(name.removesuffix("weight") for name in state)
    arrays = read_arrays(folder)
    state |= {name: array for name, array in arrays.items() if not name.startswith(layers)}
    reference = float32_model(config, state)
    quantized_logits = None
    if has_quantized_forward:
        quantized = load_float32(folder)
        for module in quantized.modules():
            if isinstance(getattr(module, "weight", None), TorchAOBaseTensor):
                module.weight = torch.nn.Parameter(module.weight.to(torch.float32), False)
        quantized_logits = forward(quantized, tokens_of(config))
    write_expected(folder, reference, state, rounded, quantized_logits)
    if not is_packed:  # its product needs mslk
        check_loads(folder, reference)


FOLDERS: dict[str, Callable[[Path], None]] = {
    "torchao_int8": lambda folder: _write(folder, Int8WeightOnlyConfig()),
    "torchao_int4": lambda folder: _write(folder, Int4WeightOnlyConfig(group_size=_GROUP)),
    "torchao_intx4": lambda folder: _write(
        folder, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(_GROUP))
    ),
    "torchao_int8_dynamic": lambda folder: _write(
        folder, Int8DynamicActivationInt8WeightConfig(), has_quantized_forward=True
    ),
    "torchao_intx4_dynamic": lambda folder: _write(
        folder,
        Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(_GROUP)
        ),
        has_quantized_forward=True,
    ),
    "torchao_float8": lambda folder: _write(folder, Float8WeightOnlyConfig()),
}
"""The function that writes each folder."""
