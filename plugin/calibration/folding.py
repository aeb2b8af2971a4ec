"""Scales of inputs, folded into the layer before: the transformation of AWQ and SmoothQuant.

A linear layer ``y = x W^T`` with inputs ``x [T, K]`` has the same outputs for scales ``s [K]``::

    y = (x / s) (s W)^T

The division is folded into the norm's weight, or the rows of the linear layer, that computes ``x``.
The program gets no operation, and the float model stays as it is::

    attn_norm -> attn_q, attn_k, attn_v       the weight of the norm is divided
    ffn_norm  -> ffn_gate, ffn_up
    attn_v    -> attn_output                  the rows of the weight are, and the bias
    ffn_up    -> ffn_down                     an input is gate * up

A head of values that several heads of queries read has one scale for all of them. A scale is such
that the divided vector is exact in the type in which the file stores it.

Sources: "AWQ: Activation-aware Weight Quantization", section 3.2; "SmoothQuant: Accurate and
Efficient Post-Training Quantization for Large Language Models", equations 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from ..layouts import InferenceTensor, PrimitiveTensor
from ..models.configuration import Configuration
from ..numerics.element_types import Array
from ..numerics.parameters import StorageType
from ..weights.grids import CLIPPINGS, OffsetKind, fit_grid
from ..weights.quantizing import WeightQuantization
from .moments import BlockMoments
from .worker_threads import WorkerThreads

SMOOTHING = 0.5
"""The exponent ``a`` of SmoothQuant, its migration strength."""

_ALPHAS = tuple(step / 10 for step in range(10))
"""Exponents that AWQ tries; 0 scales nothing."""
_SEARCH_CLIPPINGS = CLIPPINGS[::4]
"""Ranges of blocks that AWQ tries for each exponent."""
_SEARCH_ROWS = 512
"""Rows of a weight whose error AWQ measures, at most."""
_MAX_SCALE_CHANGE = 2.0
"""Factor by which rounding a divided vector may change a scale; the scale is 1 beyond it."""


class LayerInputs(Protocol):
    """Statistics of the inputs of a block's linear layers."""

    def of(self, name: str) -> Array:
        """Return the sum of ``X^T X`` over the inputs ``X [T, K]`` of a layer, ``[K, K]``."""

    def maxima(self, name: str) -> Array:
        """Return the greatest magnitude of each input of a layer, ``[K]``."""


@dataclass(frozen=True)
class Fold:
    """A layer before, and the layers that read its results.

    Attributes:
        producer: the name of a norm or of a linear layer.
        rows: the rows of a linear layer that the consumers read; None for a norm.
        consumers: linear layers with the same inputs.
        channels: the row in `rows`, or the element of the norm, of each input ``[K]``.
    """

    producer: str
    rows: slice | None
    consumers: tuple[str, ...]
    channels: Array

    @property
    def layers(self) -> tuple[str, ...]:
        """The linear layers whose weights are changed."""
        return self.consumers if self.rows is None else (self.producer, *self.consumers)

    def shared(self, values: Array) -> Array:
        """Return the mean of values ``[K]`` over the inputs of a channel, for each input."""
        means = np.bincount(self.channels, values) / np.bincount(self.channels)
        return np.asarray(means[self.channels], np.float32)

    def greatest(self, values: Array) -> Array:
        """Return the greatest of values ``[K]`` over the inputs of a channel, for each input."""
        greatest = np.zeros(self.channels.max() + 1, np.float32)
        np.maximum.at(greatest, self.channels, values)
        return greatest[self.channels]


