"""Effect of each layer's quantization on the model, for `mixed_precision`.

Quantized alone to ``b`` bits, a layer changes the model by about

    D(b) = D(b0) e(b)**2 / e(b0)**2

``e`` is the error of the layer's outputs. ``D(b0)`` is measured: the layer is quantized to ``b0``
bits (`MEASURED_BITS`) by GPTQ, calibration tokens go through the model, and the hidden states that
the output layer reads change by ``D``, relative to them, squared, and averaged over the tokens.

The layers of a block are measured together: their states go through all later blocks before the
next block is measured. So a finished block leaves nothing but the numbers ``D(b)``, and the hidden
states of the float model, with which an interrupted run goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..layouts import PrimitiveTensor
from ..models.source import ModelSource
from ..models.transformer import normalize
from ..numerics.element_types import Array
from ..weights.quantizing import WeightQuantization
from .block_runner import BlockRunner
from .finished_blocks import FinishedBlocks
from .gptq import output_error
from .mixed_precision import Choice, allocate, candidates
from .moments import InputMoments
from .outputs import Output, quantized_layer
from .worker_threads import WorkerThreads

MEASURED_BITS = 4
"""Bits of the quantization whose effect on the model is measured."""

_SAMPLED_ROWS = 64
"""Rows of a weight whose output error is measured for each quantization, at most."""

OnLayer = Callable[[int, int, str], None]
"""Called before each layer with its number, from 0, the count of layers, and its name."""


def choose_quantizations(
    source: ModelSource,
    names: Sequence[str],
    runner: BlockRunner,
    how: WeightQuantization,
    output: Output,
    average: float,
    threads: WorkerThreads,
    on_layer: OnLayer = lambda number, count, name: None,
    finished: FinishedBlocks | None = None,
) -> dict[str, WeightQuantization]:
    """Return the quantization of each layer, with an average of bits of at most `average`.

    Args:
        on_layer, finished: as those of `measured_choices`.

    Raises:
        UsageError: as `candidates` and `allocate`.
        InputError: as `measured_choices`.
    """
    options = candidates(how, output)
    choices = measured_choices(source, names, runner, options, output, threads, on_layer, finished)
    sizes = {name: math.prod(source.tensors[name].shape) for name in names}
    return allocate(choices, sizes, average)


def measured_choices(
    source: ModelSource,
    names: Sequence[str],
    runner: BlockRunner,
    options: Sequence[WeightQuantization],
    output: Output,
    threads: WorkerThreads,
    on_layer: OnLayer = lambda number, count, name: None,
    finished: FinishedBlocks | None = None,
) -> dict[str, list[Choice]]:
    """Return the choices of each layer, with their effects on the model.

    The chunks of the runner go through the model in floats. The middle one measures the effects, as
    a text may begin with titles and a table of contents.

    Args:
        names: the names of the weights in the forward pass.
        options: the quantizations that a layer may have.
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
        moments = runner.moments(number, block, states)
        layer_names = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        counts = {part: len(measured) + index for index, part in enumerate(layer_names)}
        inputs = {
            name: InputMoments(moments.of(name), moments.tokens)
            for name in set(moments.first_names.values())
        }

        def measure(part: str) -> tuple[Array, list[list[float]]]:
            name = source.tensors[prefix + part].name  # noqa: B023
            on_layer(counts[part], len(names), f"measure {name}")  # noqa: B023
            tensor = block[part]  # noqa: B023
            assert isinstance(tensor, PrimitiveTensor)  # `BlockRunner.weights`
            shared = inputs[moments.first_names[part.removesuffix(".weight")]]  # noqa: B023
            return _measured_layer(tensor.array, shared, options, output)

        layers = dict(zip(layer_names, threads.map(measure, layer_names), strict=True))
        changed = [
            runner.run(number, {**block, part: PrimitiveTensor(values, part)}, [states[middle]])[0]
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
        name: [Choice(how, *each) for how, each in zip(options, measured[name], strict=True)]
        for name in names
    }


class _Effect:
    """Change of the hidden states that the output layer reads.

    Args:
        state: the hidden states ``[T, width]`` before the first block.
    """

    def __init__(self, source: ModelSource, runner: BlockRunner, state: Array) -> None:
        self._source, self._runner = source, runner
        [self._before] = self._last([state], 0)
        self._powers = np.square(self._before).sum(-1)

    def of(self, states: Sequence[Array], number: int) -> list[float]:
        """Return the mean relative square change of each of some states before a block."""
        return [
            float(np.mean(np.square(each - self._before).sum(-1) / self._powers))
            for each in self._last(states, number)
        ]

    def _last(self, states: Sequence[Array], number: int) -> list[Array]:
        """Return the normalized states after the last block."""
        for index in range(number, self._source.configuration.blocks):
            states = self._runner.run(index, self._runner.weights(index), states)
            self._source.release_pages()
        configuration, norm = self._runner.configuration, self._runner.floats("output_norm")
        return [np.asarray(normalize(configuration, norm, each)) for each in states]


def _measured_layer(
    weight: Array, inputs: InputMoments, options: Sequence[WeightQuantization], output: Output
) -> tuple[Array, list[list[float]]]:
    """Return the values of a weight with `MEASURED_BITS`, and the bits and error of each option.

    Errors are square errors of outputs, relative to those of the values, of some rows of the
    weight, which GPTQ quantizes each alone.
    """
    measured_how = WeightQuantization(MEASURED_BITS, block_size=math.gcd(weight.shape[1], 32))
    _, values = quantized_layer("", weight, measured_how, "archive", "gptq", inputs)
    rows = slice(None, None, -(-len(weight) // _SAMPLED_ROWS))
    sample = weight[rows]
    measured_error = output_error(sample, values[rows], inputs.matrix)
    ratios = []
    for how in options:
        tensor, quantized = quantized_layer("", sample, how, output, "gptq", inputs)
        error = output_error(sample, quantized, inputs.matrix)
        ratio = (error / measured_error) ** 2 if measured_error else 0.0
        ratios.append([8 * tensor.size_in_bytes / sample.size, ratio])
    return values, ratios
