"""Bits for each layer, by the effect of the layer's error on the model.

`layer_effects` measures the change ``D(b)`` of the model when a layer alone has ``b`` bits. Changes
of several layers add up as long as they are small. The bits of all layers are those of the least
sum of ``D`` with a given average. Layers start with the fewest bits. The step to more bits that
saves the most for each bit is the first::

    gain = (D(b) - D(b')) / (elements (bits of b' - bits of b))

Steps are those of the convex hull of a layer's choices, whose gains fall: then all sums with the
greatest gains are least for their average (the Lagrangian relaxation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..errors import UsageError
from ..layouts.ggml_quantization import QUANTIZED_TYPES
from ..weights.quantizing import WeightQuantization
from .outputs import Output

_CANDIDATE_BITS = (2, 3, 4, 5, 6, 8)
"""Bits that a layer of an archive may have."""
_BLOCK_FACTORS = (1, 2)
"""Block sizes that a layer of an archive may have, divided by the size of the options.

With all layers of Gemma 3 270M in 4.5 bits on average, blocks of 32 or 64 have 11 % less change
than blocks of 32, and those of 32, 64 or 128 have 12 % less.
"""


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


def check_format(output: Output) -> None:
    """Refuse a format with one quantization for all layers; UsageError."""
    if output == "checkpoint":
        raise UsageError(
            "a folder has layers of one number of bits, and --method auto chooses the bits of each "
            "layer; write an .irpa archive or a .gguf file"
        )


def candidates(how: WeightQuantization, output: Output, k: int) -> list[WeightQuantization]:
    """Return the quantizations that a layer of `k` inputs may have; at least one."""
    if output == "gguf":
        return [replace(how, gguf_type=each) for each in QUANTIZED_TYPES]
    sizes = [how.block_size * factor for factor in _BLOCK_FACTORS]
    return [
        replace(how, bits=bits, block_size=size)
        for size in sizes
        if k % size == 0
        for bits in _CANDIDATE_BITS
    ]
