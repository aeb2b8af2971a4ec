"""Weights of a quantized model beside those of its original, tensor by tensor.

Both are models (a GGUF file, an archive of one, the folder of a checkpoint), or any other sources
of weights. Tensors of models are matched by the names of the forward pass, so that a GGUF file can
be compared with the folder that it was made of: GGUF files of some architectures have the rows of
queries and keys in another order, and the offset of norms in their weights. Tensors of other
sources are matched by the names in the files.

With a text, both models read it: the outputs of a layer differ by ``X (w - w')^T``, where ``X`` are
the inputs of the layer in the original.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ..calibration.gptq import output_error
from ..calibration.moments import BlockMoments
from ..calibration.report import Block, ModelCost, check_same_shape, model_cost
from ..errors import SubquantError, UsageError
from ..layouts import InferenceTensor, PrimitiveTensor, QuantizedTensor
from ..models.configuration import Configuration
from ..models.source import ModelSource, open_model
from ..models.text_chunks import DEFAULT_CHUNK, text_chunks
from ..numerics.element_types import Array
from ..weights.inspection import describe
from ..weights.sources import open_weights

_CHUNK_ELEMENTS = 1 << 22
"""Elements whose difference is computed in one step."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ComparedWeight:
    """A tensor of a model beside the original's.

    Attributes:
        name, original_name: the names in the files.
        kind, original_kind: the element type or the quantized type, as `subquant inspect` has it.
        bits_per_element: with scales and zero points.
        relative_error: root mean square of the difference, divided by that of the original.
        greatest_error: the greatest magnitude of a difference.
        output_error: as `relative_error`, of the layer's outputs for a text; None without a text,
            and for tensors that are no weight of a linear layer in a block.
    """

    name: str
    original_name: str
    shape: tuple[int, ...]
    kind: str
    original_kind: str
    bits_per_element: float
    relative_error: float
    greatest_error: float
    output_error: float | None = None


