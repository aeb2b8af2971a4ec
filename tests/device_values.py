"""Reals, integers and a quantized type for programs that run on each device."""

from __future__ import annotations

import numpy as np
import pytest

from subquant.numerics.parameters import ExpressedType, QuantizationParameters, StorageType

F32 = ExpressedType.F32
I8 = StorageType(8)
PER_TENSOR = "!quant.uniform<i8:f32, 0.25:3>"
PER_TENSOR_PARAMETERS = QuantizationParameters(I8, F32, (), (), np.array(0.25), np.array(3))
VULKAN = [pytest.param(name, marks=pytest.mark.vulkan) for name in ("vulkan", "vulkan_32bit")]
ALL_DEVICES = ["cpu", *VULKAN]


def values(shape: tuple[int, ...], span: float = 300.0) -> np.ndarray:
    """Floats, half of them multiples of 1/8, so that there are ties."""
    rng = np.random.default_rng(sum(shape))
    x = rng.uniform(-span, span, shape)
    return np.where(rng.random(shape) < 0.5, np.rint(x * 8) / 8, x).astype(np.float32)


def integers(shape: tuple[int, ...], low: int = -128, high: int = 127) -> np.ndarray:
    rng = np.random.default_rng(sum(shape) + 1)
    dtype = np.int8 if low < 0 else np.uint8
    return rng.integers(low, high, shape, endpoint=True).astype(dtype)
