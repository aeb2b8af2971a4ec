"""Tensors, and eager and compiled results, for tests of operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from ggml_blocks import moderate_blocks
from subquant.layouts import (
    DynamicScaledQuantizer,
    GgmlTensor,
    QuantizedTensor,
    StaticScaledQuantizer,
)
from subquant.ops import (
    Compiled,
    Op,
    Ran,
    compile_function,
    recorded,
    trace_function,
)
from subquant.runtime import Device
from together import Together

UNIT = 2.0**-24


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return rng(seed).normal(size=shape).astype(np.float32)


def reals(value: Any) -> np.ndarray:
    """Return the dequantized tensor in float64."""
    array = value.unpack().dequant() if isinstance(value, QuantizedTensor) else np.asarray(value)
    return np.asarray(array, np.float64)


def compiled(function: Callable[..., Any], arguments: list[Any], device: Device) -> np.ndarray:
    target = "vulkan" if device.is_vulkan else "llvm-cpu"
    call = compile_function(function, *arguments, target=target, device=device)
    return np.asarray(call(*arguments))


def exact_product(
    x: Any, w: Any, product: Callable[[np.ndarray, np.ndarray], np.ndarray], axes: tuple[int, ...]
) -> np.ndarray:
    """An exact product of integers, rounded to float32 and scaled there.

    The integers are storage values less offsets. `axes` is the shape of the weight's scales.
    """
    layouts = [tensor.unpack() for tensor in (x, w)]
    integers = [
        layout.planes["qs"].astype(np.int64) - layout.planes.get("m", np.int64(0)).astype(np.int64)
        for layout in layouts
    ]
    scales = layouts[0].planes["d"].reshape(()) * layouts[1].planes["d"].reshape(axes)
    return product(*integers).astype(np.float32) * scales


def ran_as(implementation: str, op: Op, *arguments: Any, **options: Any) -> Any:
    """Return the result of an operation, whose implementation is the one that is meant."""
    with recorded() as ran:
        result = op(*arguments, **options)
    assert ran == [Ran(op.name, implementation)]
    return result


Cases = Callable[[], dict[str, tuple[Callable[..., Any], list[Any]]]]
"""Functions, each with its arguments."""


def text_of(function: Callable[..., Any], *arguments: Any) -> str:
    return str(trace_function(function, *arguments))


@functools.cache
def together(cases: Cases) -> Together:
    return Together(
        {name: text_of(function, *arguments) for name, (function, arguments) in cases().items()}
    )


def compiled_with(cases: Cases, name: str, device: Device) -> np.ndarray:
    """Return a result of `compiled`, in one module with the other cases."""
    function, arguments = cases()[name]
    call = Compiled(
        together(cases).function(name, device), lambda: trace_function(function, *arguments)
    )
    return np.asarray(call(*arguments))


def on_devices(names: Iterable[str], on_vulkan: Iterable[str]) -> Any:
    """All names on the CPU, and some of them on Vulkan."""
    cases = [(name, "cpu") for name in names]
    marked = [pytest.param(name, "vulkan", marks=pytest.mark.vulkan) for name in on_vulkan]
    return pytest.mark.parametrize(("name", "device_name"), [*cases, *marked])


def per_tensor(values: np.ndarray, offset: int | None = None, dtype: Any = np.int8) -> Any:
    scale = np.float32(np.abs(values).max() / 100)
    return StaticScaledQuantizer(None, scale, offset, dtype=dtype).quantize(values, "x")


def per_row(values: np.ndarray, offsets: Any = None, dtype: Any = np.int8) -> Any:
    axes = tuple(range(1, values.ndim))
    scales = (np.abs(values).max(axis=axes) / 100).astype(np.float32)
    return StaticScaledQuantizer(None, scales, offsets, axis=0, dtype=dtype).quantize(values, "w")


def blocks(values: np.ndarray) -> QuantizedTensor:
    return DynamicScaledQuantizer(block_size=32).quantize(values, "w")


def ggml(name: str, shape: tuple[int, int], seed: int = 0) -> GgmlTensor:
    """Random blocks with scales of a moderate size."""
    return moderate_blocks(name, shape, rng(seed))