@dataclass(frozen=True)
class WeightComparison:
    """Result of a comparison.

    Attributes:
        weights: those with the greatest relative error first.
        only_in_model, only_in_original: names of tensors that the other does not have.
        other_shapes: names of tensors whose shapes differ.
        cost: perplexities and KL divergence; None without a text.
    """

    weights: list[ComparedWeight]
    only_in_model: list[str]
    only_in_original: list[str]
    other_shapes: list[str]
    cost: ModelCost | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON; a relative error that is infinite is null."""
        result = asdict(self)
        for weight in result["weights"]:
            if not math.isfinite(weight["relative_error"]):
                weight["relative_error"] = None
        return result | {"held_out": result.pop("cost")}


def compare_weights(
    model: str | os.PathLike[str],
    original: str | os.PathLike[str],
    text: str | None = None,
    tokens: int = 2 * DEFAULT_CHUNK,
    progress: Progress = lambda step: None,
) -> WeightComparison:
    """Compare the weights of a model with those of its original.

    Args:
        text: both models read its first tokens; a text that neither was calibrated with.
        tokens: the number of them, rounded down to chunks of 512, at least one.

    Raises:
        UsageError: no tensors have the same name; or there is a text, and the models are no
            quantizations of one model.
        InputError: a file cannot be read, or the text is shorter than a chunk.
        SubquantError: a file is not supported.
    """
    sides = _sides(model, original, needs_models=text is not None)
    weights, other_shapes = [], []
    common = [name for name in sides[1].tensors if name in sides[0].tensors]
    if not common:
        raise UsageError(
            f"'{os.fspath(model)}' and '{os.fspath(original)}' have no tensor of the same name"
        )
    for number, name in enumerate(common):
        progress(f"{number + 1} of {len(common)}: {name}")
        first, second = (side.tensors[name] for side in sides)
        if first.shape != second.shape:
            other_shapes.append(first.name)
            continue
        weights.append(_compared(first, second, *(side.values(name) for side in sides)))
        for side in sides:
            side.release_pages()
    cost: ModelCost | None = None
    by_name: dict[str, float] = {}
    if text is not None:
        cost, by_name = _compare_outputs(sides, text, tokens, progress)
    weights = [replace(each, output_error=by_name.get(each.name)) for each in weights]
    only_in_model, only_in_original = (
        [side.tensors[name].name for name in side.tensors if name not in other.tensors]
        for side, other in (sides, sides[::-1])
    )
    worst_first = sorted(weights, key=lambda each: -each.relative_error)
    return WeightComparison(worst_first, only_in_model, only_in_original, other_shapes, cost)


class _Side:
    """Tensors of one of both sources, by the names under which they are matched."""

    def __init__(self, tensors: Mapping[str, InferenceTensor], source: ModelSource | None) -> None:
        self.tensors, self.source = tensors, source

    def values(self, name: str) -> Array:
        """Return a tensor in float64 or as it is, in the order of rows of checkpoints."""
        values = _floats(self.tensors[name])
        if self.source is None:
            return values
        return in_common_form(self.source.configuration, name, values)

    def release_pages(self) -> None:
        if self.source is not None:
            self.source.release_pages()


def _sides(
    model: str | os.PathLike[str], original: str | os.PathLike[str], *, needs_models: bool
) -> tuple[_Side, _Side]:
    try:
        sources = [open_model(path) for path in (model, original)]
    except SubquantError:
        if needs_models:
            raise
        datasets = [open_weights(path) for path in (model, original)]
        first, second = (_Side(each.theta.flatten(), None) for each in datasets)
        return first, second
    first, second = (_Side(each.tensors, each) for each in sources)
    return first, second


def _floats(tensor: InferenceTensor) -> Array:
    if isinstance(tensor, QuantizedTensor):
        return np.asarray(tensor.unpack().dequant())
    assert isinstance(tensor, PrimitiveTensor)
    return np.asarray(tensor.array)


def in_common_form(configuration: Configuration, name: str, values: Array) -> Array:
    """Return values of a tensor in the form that checkpoints and GGUF files have in common.

    Rows of queries and keys whose rotated pairs are neighbors are put in the order in which the
    halves of a head are pairs, and norms get the offset of their weights.
    """
    layer = name.split(".")[-2]
    if layer.endswith("_norm"):
        return values + np.float32(configuration.structure.norm_offset)
    heads = {"attn_q": configuration.heads, "attn_k": configuration.kv_heads}.get(layer)
    if heads is None or configuration.rotation.pairs == "halves":
        return values
    by_head = values.reshape((heads, configuration.head_size, -1))
    rotated = by_head[:, : configuration.rotation.size]
    halves = np.concatenate([rotated[:, ::2], rotated[:, 1::2]], 1)
    rest = by_head[:, configuration.rotation.size :]
    return np.concatenate([halves, rest], 1).reshape(values.shape)


def _compared(
    model: InferenceTensor, original: InferenceTensor, values: Array, expected: Array
) -> ComparedWeight:
    noise = power = greatest = 0.0
    flat, flat_expected = values.reshape(-1), expected.reshape(-1)
    for start in range(0, values.size, _CHUNK_ELEMENTS):
        part = flat_expected[start : start + _CHUNK_ELEMENTS].astype(np.float64)
        difference = flat[start : start + _CHUNK_ELEMENTS].astype(np.float64) - part
        noise += float(np.sum(difference * difference))
        power += float(np.sum(part * part))
        greatest = max(greatest, float(np.abs(difference).max(initial=0)))
    described = describe(model)
    return ComparedWeight(
        model.name,
        original.name,
        model.shape,
        described.kind,
        describe(original).kind,
        described.bits_per_element or 0.0,
        _relative(noise, power),
        greatest,
    )


def _relative(noise: float, power: float) -> float:
    if power:
        return math.sqrt(noise / power)
    return math.inf if noise else 0.0


def _compare_outputs(
    sides: tuple[_Side, _Side], text: str, tokens: int, progress: Progress
) -> tuple[ModelCost, dict[str, float]]:
    """Return the cost of the model, and the error of each layer's outputs, by its tensor's name."""
    after, before = (side.source for side in sides)
    assert before is not None
    assert after is not None
    check_same_shape(before, after)
    length = min(DEFAULT_CHUNK, before.configuration.context, after.configuration.context)
    chunks = text_chunks(open_model(before.path).tokenizer(), text, length, "leave out --text")
    outputs = _OutputErrors(before.configuration, after.configuration)
    cost = model_cost(
        before,
        after,
        chunks[: max(1, tokens // length)],
        lambda number, count: progress(f"text: block {number + 1} of {count}"),
        outputs.add,
    )
    named = {after.tensors[name].name: error for name, error in outputs.errors.items()}
    return cost, named


class _OutputErrors:
    """Errors of the outputs of each linear layer of two models, for the inputs of the first."""

    def __init__(self, before: Configuration, after: Configuration) -> None:
        self._configurations = before, after
        self.errors: dict[str, float] = {}

    def add(self, number: int, before: Block, after: Block, moments: BlockMoments) -> None:
        """Add the layers of a block."""
        second_moments: dict[str, Array] = {}
        for layer, first_name in moments.first_names.items():
            name = f"{layer}.weight"
            if first_name not in second_moments:
                second_moments[first_name] = moments.pop(first_name).matrix
            weight, values = (
                in_common_form(configuration, name, _floats(block[name]))
                for configuration, block in zip(self._configurations, (before, after), strict=True)
            )
            self.errors[f"blk.{number}.{name}"] = output_error(
                weight, values, second_moments[first_name]
            )