def folds(configuration: Configuration) -> list[Fold]:
    """Return the folds of a block without experts, in order of computation."""
    c = configuration
    width, heads = np.arange(c.width), np.arange(c.heads)
    of_head = heads // (c.heads // c.kv_heads) * c.head_size
    values = (of_head[:, None] + np.arange(c.head_size)).reshape(-1)
    keys, hidden = c.kv_heads * c.head_size, np.arange(c.hidden)
    if c.structure.fused:
        first = c.heads * c.head_size + keys
        return [
            Fold("attn_norm", None, ("attn_qkv",), width),
            Fold("attn_qkv", slice(first, first + keys), ("attn_output",), values),
            Fold("ffn_norm", None, ("ffn_up",), width),
            Fold("ffn_up", slice(c.hidden, 2 * c.hidden), ("ffn_down",), hidden),
        ]
    return [
        Fold("attn_norm", None, ("attn_q", "attn_k", "attn_v"), width),
        Fold("attn_v", slice(0, keys), ("attn_output",), values),
        Fold("ffn_norm", None, ("ffn_gate", "ffn_up"), width),
        Fold("ffn_up", slice(0, c.hidden), ("ffn_down",), hidden),
    ]


class FoldedBlock(NamedTuple):
    """Result of `fold_block`.

    Attributes:
        arrays: the arrays of the block that change, those of vectors in their stored types.
        input_scales: the divisor ``[K]`` of the inputs of some layers, by the name of one of the
            layers that have these inputs.
    """

    arrays: dict[str, Array]
    input_scales: dict[str, Array]


ScalesOf = Callable[[Fold, list[Array], LayerInputs], Array]
"""Function from a fold, the weights of its consumers, and the inputs, to scales ``[K]``.

Scales of inputs of one channel are equal.
"""


def fold_into(
    configuration: Configuration,
    block: dict[str, InferenceTensor],
    stored: Mapping[str, InferenceTensor],
    moments: BlockMoments,
    quantized: Collection[str],
    scales_of: ScalesOf,
    threads: WorkerThreads,
) -> list[PrimitiveTensor]:
    """Fold scales into a block and the moments of its inputs; return the vectors as stored.

    Args:
        block: the tensors of the block in floats, by their names in it; they are replaced.
        stored: the tensors of the block as the file has them.
        quantized: as in `fold_block`.
    """
    arrays, types = {}, {}
    for name, tensor in block.items():
        assert isinstance(tensor, PrimitiveTensor)  # in floats
        floats = stored[name]
        arrays[name] = tensor.array
        types[name] = (floats if isinstance(floats, PrimitiveTensor) else tensor).array.dtype
    folded = fold_block(configuration, arrays, types, moments, quantized, scales_of, threads)
    for name, scales in folded.input_scales.items():
        moments.divide(name, scales)
    for name, array in folded.arrays.items():
        block[name] = PrimitiveTensor(np.asarray(array, np.float32), name)
    return [
        PrimitiveTensor(array, stored[name].name)
        for name, array in folded.arrays.items()
        if name.removesuffix(".weight") not in quantized
    ]


def fold_block(
    configuration: Configuration,
    block: Mapping[str, Array],
    stored_types: Mapping[str, np.dtype],
    inputs: LayerInputs,
    quantized: Collection[str],
    scales_of: ScalesOf,
    threads: WorkerThreads,
) -> FoldedBlock:
    """Fold scales into a block.

    A fold that changes a linear layer that is not quantized is left out, as the layer's weight
    would be rounded to the type in which it is stored.

    Args:
        block: the weights, norms and biases of the block, float32, by name.
        stored_types: the element type of each array in the file that is written.
        inputs: those before folding.
        quantized: the names of the linear layers that are quantized.
    """
    changed: dict[str, Array] = {}
    input_scales: dict[str, Array] = {}
    fitting = [each for each in folds(configuration) if set(each.layers) <= set(quantized)]

    def search(fold: Fold) -> Array:
        return scales_of(fold, [block[f"{name}.weight"] for name in fold.consumers], inputs)

    for fold, scales in zip(fitting, threads.map(search, fitting), strict=True):
        now = {**block, **changed}
        by_channel = np.ones(fold.channels.max() + 1, np.float32)
        by_channel[fold.channels] = scales
        vector = f"{fold.producer}.{'weight' if fold.rows is None else 'bias'}"
        if vector in now:
            rows, offset = fold.rows or slice(None), np.float32(0)
            if fold.rows is None:
                offset = np.float32(configuration.structure.norm_offset)
            values = now[vector].astype(stored_types[vector])
            values[rows], by_channel = _divided(values[rows], by_channel, offset)
            changed[vector] = values
        if fold.rows is not None:
            weight = now[f"{fold.producer}.weight"].copy()
            weight[fold.rows] /= by_channel[:, None]
            changed[f"{fold.producer}.weight"] = weight
        scales = by_channel[fold.channels]
        for name in fold.consumers:
            changed[f"{name}.weight"] = now[f"{name}.weight"] * scales
        input_scales[fold.consumers[0]] = scales
    return FoldedBlock(changed, input_scales)


