"""Quantization of the experts of a block, each by the inputs that its tokens have.

The weights of a layer of experts are one tensor ``[experts, N, K]`` in the forward pass. A file has
this tensor, or one for each expert. GPTQ and the search for scales use the inputs of the tokens
that the router sends to an expert. An expert without tokens is rounded to nearest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..layouts import (
    GgmlTensor,
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedTensor,
)
from ..layouts.stacked import StackedTensor, names_in_stack
from ..models.architectures import EXPERT_LAYERS
from ..numerics.element_types import Array
from ..weights.quantizing import LayerError, layer_error
from .moments import BlockMoments, InputMoments
from .worker_threads import WorkerThreads

QuantizeMatrix = Callable[
    [str, Array, InputMoments | None, Array | None], tuple[QuantizedTensor, Array]
]
"""Function from a name, a weight, its inputs and importance to the packed weight and its values."""

_INPUT_OF = {"ffn_up_exps": "ffn_gate_exps"}
"""The layer with the same inputs."""


class ExpertLayer(NamedTuple):
    """A quantized layer of all experts of a block.

    Attributes:
        tensors: as the file of the output has them: one, or one for each expert.
        values: float32 ``[experts, N, K]``.
    """

    tensors: list[QuantizedTensor]
    values: Array
    error: LayerError


class _Matrix(NamedTuple):
    """The weight of one expert.

    Attributes:
        squares: sums of squares, and of squares of errors: of the weight, and of its outputs for
            calibration tokens and for held-out tokens.
        has_tokens: True if the router sends a calibration token to the expert.
    """

    tensor: QuantizedTensor
    values: Array
    error: LayerError
    squares: list[tuple[float, float]]
    has_tokens: bool
    seconds: float


def is_expert_layer(name: str) -> bool:
    """Return True for the name of the weight of a layer of experts."""
    return name.removesuffix(".weight").rpartition(".")[2] in EXPERT_LAYERS


def quantize_experts(
    block: Mapping[str, InferenceTensor],
    names: Mapping[str, str],
    moments: tuple[BlockMoments | None, BlockMoments | None],
    importance: Mapping[str, Array],
    quantize: QuantizeMatrix,
    workers: WorkerThreads,
) -> list[tuple[str, ExpertLayer]]:
    """Quantize layers of a block's experts; a thread takes the layers of one expert.

    Args:
        block: the tensors of the block in floats, by their names in it.
        names: names of tensors in the file of the model, or of stacks of them, by names in the
            block.
        moments: those for the tokens of the calibration, and for held-out tokens.
        importance: float32 ``[experts, K]`` by names in the file.

    Returns:
        Layers by their names in the block.
    """
    weights: dict[str, Array] = {}
    for part in names:
        tensor = block[part]
        assert isinstance(tensor, PrimitiveTensor)  # `BlockRunner.weights`
        weights[part] = tensor.array

    def quantize_expert(expert: int) -> list[_Matrix]:
        return [
            _quantized_matrix(
                name_of(names[part], expert),
                weight[expert],
                [expert_inputs(each, part.removesuffix(".weight"), expert) for each in moments],
                importance[names[part]][expert] if names[part] in importance else None,
                quantize,
            )
            for part, weight in weights.items()
        ]

    count = len(next(iter(weights.values())))
    by_expert = workers.map(quantize_expert, range(count))
    return [
        (part, _joined([each[number] for each in by_expert], name))
        for number, (part, name) in enumerate(names.items())
    ]


def name_of(name: str, expert: int) -> str:
    """Return the name of the tensor of an expert in a file, or of the tensor of all experts."""
    names = names_in_stack(name)
    return name if names is None else names[expert]


def expert_inputs(moments: BlockMoments | None, layer: str, expert: int) -> Array | None:
    """Return the inputs of an expert's layer, ``[rows, K]``; None without tokens."""
    if moments is None:
        return None
    return moments.inputs_of_expert(_INPUT_OF.get(layer, layer), expert)


def _quantized_matrix(
    name: str,
    weight: Array,
    inputs: Sequence[Array | None],
    importance: Array | None,
    quantize: QuantizeMatrix,
) -> _Matrix:
    start = time.perf_counter()
    rows, held_out_rows = inputs
    moments = None if rows is None else InputMoments(rows.T @ rows, len(rows))
    tensor, values = quantize(name, weight, moments, importance)
    seconds = time.perf_counter() - start
    difference = values - weight
    squares = [(_square_sum(weight), _square_sum(difference))]
    for x in (rows, held_out_rows):
        if x is None:
            squares.append((0.0, 0.0))
        else:
            squares.append((_square_sum(x @ weight.T), _square_sum(x @ difference.T)))
    error = layer_error(tensor, weight)
    return _Matrix(tensor, values, error, squares, rows is not None, seconds)


def _square_sum(array: Array) -> float:
    return float(np.square(array, dtype=np.float64).sum())


def _joined(matrices: Sequence[_Matrix], name: str) -> ExpertLayer:
    """Return the layer of all experts, whose tensors the file has under `name`."""
    values = np.stack([each.values for each in matrices])
    tensors = [each.tensor for each in matrices]
    errors = [each.error for each in matrices]
    relative_error, output_error, held_out_error = (
        _relative([each.squares[number] for each in matrices]) for number in range(3)
    )
    has_tokens = [each.has_tokens for each in matrices]
    error = LayerError(
        name,
        values.shape,
        sum(each.bits_per_element for each in errors) / len(errors),
        relative_error or 0.0,
        max(each.greatest_error for each in errors),
        output_error,
        held_out_error,
        experts_without_tokens=has_tokens.count(False) if any(has_tokens) else 0,
        seconds=sum(each.seconds for each in matrices),
    )
    if names_in_stack(name) is None:
        tensors = [_one_tensor(tensors, name)]
    return ExpertLayer(tensors, values, error)


def _relative(squares: Sequence[tuple[float, float]]) -> float | None:
    """Return the root of the errors' sum of squares, relative to that of the values."""
    power, noise = (sum(each) for each in zip(*squares, strict=True))
    return math.sqrt(noise / power) if power else None


def _one_tensor(tensors: Sequence[QuantizedTensor], name: str) -> QuantizedTensor:
    """Return the tensors of all experts as one with a first axis."""
    first = tensors[0]
    if isinstance(first, GgmlTensor):
        raw = [each.raw for each in tensors if isinstance(each, GgmlTensor)]
        shape = (len(tensors), *first.shape)
        return GgmlTensor(np.concatenate(raw), first.ggml_type, shape, name)
    return PlanarQuantizedTensor(StackedTensor(tensors, name).unpack(), name)
