"""Quantization of the weight of a layer: per output channel, or in blocks of its inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import UsageError
from ...numerics.casts import quantize
from ...numerics.element_types import Array
from ...numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from ...weights.grids import fit_grid
from ..gptq import gptq, refit_scales
from ..moments import InputMoments

_LEAST_SCALE = np.float32(np.finfo(np.float32).tiny) * 4

_REFITS = 2
"""Rounds of GPTQ, each followed by scales that fit its integers."""


@dataclass(frozen=True)
class QuantizedWeight:
    """The integers of a weight, and their parameters."""

    integers: Array
    parameters: QuantizationParameters


def symmetric_storage(bits: int) -> StorageType:
    """Signed storage without the least integer."""
    high = (1 << (bits - 1)) - 1
    return StorageType(bits, True, -high, high)


def quantize_per_channel(weight: Array, axis: int, bits: int = 8) -> QuantizedWeight:
    """Round a float32 weight to nearest, with a scale for each index of an axis."""
    storage = symmetric_storage(bits)
    reduced = tuple(each for each in range(weight.ndim) if each != axis)
    scales = np.abs(weight).max(reduced, initial=0).astype(np.float32) / np.float32(storage.maximum)
    scales = np.where(scales > _LEAST_SCALE, scales, np.float32(1))
    parameters = QuantizationParameters(
        storage, ExpressedType.F32, (axis,), (1,), scales, granularity="per-axis"
    )
    return QuantizedWeight(quantize(weight, parameters), parameters)


def quantize_in_blocks(
    weight: Array, inputs: int, block_size: int, bits: int, moments: InputMoments | None
) -> QuantizedWeight:
    """Quantize a float32 weight with a scale for each block of inputs.

    Args:
        inputs: the axis of the inputs, along which blocks extend.
        block_size: the inputs of a block; fewer inputs are one block.
        moments: second moments of the inputs, by which GPTQ chooses the integers; None to round to
            nearest.

    Raises:
        UsageError: blocks do not divide the inputs.
    """
    block_size = min(block_size, weight.shape[inputs])
    if weight.shape[inputs] % block_size:
        raise UsageError(
            f"its {weight.shape[inputs]} inputs are no multiple of the blocks of {block_size}"
        )
    storage = symmetric_storage(bits)
    moved = np.moveaxis(weight, inputs, -1)
    matrix = np.ascontiguousarray(moved.reshape((-1, moved.shape[-1])))
    importance = None if moments is None else np.diag(moments.matrix)
    grid = fit_grid(matrix, block_size, storage, importance)
    integers = grid.round(matrix)
    if moments is not None:
        for _ in range(_REFITS):
            integers = gptq(matrix, moments.damped, grid, moments.factor)
            grid = refit_scales(matrix, moments.damped, grid, integers)
    # A type has positive scales; the storage is symmetric.
    integers = (integers * np.sign(grid.columns(matrix.shape[1])[0])).reshape(moved.shape)
    scales = np.abs(grid.scales).reshape((*moved.shape[:-1], -1))
    spread = np.moveaxis(scales, -1, inputs).astype(np.float32)
    sizes = tuple(block_size if axis == inputs else 1 for axis in range(weight.ndim))
    parameters = QuantizationParameters(
        storage, ExpressedType.F32, tuple(range(weight.ndim)), sizes, spread,
        granularity="sub-channel",
    )  # fmt: skip
    stored = np.moveaxis(integers, -1, inputs).astype(storage.dtype)
    return QuantizedWeight(np.ascontiguousarray(stored), parameters)