def _divided(stored: Array, scales: Array, offset: np.float32) -> tuple[Array, Array]:
    """Divide a vector, in the type in which it is stored; return it, and the scales that it has.

    With the rounding to the stored type, and the offset ``o`` that is added to stored values,

        v' = round((v + o) / s - o),    s' = (v + o) / (v' + o)

    An element whose scale changes too much keeps its value, and has the scale 1.
    """
    before = stored.astype(np.float32) + offset
    divided = (before / scales - offset).astype(stored.dtype)
    after = divided.astype(np.float32) + offset
    is_zero = before == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = np.where(is_zero, scales, before / after)
        change = effective / scales
    is_close = (change > 1 / _MAX_SCALE_CHANGE) & (change < _MAX_SCALE_CHANGE)
    return (
        np.where(is_close & ~is_zero, divided, stored),
        np.where(is_close, effective, np.float32(1)),
    )


# -- scales ----------------------------------------------------------------------------------------


def awq_scales(how: WeightQuantization, kind: OffsetKind | None = None) -> ScalesOf:
    """Return the function to the scales of AWQ.

    With ``r [K]``, the root mean square of each input (the paper has the mean magnitude),

        s = r**alpha,    least sum over the consumers of ||X (W - Q(s W) / s)^T||^2

    over `_ALPHAS`, where ``Q`` rounds to the nearest value of a grid that is weighted by the
    inputs. Errors are those of `_SEARCH_ROWS` rows of each weight at most.
    """
    storage = StorageType(how.bits, not how.asymmetric)

    def search(fold: Fold, weights: list[Array], inputs: LayerInputs) -> Array:
        moments = inputs.of(fold.consumers[0])
        squares = fold.shared(np.diag(moments))
        rows = [each[:: -(-len(each) // _SEARCH_ROWS)] for each in weights]
        sample = np.concatenate(rows)
        best, least = np.ones_like(squares), np.inf
        for alpha in _ALPHAS:
            scales = _powers(np.sqrt(squares), alpha)
            scaled = sample * scales
            importance = np.diag(moments) / scales**2
            grid = fit_grid(
                scaled, how.block_size, storage, importance, kind, clippings=_SEARCH_CLIPPINGS
            )
            difference = grid.dequantize(grid.round(scaled)) / scales - sample
            error = float(np.sum((difference @ moments) * difference, dtype=np.float64))
            if error < least:
                best, least = scales, error
        return best

    return search


def smoothquant_scales(fold: Fold, weights: list[Array], inputs: LayerInputs) -> Array:
    """Return the scales of SmoothQuant, ``max |x|**a / max |w|**(1 - a)`` of each input."""
    maxima = fold.greatest(inputs.maxima(fold.consumers[0]))
    of_weights = fold.greatest(np.max([np.abs(each).max(0) for each in weights], axis=0))
    return _powers(maxima, SMOOTHING) / _powers(of_weights, 1 - SMOOTHING)


def _powers(values: Array, exponent: float) -> Array:
    """Return powers, with a geometric mean of the greatest and the least of 1; zeros become 1."""
    positive = np.where(values > 0, values, 1).astype(np.float32)
    powers = positive ** np.float32(exponent)
    result: Array = powers / np.sqrt(powers.max() * powers.min())
    return np.where(values > 0, result, np.float32(1))
