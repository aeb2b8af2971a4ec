"""Mixture of experts: a router chooses some of a block's feed-forward layers for each token.

::

    probabilities = softmax(x @ router.T)                   [T, experts]
    choices, weights = the greatest probabilities           [T, chosen]
    weights = weights / sum(weights)                        (where the model renormalizes them)
    y[t] = sum_j weights[t, j] * expert[choices[t, j]](x[t])

Of equal probabilities, the expert with the lowest number comes first.

The weights of a block's experts are one tensor, ``[experts, N, K]``. The computation takes the
chosen experts by `subquant.ops.linear.chosen_linear`, which reads no others.

Many tokens are grouped by their experts, so that a weight is read for several of them: each group
is padded to whole *tiles* of a few rows, and a tile is multiplied with one expert. There are as
many tiles as any choice may need; spare tiles have the last expert that is chosen, and nothing
reads their results. Where no kernel reads chosen experts, IREE copies them, and tokens are computed
one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..errors import UnsupportedError
from ..layouts import (
    BlockAffineLayout,
    BlockLayout,
    BlockScaledFloat8Layout,
    InferenceTensor,
    LookupBlockScaledLayout,
    PrimitiveTensor,
    QuantizedLayout,
    QuantizedTensor,
    TensorScaledLayout,
)
from ..numerics.array_functions import is_known, over_time, scatter, take
from ..numerics.element_types import AnyArray, Array
from ..numerics.parameters import ExpressedType
from ..ops.activations import quantize_activations
from ..ops.linear import chosen_linear, linear
from .configuration import Experts
from .routed_inputs import RoutedInputs

_MAX_TILE_ROWS = 8
"""Rows of a tile, at most: the rows of a register tile of the kernels."""
_FLOATS_8 = ("f8E4M3FN", "f8E5M2")
"""The 8-bit floats that kernels decode."""


class Routes(NamedTuple):
    """Experts of each token: their numbers and weights, ``[T, chosen]`` each."""

    choices: AnyArray
    weights: AnyArray


def route(experts: Experts, theta: Any, x: AnyArray) -> Routes:
    """Choose the experts of tokens ``[T, width]``, the one with the greatest weight first."""
    scores = linear(x, theta("ffn_gate_inp").tensor("weight"))
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities = powers / powers.sum(axis=-1, keepdims=True)
    numbers = np.arange(experts.count, dtype=np.int32)
    this, other = probabilities[:, :, None], probabilities[:, None, :]
    is_before = (other > this) | ((other == this) & (numbers[None, :] < numbers[:, None]))
    ranks = is_before.astype(np.int32).sum(axis=2, dtype=np.int32)
    positions = np.arange(experts.chosen, dtype=np.int32)
    is_chosen = ranks[:, None, :] == positions[None, :, None]
    choices = (is_chosen.astype(np.int32) * numbers).sum(axis=2, dtype=np.int32)
    choices = np.minimum(choices, np.int32(experts.count - 1))  # of NaN, all are first
    weights = np.where(is_chosen, probabilities[:, None, :], np.float32(0)).sum(axis=2)
    if experts.renormalizes:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return Routes(choices, weights)


def mix_experts(
    experts: Experts,
    theta: Any,
    x: AnyArray,
    activation: Callable[[AnyArray], AnyArray],
    *,
    quantizes: bool = False,
    observe: Callable[[str, RoutedInputs], None] | None = None,
) -> AnyArray:
    """Return the sums of the results of the chosen experts for tokens ``[T, width]``.

    Args:
        quantizes: inputs of layers are rounded as the weights ask for.
        observe: called with the inputs of ``ffn_gate_exps``, which ``ffn_up_exps`` has, too, and
            of ``ffn_down_exps``, if `x` is an array of NumPy.

    Raises:
        UnsupportedError: the experts of a block round their inputs with scales of their own.
    """
    routes = route(experts, theta, x)
    layers = _Layers(theta, activation, quantizes)
    tokens, chosen = routes.choices.shape
    if is_known(x):
        return _by_expert(layers, routes, x, observe)
    if tokens == 1 or not layers.have_kernels(with_floats=experts.groups_floats):
        return _one_by_one(layers, routes, x)
    groups = _Groups.of(routes.choices, experts.count)
    rows = take(x, groups.tokens).reshape((*groups.shape, x.shape[1]))
    results = layers(rows, groups.choices).reshape((-1, x.shape[1]))
    in_order = take(results, groups.positions).reshape((tokens, chosen, x.shape[1]))
    return (in_order * routes.weights[:, :, None]).sum(axis=1)


def _by_expert(
    layers: _Layers,
    routes: Routes,
    x: Array,
    observe: Callable[[str, RoutedInputs], None] | None,
) -> Array:
    """Compute the tokens of one expert after another in NumPy."""
    choices, weights = (np.asarray(each) for each in routes)
    result = np.zeros(x.shape, np.float32)
    products: Array | None = None
    for expert in np.unique(choices):
        tokens, ranks = np.nonzero(choices == expert)
        number = np.array([expert], np.int32)
        product = np.asarray(layers.product(x[tokens][None], number))
        if observe is not None:
            if products is None:
                products = np.zeros((*choices.shape, product.shape[2]), np.float32)
            products[tokens, ranks] = product[0]
        [rows] = np.asarray(layers.down(product, number))
        result[tokens] += rows * weights[tokens, ranks, None]
    if observe is not None and products is not None:
        observe("ffn_gate_exps", RoutedInputs(x, choices))
        rows = products.reshape((-1, products.shape[2]))
        observe("ffn_down_exps", RoutedInputs(rows, choices.reshape((-1, 1))))
    return result


def _one_by_one(layers: _Layers, routes: Routes, x: AnyArray) -> AnyArray:
    """Compute tokens one after another, each by all of its experts."""

    def compute(token: AnyArray, choices: AnyArray, weights: AnyArray) -> AnyArray:
        chosen = choices.shape[0]
        rows = np.broadcast_to(token[None, None, :], (chosen, 1, token.shape[0]))
        results = layers(rows, choices).reshape((chosen, token.shape[0]))
        return (results * weights[:, None]).sum(axis=0)

    if x.shape[0] == 1:
        return compute(x[0], routes.choices[0], routes.weights[0])[None, :]
    start = [np.zeros(x.shape[1], np.float32)]
    _, results = over_time(
        lambda _, *slices: [compute(*slices)], start, [x, routes.choices, routes.weights]
    )
    return results


class _Layers:
    """The feed-forward layers of a block's experts."""

    def __init__(
        self, theta: Any, activation: Callable[[AnyArray], AnyArray], quantizes: bool
    ) -> None:
        self._theta, self._activation, self._quantizes = theta, activation, quantizes

    def have_kernels(self, *, with_floats: bool) -> bool:
        """True if kernels take chosen experts of all weights: of floats if `with_floats`."""
        weights = [
            self._theta(f"ffn_{name}_exps").tensor("weight") for name in ("gate", "up", "down")
        ]
        return all(_has_kernel(each, with_floats) for each in weights)

    def __call__(self, x: AnyArray, choices: AnyArray) -> AnyArray:
        """Return the result of the expert ``choices[b]`` for ``x[b]``, ``[M, width]`` each."""
        return self.down(self.product(x, choices), choices)

    def product(self, x: AnyArray, choices: AnyArray) -> AnyArray:
        """Return the input of the last layer, ``[B, M, hidden]``."""
        gate = self._activation(self._project("ffn_gate_exps", x, choices))
        return gate * self._project("ffn_up_exps", x, choices)

    def down(self, product: AnyArray, choices: AnyArray) -> AnyArray:
        """Return the result of the last layer, ``[B, M, width]``."""
        return self._project("ffn_down_exps", product, choices)

    def _project(self, name: str, x: AnyArray, choices: AnyArray) -> AnyArray:
        theta = self._theta(name)
        weight = theta.tensor("weight")
        result = chosen_linear(self._rounded(x, weight), weight, choices)
        scale = theta.optional_tensor("scale")
        if scale is None:
            return result
        return result * take(scale.array.astype(np.float32), choices)[:, None, None]

    def _rounded(self, x: AnyArray, weight: InferenceTensor) -> AnyArray:
        """Round rows as a weight asks for."""
        settings = weight.activations if isinstance(weight, QuantizedTensor) else None
        if settings is None or not self._quantizes:
            return x
        if any(isinstance(value, list) for value in vars(settings).values()):
            raise UnsupportedError(
                "experts round their inputs with scales of their own, which is not supported; use "
                "float activations"
            )
        rows = quantize_activations(x.reshape((-1, x.shape[-1])), settings)
        return (rows.dequant() if isinstance(rows, QuantizedLayout) else rows).reshape(x.shape)


