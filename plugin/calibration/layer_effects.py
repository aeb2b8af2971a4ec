"""Effect of each layer's quantization on the model, for `mixed_precision`.

Quantized alone to ``b`` bits, a layer changes the model by about

    D(b) = D(b0) e(b)**2 / e(b0)**2

``e`` is the error of the layer's outputs. ``D(b0)`` is measured: the layer is quantized to ``b0``
bits (`MEASURED_BITS`) by GPTQ, a chunk of tokens goes through the model, and ``D`` is the KL
divergence of the next token, as in `report`, but among the likeliest tokens alone. GPTQ has the
moments of all other chunks: errors are smaller for tokens that it has seen, most for layers with
many inputs.

The layers of a block are measured together: their states go through all later blocks before the
next block is measured. So a finished block leaves nothing but the numbers ``D(b)``, and the hidden
states of the float model, with which an interrupted run goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..layouts import PrimitiveTensor
from ..models.source import ModelSource
from ..numerics.element_types import Array
from ..weights.quantizing import WeightQuantization
from .block_runner import BlockRunner
from .finished_blocks import FinishedBlocks
from .gptq import output_error
from .layer import OnLayer
from .mixed_precision import Choice, allocate, candidates, check_format
from .moments import InputMoments
from .outputs import Output, quantized_layer
from .report import LOGITS_AT_ONCE, OutputLayer
from .worker_threads import WorkerThreads

MEASURED_BITS = 4
"""Bits of the quantization whose effect on the model is measured."""

_SAMPLED_ROWS = 64
"""Rows of a weight whose output error is measured for each quantization, at most."""

LIKELIEST_TOKENS = 16
"""Likeliest next tokens of each position; the logits of all of them are compared."""


def choose_quantizations(
    source: ModelSource,
    names: Sequence[str],
    runner: BlockRunner,
    how: WeightQuantization,
    output: Output,
    average: float,
    threads: WorkerThreads,
    on_layer: OnLayer,
    finished: FinishedBlocks | None,
) -> dict[str, WeightQuantization]:
    """Return the quantization of each layer, with an average of bits of at most `average`.

    Args:
        on_layer, finished: as those of `measured_choices`.

    Raises:
        UsageError: as `check_format` and `allocate`.
        InputError: as `measured_choices`.
    """
    check_format(output)
    shapes = {name: source.tensors[name].shape for name in names}
    options = {name: candidates(how, output, shape[1]) for name, shape in shapes.items()}
    choices = measured_choices(source, options, runner, output, threads, on_layer, finished)
    return allocate(choices, {name: math.prod(shape) for name, shape in shapes.items()}, average)


def measured_choices(
    source: ModelSource,
    options: Mapping[str, Sequence[WeightQuantization]],
    runner: BlockRunner,
    output: Output,
    threads: WorkerThreads,
    on_layer: OnLayer = lambda number, count, name: None,
    finished: FinishedBlocks | None = None,
) -> dict[str, list[Choice]]:
    """Return the choices of each layer, with their effects on the model.

    The chunks of the runner go through the model in floats. The middle one measures the effects, as
    a text may begin with titles and a table of contents; GPTQ has the moments of all others.

    Args:
        options: the quantizations that a layer may have, by the name of its weight in the forward
            pass.
        on_layer: called before the effect of each layer is measured.
        finished: the folder of blocks that an earlier run has measured; this run adds its own.

    Raises:
        InputError: a file of the folder is damaged, or cannot be written.
    """
    measured: dict[str, list[list[float]]] = {}
    first, states = 0, runner.embeddings()
    middle = len(states) // 2
    effect = _Effect(source, runner, states[middle])
    if finished is not None and finished.measured_blocks:
        measured, first = dict(finished.measured), finished.measured_blocks
        states = finished.float_states()
    for number in range(first, source.configuration.blocks):
        prefix = f"blk.{number}."
        block = runner.weights(number)
        held_out, quantizing = states[middle], states[:middle] + states[middle + 1 :]
        moments = runner.moments(number, block, quantizing or states)
        held_out_moments = runner.moments(number, block, [held_out])
        layer_names = [name.removeprefix(prefix) for name in options if name.startswith(prefix)]
        counts = {part: len(measured) + index for index, part in enumerate(layer_names)}
        inputs = {
            name: InputMoments(moments.of(name), moments.tokens)
            for name in set(moments.first_names.values())
        }

        def measure(part: str) -> tuple[Array, list[list[float]]]:
            name = source.tensors[prefix + part].name  # noqa: B023
            on_layer(counts[part], len(options), f"measure {name}")  # noqa: B023
            tensor = block[part]  # noqa: B023
            assert isinstance(tensor, PrimitiveTensor)  # `BlockRunner.weights`
            layer = part.removesuffix(".weight")
            shared = inputs[moments.first_names[layer]]  # noqa: B023
            matrix = held_out_moments.of(layer)  # noqa: B023
            return _measured_layer(tensor.array, shared, matrix, options[prefix + part], output)  # noqa: B023

        layers = dict(zip(layer_names, threads.map(measure, layer_names), strict=True))
        changed = [
            runner.run(number, {**block, part: PrimitiveTensor(values, part)}, [held_out])[0]
            for part, (values, _) in layers.items()
        ]
        changes = effect.of(changed, number + 1)
        for (part, (_, ratios)), change in zip(layers.items(), changes, strict=True):
            measured[prefix + part] = [[bits, ratio * change] for bits, ratio in ratios]
        states = runner.run(number, block, states)
        if finished is not None:
            finished.add_measured(measured, states)
        source.release_pages()
    return {
        name: [Choice(how, *each) for how, each in zip(hows, measured[name], strict=True)]
        for name, hows in options.items()
    }


class _Effect:
    """KL divergence of the next tokens, between the float model and changed ones.

    Args:
        state: the hidden states ``[T, width]`` of a chunk before the first block.
    """

    def __init__(self, source: ModelSource, runner: BlockRunner, state: Array) -> None:
        self._source, self._runner = source, runner
        [layer] = self._output_layers([state], 0)
        self._tokens = likeliest_tokens(layer, source.configuration.vocabulary)
        self._before = _log_softmax(layer.logits(self._tokens))

    def of(self, states: Sequence[Array], number: int) -> list[float]:
        """Return the mean divergence, in nats, for each of some states before a block."""
        divergences = []
        for layer in self._output_layers(states, number):
            difference = self._before - _log_softmax(layer.logits(self._tokens))
            divergence = (np.exp(self._before) * difference).sum(-1).mean()
            divergences.append(max(float(divergence), 0.0))
        return divergences

    def _output_layers(self, states: Sequence[Array], number: int) -> list[OutputLayer]:
        """Return the output layer for each of some states before a block."""
        for index in range(number, self._source.configuration.blocks):
            states = self._runner.run(index, self._runner.weights(index), states)
            self._source.release_pages()
        return [OutputLayer(self._runner, state) for state in states]


def likeliest_tokens(layer: OutputLayer, vocabulary: int) -> Array:
    """Return the tokens that are among the likeliest next ones at any position, in order.

    Args:
        vocabulary: the number of tokens.
    """
    step = max(1, LOGITS_AT_ONCE // layer.positions)
    best, tokens = (np.empty((layer.positions, 0), dtype) for dtype in (np.float32, np.int32))
    for start in range(0, vocabulary, step):
        numbers = np.arange(start, min(start + step, vocabulary), dtype=np.int32)
        best = np.concatenate([best, layer.logits(numbers)], axis=1)
        rows = np.broadcast_to(numbers, (layer.positions, len(numbers)))
        tokens = np.concatenate([tokens, rows], axis=1)
        count = min(LIKELIEST_TOKENS, best.shape[1])
        columns = np.argpartition(-best, count - 1, axis=1)[:, :count]
        best, tokens = (np.take_along_axis(each, columns, axis=1) for each in (best, tokens))
    return np.unique(tokens)


def _log_softmax(logits: Array) -> Array:
    """Return logarithms of probabilities, float64."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def _measured_layer(
    weight: Array,
    inputs: InputMoments,
    held_out: Array,
    options: Sequence[WeightQuantization],
    output: Output,
) -> tuple[Array, list[list[float]]]:
    """Return the values of a weight with `MEASURED_BITS`, and the bits and error of each option.

    Errors are square errors of outputs, relative to those of the values, of some rows of the
    weight, which GPTQ quantizes each alone.

    Args:
        held_out: the moments ``[K, K]`` of the inputs that errors are measured for.
    """
    measured_how = WeightQuantization(MEASURED_BITS, block_size=math.gcd(weight.shape[1], 32))
    _, values = quantized_layer("", weight, measured_how, "archive", "gptq", inputs)
    rows = slice(None, None, -(-len(weight) // _SAMPLED_ROWS))
    sample = weight[rows]
    measured_error = output_error(sample, values[rows], held_out)
    ratios = []
    for how in options:
        tensor, quantized = quantized_layer("", sample, how, output, "gptq", inputs)
        error = output_error(sample, quantized, held_out)
        ratio = (error / measured_error) ** 2 if measured_error else 0.0
        ratios.append([8 * tensor.size_in_bytes / sample.size, ratio])
    return values, ratios
