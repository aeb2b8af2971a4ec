"""Quantization of a language model, block by block, by the inputs of its layers.

The calibration tokens go through the model, one block after the other. The second moments of the
inputs of a layer, in floats, decide its integers. The tokens then go through the quantized block to
the next one: each block makes up for the errors of earlier blocks::

    X = embeddings of the tokens
    for each block:
        H = X_l^T X_l of the inputs X_l of each linear layer l, with X and the weights in floats
        quantize the layers by H
        X = block(X), with the quantized weights

Memory holds the weights of one block in floats, its moments, and the hidden states of all tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..errors import InputError, UsageError
from ..layouts import InferenceTensor, PrimitiveTensor, QuantizedTensor
from ..models.configuration import Configuration, expected_tensors
from ..models.interface import empty_caches
from ..models.source import ModelSource, open_model
from ..models.transformer import BlockTables, block_tables, embed, run_block
from ..numerics.element_types import Array
from ..weights.quantizing import LayerError, WeightQuantization, chosen, layer_error
from ..weights.sources import add_tokenizer
from ..weights.theta import Dataset, Theta
from .gptq import output_error
from .grids import OffsetKind
from .layer import Calibration, quantize_layer
from .outputs import Output, check_output_format, check_source, packed_tensor

CHUNK_TOKENS = 512
"""Tokens that go through a model together, which attend to each other."""

OnLayer = Callable[[int, int, str], None]
"""Called before each layer with its number, from 0, the count of layers, and its name."""


def calibrated(
    path: str | os.PathLike[str],
    text: str,
    how: WeightQuantization,
    calibration: Calibration,
    select: str = "",
    on_layer: OnLayer = lambda number, count, name: None,
    *,
    output: Output = "archive",
) -> tuple[Dataset, list[LayerError]]:
    """Quantize the model of a file or folder by the tokens of a text; see the functions below.

    The result has the model's vocabulary, so that an archive of it is a model.

    Raises:
        SubquantError: as `check_source`, `open_model`, `calibration_chunks` and
            `quantize_language_model`.
    """
    check_source(path, output)
    chunks = calibration_chunks(open_model(path), text, calibration.calibration_tokens)
    source = open_model(path)  # the tokenizer has taken the vocabulary of the other
    dataset, errors = quantize_language_model(
        source, chunks, how, calibration, select, on_layer, output=output
    )
    add_tokenizer(dataset, path)
    return dataset, errors


def calibration_chunks(source: ModelSource, text: str, count: int) -> list[Array]:
    """Return the first `count` tokens of a text, in chunks that begin with the start token.

    A chunk has `CHUNK_TOKENS` tokens, or the model's context if that is less.

    Raises:
        InputError: the text has fewer than `count` tokens.
        SubquantError: as `ModelSource.tokenizer`.
    """
    tokenizer = source.tokenizer()
    length = min(CHUNK_TOKENS, source.configuration.context)
    chunks = max(1, count // length)
    tokens = tokenizer.encode(text, special=False)
    if len(tokens) < chunks * length:
        raise InputError(
            f"the text has {len(tokens):,} tokens, expected {chunks * length:,} at least to "
            "calibrate with; give a longer text, or fewer --calibration-tokens"
        )
    result = np.array(tokens[: chunks * length], np.int32).reshape((chunks, length))
    if tokenizer.adds_start and tokenizer.start_token is not None:
        result[:, 0] = tokenizer.start_token
    return list(result)


def quantize_language_model(
    source: ModelSource,
    chunks: Sequence[Array],
    how: WeightQuantization,
    calibration: Calibration | None = None,
    select: str = "",
    on_layer: OnLayer = lambda number, count, name: None,
    *,
    output: Output = "archive",
) -> tuple[Dataset, list[LayerError]]:
    """Quantize the linear layers of a model's blocks; return the model, and each layer's errors.

    The table of embeddings, the output layer, norms and routers stay as they are, and so do the
    experts of a mixture.

    Args:
        chunks: calibration tokens, int32 ``[T]`` each, which go through the model alone.
        select: as that of `quantize_weights`.
        output: the format that the layers are packed for.

    Raises:
        UsageError: blocks do not divide a layer's inputs; a layer is quantized already, and
            `calibration` does not ask for another quantization; a granularity other than blocks; or
            a `select` that matches no layer.
    """
    calibration = calibration or Calibration()
    if how.granularity != "block":
        raise UsageError("calibrated layers have a scale for each block; use --granularity block")
    check_output_format(how, output)
    has_offsets = output == "gguf" and how.asymmetric
    kind: OffsetKind | None = "offsets" if has_offsets else None
    configuration = source.configuration
    names = _layer_names(configuration)
    selected = chosen([source.tensors[name].name for name in names], select)
    names = [name for name in names if source.tensors[name].name in selected]
    _check_layers([source.tensors[name] for name in names], calibration)
    errors: list[LayerError] = []
    tokens = sum(map(len, chunks))
    tensors = {name: source.tensors[name] for name in expected_tensors(configuration)}
    replaced: dict[str, InferenceTensor] = {}

    def weights(part: str) -> Theta:
        prefix = f"{part}."
        floats = {
            name.removeprefix(prefix): _in_floats(tensor)
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        return Theta(floats)

    states = [embed(configuration, _rows_of(source), tokens) for tokens in chunks]
    tables = {
        len(tokens): block_tables(configuration, weights, np.int32(0), len(tokens))
        for tokens in chunks
    }
    for number in range(configuration.blocks):
        theta = weights(f"blk.{number}")
        layers = [name for name in names if name.startswith(f"blk.{number}.")]
        moments = _Moments()
        for state in states:
            _run(configuration, theta, number, tables, state, moments.observe)
        block = theta.flatten()
        for name in layers:
            on_layer(len(errors), len(names), source.tensors[name].name)
            part = name.removeprefix(f"blk.{number}.")
            tensor = block[part]
            assert isinstance(tensor, PrimitiveTensor)  # `_in_floats`
            second_moments = moments.of(part.removesuffix(".weight"))
            try:
                integers, grid = quantize_layer(
                    tensor.array, second_moments, tokens, how, calibration.method, kind
                )
            except UsageError as error:
                raise UsageError(f"tensor '{source.tensors[name].name}' {error.message}") from None
            quantized = packed_tensor(output, source.tensors[name].name, integers, grid)
            values = grid.dequantize(integers)
            replaced[quantized.name] = quantized
            block[part] = PrimitiveTensor(values, part)
            errors.append(
                replace(
                    layer_error(quantized, tensor.array),
                    output_error=output_error(tensor.array, values, second_moments),
                )
            )
        theta = Theta(block)
        states = [_run(configuration, theta, number, tables, state) for state in states]
        source.release_pages()
    flat = source.dataset.theta.flatten()
    return Dataset(source.properties, Theta(flat | replaced)), errors


def _layer_names(configuration: Configuration) -> list[str]:
    """Return the names of the weights of linear layers in blocks, in order of computation."""
    return [
        name
        for name, shape in expected_tensors(configuration).items()
        if name.startswith("blk.") and len(shape) == 2 and not name.endswith("ffn_gate_inp.weight")
    ]


def _check_layers(tensors: Sequence[InferenceTensor], calibration: Calibration) -> None:
    """Refuse layers that are quantized already; UsageError for the first."""
    for tensor in tensors:
        if not isinstance(tensor, QuantizedTensor):
            continue
        if tensor.activations is not None:
            raise UsageError(
                f"tensor '{tensor.name}' is quantized for rounded inputs; calibrate a model of "
                "float weights"
            )
        if not calibration.requantize:
            raise UsageError(
                f"tensor '{tensor.name}' is quantized already; calibrate a model of float weights, "
                "or quantize its dequantized weights by --requantize"
            )


def _in_floats(tensor: InferenceTensor) -> PrimitiveTensor:
    values = tensor.unpack().dequant() if isinstance(tensor, QuantizedTensor) else None
    if values is None:
        assert isinstance(tensor, PrimitiveTensor)
        values = tensor.array
    is_float = values.dtype.kind not in "iu"
    return PrimitiveTensor(np.asarray(values, np.float32) if is_float else values, tensor.name)


def _rows_of(source: ModelSource) -> Callable[[str], Theta]:
    """Return the function to a tree whose table of embeddings stays packed."""
    return lambda part: Theta({"weight": source.tensors[f"{part}.weight"]})


def _run(
    configuration: Configuration,
    theta: Theta,
    number: int,
    tables: dict[int, BlockTables],
    state: Array,
    observe: Callable[[str, Array], None] | None = None,
) -> Array:
    count = len(state)
    [cache, *_] = empty_caches(configuration, count, "f32")
    position = np.int32(0)
    result, _ = run_block(
        configuration, theta, number, tables[count], state, position, cache, observe
    )
    return np.asarray(result)


class _Moments:
    """Second moments of the inputs of a block's layers; layers with one input share them."""

    def __init__(self) -> None:
        self._sums: dict[str, Array] = {}
        self._first_names: dict[str, str] = {}
        self._last: tuple[str, Array] | None = None

    def observe(self, name: str, x: Array) -> None:
        """Add the products of an input ``[T, K]``."""
        if self._last is not None and self._last[1] is x:
            self._first_names[name] = self._last[0]
            return
        self._last = name, x
        self._first_names[name] = name
        self._sums[name] = self._sums.get(name, np.float32(0)) + x.T @ x

    def of(self, name: str) -> Array:
        """Return the sum of ``X^T X`` over the observed inputs of a layer, ``[K, K]``."""
        return self._sums[self._first_names[name]]