def _has_kernel(weight: InferenceTensor, with_floats: bool) -> bool:
    """True for a weight of integers of at most 8 bits, or of floats of at most 16."""
    if not isinstance(weight, QuantizedTensor):
        floats = ("bfloat16", "float16")
        is_float = isinstance(weight, PrimitiveTensor) and weight.array.dtype.name in floats
        return is_float and with_floats
    layout = weight.unpack()
    if layout.expressed() is not ExpressedType.F32:
        return False
    if isinstance(layout, BlockScaledFloat8Layout):
        return with_floats and layout.has_whole_blocks and layout.metadata["format"] in _FLOATS_8
    if isinstance(layout, TensorScaledLayout):
        form = layout.integer_form()
        is_of_rows = form is not None and form.block_sizes[-1] == layout.shape[-1]
        return is_of_rows and np.dtype(layout.planes["qs"].dtype).itemsize == 1
    if isinstance(layout, BlockAffineLayout):
        layout = layout.in_stored_order()
    if not isinstance(layout, BlockLayout) or layout.row_block is None:
        return False
    return layout.has_block_form or (with_floats and isinstance(layout, LookupBlockScaledLayout))


class _Groups(NamedTuple):
    """Rows, which are pairs of a token and one of its experts, grouped by expert into tiles.

    Attributes:
        tokens: the token at each position of the tiles; 0 at positions that nothing reads.
        choices: the expert of each tile; for a spare tile, the last expert that is chosen.
        positions: the position of each row in the tiles.
        shape: the number of tiles, and of the rows of each.
    """

    tokens: AnyArray
    choices: AnyArray
    positions: AnyArray
    shape: tuple[int, int]

    @classmethod
    def of(cls, choices: AnyArray, experts: int) -> _Groups:
        """Group rows by their experts; `choices` are ``[T, chosen]``.

        A tile has about half of the rows that an expert has on average: with a tile of all of
        them, half of the positions would be spare. The position of a row is
        ``first_tiles[expert] * tile + rank``, with its rank among the rows of its expert.
        """
        order = np.arange(choices.size, dtype=np.int32)
        tokens = order // np.int32(choices.shape[1])
        choices, count, bits = choices.reshape(-1), choices.size, 0
        while 1 << bits < _MAX_TILE_ROWS and experts << (bits + 1) < count:
            bits += 1
        tile = 1 << bits
        # An expert leaves less than a tile open, and there are no more experts than rows.
        tiles = min(count, (count + min(experts, count) * (tile - 1)) // tile)
        numbers = np.arange(experts, dtype=np.int32)
        has_row = (choices[None, :] == numbers[:, None]).astype(np.int32)
        tile_counts = (has_row.sum(axis=1, dtype=np.int32) + np.int32(tile - 1)) >> np.int32(bits)
        is_earlier = (numbers[None, :] < numbers[:, None]).astype(np.int32)
        first_tiles = (is_earlier * tile_counts[None, :]).sum(axis=1, dtype=np.int32)
        is_same_expert = choices[:, None] == choices[None, :]
        is_earlier_row = is_same_expert & (order[None, :] < order[:, None])
        ranks = is_earlier_row.astype(np.int32).sum(axis=1, dtype=np.int32)
        positions = take(first_tiles, choices) * np.int32(tile) + ranks
        tokens_at_positions = scatter(_zeros(tiles * tile, choices), positions, tokens, "set")
        tile_numbers = np.arange(tiles, dtype=np.int32)
        is_past = ((first_tiles + tile_counts)[None, :] <= tile_numbers[:, None]).astype(np.int32)
        tile_choices = np.minimum(is_past.sum(axis=1, dtype=np.int32), choices.max())
        return cls(tokens_at_positions, tile_choices, positions, (tiles, tile))


def _zeros(count: int, beside: AnyArray) -> AnyArray:
    """Return zeros, as a value of the program if `beside` is one."""
    zeros = np.zeros(count, np.int32)
    return zeros if is_known(beside) else zeros + beside[:1] * np.int32(0)
