"""Bits for each layer, by the effect of the layer's error on the model.

Quantized alone to ``b`` bits, a layer changes the model by about

    D(b) = D(b0) e(b)**2 / e(b0)**2

``e`` is the error of the layer's outputs. ``D(b0)`` is measured: the layer is quantized to ``b0``
bits (`MEASURED_BITS`) by GPTQ, calibration tokens go through the model, and the hidden states that
the output layer reads change by ``D``, relative to them, squared, and averaged over the tokens.
Changes of several layers add up as long as they are small.

The bits of all layers are those of the least sum of ``D`` with a given average. Layers start with
the fewest bits. The step to more bits that saves the most for each bit is the first::

    gain = (D(b) - D(b')) / (elements (bits of b' - bits of b))

Steps are those of the convex hull of a layer's choices, whose gains fall: then all sums with the
greatest gains are least for their average (the Lagrangian relaxation).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..errors import UsageError
from ..layouts import InferenceTensor, PrimitiveTensor
from ..layouts.ggml_quantization import QUANTIZED_TYPES
from ..models.source import ModelSource
from ..models.transformer import normalize
from ..numerics.element_types import Array
from ..weights.quantizing import WeightQuantization
from ..weights.theta import Theta
from .block_runner import BlockRunner
from .gptq import output_error
from .moments import BlockMoments, InputMoments
from .outputs import Output, quantized_layer
from .worker_threads import WorkerThreads

MEASURED_BITS = 4
"""Bits of the quantization whose effect on the model is measured."""

_CANDIDATE_BITS = (2, 3, 4, 5, 6, 8)
"""Bits that a layer of an archive may have."""
_SAMPLED_ROWS = 64
"""Rows of a weight whose output error is measured for each quantization, at most."""


OnLayer = Callable[[int, int, str], None]
"""Called before each layer with its number, from 0, the count of layers, and its name."""


class Choice(NamedTuple):
    """A quantization of a layer.

    Attributes:
        bits: bits of an element, with scales and zero points.
        change: the expected change of the model.
    """

    how: WeightQuantization
    bits: float
    change: float


def allocate(
    choices: Mapping[str, Sequence[Choice]], sizes: Mapping[str, int], average: float
) -> dict[str, WeightQuantization]:
    """Choose a quantization for each layer, with an average of bits of at most `average`.

    Args:
        choices: at least one for each layer.
        sizes: the elements of each layer.

    Raises:
        UsageError: the fewest bits of each layer are more than the average.
    """
    hulls = {name: _convex_hull(each) for name, each in choices.items()}
    budget = average * sum(sizes.values()) * (1 + 1e-9)
    used = sum(hull[0].bits * sizes[name] for name, hull in hulls.items())
    if used > budget:
        least = used / sum(sizes.values())
        raise UsageError(
            f"--bits-average must be {least:.2f} or more for these layers, got {average:g}"
        )
    steps = sorted(
        (
            (_gain(hull[number], hull[number + 1]) / sizes[name], name, number)
            for name, hull in hulls.items()
            for number in range(len(hull) - 1)
        ),
        key=lambda step: (-step[0], step[1], step[2]),
    )
    step_counts = dict.fromkeys(hulls, 0)
    for _, name, number in steps:
        hull = hulls[name]
        more = (hull[number + 1].bits - hull[number].bits) * sizes[name]
        if step_counts[name] == number and used + more <= budget:
            step_counts[name] += 1
            used += more
    return {name: hulls[name][number].how for name, number in step_counts.items()}


def _gain(before: Choice, after: Choice) -> float:
    """Return the change that a step saves for each bit of an element."""
    return (before.change - after.change) / (after.bits - before.bits)


def _convex_hull(choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices on the lower convex hull of changes over bits, from few bits on."""
    hull: list[Choice] = []
    for choice in sorted(choices, key=lambda each: (each.bits, each.change)):
        if hull and choice.change >= hull[-1].change:
            continue
        while len(hull) > 1 and _gain(hull[-2], hull[-1]) <= _gain(hull[-1], choice):
            hull.pop()
        hull.append(choice)
    return hull


def choose_quantizations(
    source: ModelSource,
    names: Sequence[str],
    runner: BlockRunner,
    how: WeightQuantization,
    output: Output,
    average: float,
    threads: WorkerThreads,
    on_layer: OnLayer = lambda number, count, name: None,
) -> dict[str, WeightQuantization]:
    """Return the quantization of each layer, with an average of bits of at most `average`.

    Args:
        on_layer: called before the effect of each layer is measured.

    Raises:
        UsageError: as `candidates` and `allocate`.
    """
    options = candidates(how, output)
    choices = measured_choices(source, names, runner, options, output, threads, on_layer)
    sizes = {name: math.prod(source.tensors[name].shape) for name in names}
    return allocate(choices, sizes, average)


