"""Quantization of the blocks of a language model, in order, by the inputs of their layers.

A `LayerQuantizer` has the options, and reports each layer. A `BlockQuantizer` has the hidden states
of the tokens: it quantizes a block, and brings them to the next one.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..layouts import InferenceTensor, PrimitiveTensor, QuantizedTensor
from ..models.memory import return_free_memory
from ..models.source import ModelSource
from ..numerics.element_types import Array
from ..weights.quantizing import LayerError, WeightQuantization, layer_error
from .block_runner import BlockRunner
from .expert_layers import ExpertLayer, is_expert_layer, quantize_experts
from .folding import ScalesOf, fold_into
from .gptq import output_errors
from .layer import Calibration, OnLayer
from .moments import BlockMoments, InputMoments
from .outputs import Output, quantized_layer
from .worker_threads import WorkerThreads


class QuantizedLayer(NamedTuple):
    """A packed layer, its values in floats, and its error."""

    tensors: list[QuantizedTensor]
    values: Array
    error: LayerError


class LayerQuantizer:
    """The quantization of one layer at a time.

    Args:
        importance: weights of the inputs by the names of layers, in place of moments.
        count: the number of layers, for `on_layer`.
        on_layer: called before each layer.

    Attributes:
        settings: the quantizations of layers that differ from `how`, by their names.
        importance: as above.
        reported: the number of layers that are reported.
    """

    def __init__(
        self,
        how: WeightQuantization,
        calibration: Calibration,
        output: Output,
        importance: Mapping[str, Array],
        count: int,
        on_layer: OnLayer,
    ) -> None:
        self._how, self._calibration, self._output = how, calibration, output
        self._count, self._on_layer = count, on_layer
        self._lock = threading.Lock()
        self.settings: dict[str, WeightQuantization] = {}
        self.importance = importance
        self.reported = 0

    def report(self, name: str) -> None:
        """Report that a layer is about to be quantized; threads may call it."""
        with self._lock:
            number = self.reported
            self.reported += 1
        self._on_layer(number, self._count, name)

    def matrix(
        self, name: str, weight: Array, inputs: InputMoments | None, importance: Array | None
    ) -> tuple[QuantizedTensor, Array]:
        """Return the packed weight of a layer, and its values."""
        how = self.settings.get(name, self._how)
        method = self._calibration.layer_method
        return quantized_layer(name, weight, how, self._output, method, inputs, importance)

    def layer(
        self, name: str, weight: Array, inputs: InputMoments | None, held_out: InputMoments | None
    ) -> QuantizedLayer:
        """Return a quantized layer with its errors.

        Args:
            inputs: the moments of its inputs for calibration tokens.
            held_out: those for held-out tokens.
        """
        self.report(name)
        start = time.perf_counter()
        tensor, values = self.matrix(name, weight, inputs, self.importance.get(name))
        seconds = time.perf_counter() - start
        matrices = {
            tokens: each.matrix
            for tokens, each in (("calibration", inputs), ("held out", held_out))
            if each is not None
        }
        relative = output_errors(weight, values, list(matrices.values()))
        by_tokens = dict(zip(matrices, relative, strict=True))
        error = replace(
            layer_error(tensor, weight),
            output_error=by_tokens.get("calibration"),
            held_out_error=by_tokens.get("held out"),
            seconds=seconds,
        )
        return QuantizedLayer([tensor], values, error)


class BlockQuantizer:
    """The quantization of one block after the other.

    Args:
        runner: of the chunks to calibrate with, and then the held-out ones.
        names: the layers to quantize, by the names of their weights in the model.
        scales_of: computes scales to fold into a block; None for no folding.
        chunks: the number of chunks to calibrate with.

    Attributes:
        states: hidden states of the chunks before the next block, float32 ``[T, width]`` each.
        float_states: those of the float model, for the first of the chunks.
    """

    def __init__(
        self,
        source: ModelSource,
        runner: BlockRunner,
        workers: WorkerThreads,
        layers: LayerQuantizer,
        names: Sequence[str],
        scales_of: ScalesOf | None,
        chunks: int,
    ) -> None:
        self._source, self._runner, self._workers = source, runner, workers
        self._layers, self._names, self._scales_of = layers, names, scales_of
        self._chunks = chunks
        self.states: list[Array] = []
        self.float_states: list[Array] = []

    def start(self, compared: int) -> None:
        """Start with the embeddings; `compared` chunks go through the float model, too."""
        self.states = self._runner.embeddings()
        self.float_states = self.states[:compared]

    def resume(self, states: list[Array]) -> None:
        """Go on with `states` and `float_states` of an earlier run."""
        count = self._runner.count
        self.states, self.float_states = states[:count], states[count:]

    def quantize(self, number: int) -> tuple[list[InferenceTensor], list[LayerError]]:
        """Quantize the next block; return its changed tensors, and the errors of its layers."""
        block = self._runner.weights(number)
        moments = self._calibration_moments(number, block)
        prefix = f"blk.{number}."
        names = {
            name.removeprefix(prefix): self._source.tensors[name].name
            for name in self._names
            if name.startswith(prefix)
        }
        changed: list[InferenceTensor] = []
        if self._scales_of is not None and moments is not None:
            layer_names = {part.removesuffix(".weight") for part in names}
            stored = {part: self._source.tensors[prefix + part] for part in block}
            configuration = self._source.configuration
            changed += fold_into(
                configuration, block, stored, moments, layer_names, self._scales_of, self._workers
            )
        held_out = self.states[self._chunks :]
        held_out_moments = (  # with scales that are folded into the block
            self._runner.moments(number, block, held_out) if held_out else None
        )
        return_free_memory()
        errors: list[LayerError] = []
        for part, layer in self._quantized_layers(block, names, (moments, held_out_moments)):
            changed += layer.tensors
            block[part] = PrimitiveTensor(layer.values, part)
            errors.append(layer.error)
        if number + 1 < self._source.configuration.blocks:
            self.states = self._runner.run(number, block, self.states)
        return changed, errors

    def _calibration_moments(
        self, number: int, block: Mapping[str, InferenceTensor]
    ) -> BlockMoments | None:
        """Return the moments for the chunks to calibrate with; None if there are none.

        The states of the float model are brought to the next block.
        """
        states = self.states[: self._chunks]
        if self.float_states:
            moments, self.float_states = self._runner.moments_and_errors(
                number, block, states, self.float_states
            )
            return moments
        return self._runner.moments(number, block, states) if states else None

    def _quantized_layers(
        self,
        block: Mapping[str, InferenceTensor],
        names: Mapping[str, str],
        moments: tuple[BlockMoments | None, BlockMoments | None],
    ) -> list[tuple[str, QuantizedLayer | ExpertLayer]]:
        """Quantize the layers of a block, of experts last.

        Args:
            names: names of the weights by their names in the block.
            moments: those for the tokens of the calibration, and for held-out tokens.
        """
        of_experts = {part: name for part, name in names.items() if is_expert_layer(part)}
        single = {part: name for part, name in names.items() if part not in of_experts}
        layers: list[tuple[str, QuantizedLayer | ExpertLayer]] = []
        layers += self._layers_of_one_weight(block, single, moments)
        if of_experts:
            for name in of_experts.values():
                self._layers.report(name)
            layers += quantize_experts(
                block, of_experts, moments, self._layers.importance, self._layers.matrix,
                self._workers,
            )  # fmt: skip
        return layers

    def _layers_of_one_weight(
        self,
        block: Mapping[str, InferenceTensor],
        names: Mapping[str, str],
        moments: tuple[BlockMoments | None, BlockMoments | None],
    ) -> list[tuple[str, QuantizedLayer]]:
        """Quantize layers that are no experts; a thread takes the layers with one input."""
        first_names = next((each.first_names for each in moments if each is not None), {})
        groups: dict[str, list[str]] = {}
        for name in names:
            layer = name.removesuffix(".weight")
            groups.setdefault(first_names.get(layer, layer), []).append(name)

        def quantize_group(group: tuple[str, list[str]]) -> list[tuple[str, QuantizedLayer]]:
            first_name, members = group
            inputs, held_out = (None if each is None else each.pop(first_name) for each in moments)
            layers = []
            for name in members:
                tensor = block[name]
                assert isinstance(tensor, PrimitiveTensor)  # `BlockRunner.weights`
                layer = self._layers.layer(names[name], tensor.array, inputs, held_out)
                layers.append((name, layer))
            return layers

        # The last layers take the longest, so they are begun first.
        quantized = self._workers.map(quantize_group, reversed(groups.items()))
        return list(itertools.chain.from_iterable(reversed(quantized)))