# -- measuring -------------------------------------------------------------------------------------


def candidates(how: WeightQuantization, output: Output) -> list[WeightQuantization]:
    """Return the quantizations that a layer may have.

    Raises:
        UsageError: the format of the output has one quantization for all layers.
    """
    if output == "checkpoint":
        raise UsageError(
            "a folder has layers of one number of bits, and --method auto chooses the bits of each "
            "layer; write an .irpa archive or a .gguf file"
        )
    if output == "gguf":
        return [replace(how, gguf_type=each) for each in QUANTIZED_TYPES]
    return [replace(how, bits=bits) for bits in _CANDIDATE_BITS]


def measured_choices(
    source: ModelSource,
    names: Sequence[str],
    runner: BlockRunner,
    options: Sequence[WeightQuantization],
    output: Output,
    threads: WorkerThreads,
    on_layer: OnLayer = lambda number, count, name: None,
) -> dict[str, list[Choice]]:
    """Return the choices of each layer, with their effects on the model.

    The chunks of the runner go through the model in floats. Memory holds a hidden state of one
    chunk for each layer: the middle one, as a text may begin with titles and a table of contents.

    Args:
        names: the names of the weights in the forward pass.
        options: the quantizations that a layer may have.
    """
    states = runner.embeddings()
    middle = len(states) // 2
    changed_states: dict[str, Array] = {}
    ratios: dict[str, list[Choice]] = {}
    numbers = itertools.count()
    for number in range(source.configuration.blocks):
        prefix = f"blk.{number}."
        block = runner.weights(number)
        moments = runner.moments(number, block, states)
        of_block = {name: name.removeprefix(prefix) for name in names if name.startswith(prefix)}

        def measure(
            weight: tuple[str, str],
            block: Mapping[str, InferenceTensor] = block,
            moments: BlockMoments = moments,
        ) -> tuple[Array, list[Choice]]:
            name, part = weight
            on_layer(next(numbers), len(names), f"measure {source.tensors[name].name}")
            tensor = block[part]
            assert isinstance(tensor, PrimitiveTensor)  # `BlockRunner.weights`
            inputs = InputMoments(moments.of(part.removesuffix(".weight")), moments.tokens)
            return _measured_layer(tensor.array, inputs, options, output)

        after = runner.run(number, block, list(changed_states.values()))
        changed_states = dict(zip(changed_states, after, strict=True))
        measured = threads.map(measure, of_block.items())
        for (name, part), (values, relative) in zip(of_block.items(), measured, strict=True):
            changed_block = {**block, part: PrimitiveTensor(values, part)}
            [changed_states[name]] = runner.run(number, changed_block, [states[middle]])
            ratios[name] = relative
        states = runner.run(number, block, states)
        source.release_pages()
    configuration = source.configuration
    norm = Theta({"weight": source.tensors["output_norm.weight"]})
    before = np.asarray(normalize(configuration, norm, states[middle]))
    powers = np.square(before).sum(-1)
    choices = {}
    for name, state in changed_states.items():
        difference = np.asarray(normalize(configuration, norm, state)) - before
        change = float(np.mean(np.square(difference).sum(-1) / powers))
        choices[name] = [each._replace(change=each.change * change) for each in ratios[name]]
    return choices


def _measured_layer(
    weight: Array, inputs: InputMoments, options: Sequence[WeightQuantization], output: Output
) -> tuple[Array, list[Choice]]:
    """Return the values of a weight with `MEASURED_BITS`, and choices relative to its square error.

    Errors of the choices are those of some rows of the weight, which GPTQ quantizes each alone.
    """
    measured_how = WeightQuantization(MEASURED_BITS, block_size=math.gcd(weight.shape[1], 32))
    _, values = quantized_layer("", weight, measured_how, "archive", "gptq", inputs)
    rows = slice(None, None, -(-len(weight) // _SAMPLED_ROWS))
    sample = weight[rows]
    measured_error = output_error(sample, values[rows], inputs.matrix)
    choices = []
    for how in options:
        tensor, quantized = quantized_layer("", sample, how, output, "gptq", inputs)
        error = output_error(sample, quantized, inputs.matrix)
        change = (error / measured_error) ** 2 if measured_error else 0.0
        choices.append(Choice(how, 8 * tensor.size_in_bytes / sample.size, change))
    return values, choices
