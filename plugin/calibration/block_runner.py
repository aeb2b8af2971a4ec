"""Forward pass of a model's blocks, one at a time, with weights in floats.

NumPy computes it (`models.transformer`): products are those of its BLAS library, and the threads
take a chunk of tokens each. A program of a block, with its weights as arguments, takes the same CPU
time (Gemma 3 270M, 512 tokens, Zen 5: 100 ms each), and some seconds to compile.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..layouts import InferenceTensor, PrimitiveTensor, QuantizedTensor
from ..models.configuration import expected_tensors
from ..models.interface import empty_caches
from ..models.source import ModelSource
from ..models.transformer import block_tables, embed, run_block
from ..numerics.element_types import Array
from ..weights.theta import Theta
from .moments import BlockMoments
from .worker_threads import WorkerThreads

CHUNKS_AT_ONCE = 4
"""Chunks whose inputs of layers are in memory together."""

_LAST_LAYERS = ("ffn_down", "ffn_down_exps")


class _AllInputsSeenError(Exception):
    """Ends the forward pass of a block where its result is not needed."""


class BlockRunner:
    """Blocks of a model, for chunks of tokens.

    Layers for rounded inputs stay as they are stored; others are computed in floats.

    Args:
        chunks: int32 ``[T]`` each.

    Attributes:
        configuration: the source's, with the rounding of inputs that its layers ask for.
        count: the number of chunks.
    """

    def __init__(
        self, source: ModelSource, chunks: Sequence[Array], threads: WorkerThreads
    ) -> None:
        rounds = bool(source.activations())
        self.configuration = replace(source.configuration, quantizes_activations=rounds)
        self._threads = threads
        self._tensors = {
            name: source.tensors[name] for name in expected_tensors(source.configuration)
        }
        self._tables = {
            count: block_tables(self.configuration, self.floats, np.int32(0), count)
            for count in set(map(len, chunks))
        }
        self._chunks = chunks
        self.count = len(chunks)

    def embeddings(self) -> list[Array]:
        """Return the hidden states of each chunk before the first block, float32 ``[T, width]``."""
        return [np.asarray(embed(self.configuration, self.stored, each)) for each in self._chunks]

    def weights(self, number: int) -> dict[str, InferenceTensor]:
        """Return the tensors of a block in floats, by their names in it."""
        return self.floats(f"blk.{number}").flatten()

    def floats(self, part: str) -> Theta:
        """Return the tensors of a part of the model in floats, by their names in it."""
        return Theta({name: _in_floats(each) for name, each in self.stored(part).flatten().items()})

    def stored(self, part: str) -> Theta:
        """Return the tensors of a part of the model as they are stored, by their names in it."""
        prefix = f"{part}."
        return Theta(
            {
                name.removeprefix(prefix): tensor
                for name, tensor in self._tensors.items()
                if name.startswith(prefix)
            }
        )

    def run(
        self, number: int, block: Mapping[str, InferenceTensor], states: Sequence[Array]
    ) -> list[Array]:
        """Return the hidden states after a block with the given tensors."""
        theta = Theta(block)
        return self._threads.map(lambda state: self._run(number, theta, state), states)

    def moments(
        self, number: int, block: Mapping[str, InferenceTensor], states: Sequence[Array]
    ) -> BlockMoments:
        """Return the second moments of the inputs of a block's layers."""
        moments, inputs_of = BlockMoments(), functools.partial(self._inputs, number, Theta(block))
        for start in range(0, len(states), CHUNKS_AT_ONCE):
            chunks = states[start : start + CHUNKS_AT_ONCE]
            moments.add(self._threads.map(inputs_of, chunks), self._threads)
        return moments

    def moments_and_errors(
        self,
        number: int,
        block: Mapping[str, InferenceTensor],
        states: Sequence[Array],
        float_states: Sequence[Array],
    ) -> tuple[BlockMoments, list[Array]]:
        """Return `moments` with the errors of inputs, and the float model's states after the block.

        Args:
            block: the tensors in floats.
            states: the hidden states before the block, for quantized earlier blocks.
            float_states: those of the float model, of the first chunks.
        """
        theta, moments, results = Theta(block), BlockMoments(), []
        inputs_of = functools.partial(self._inputs, number, theta)

        def observe(state: Array) -> tuple[dict[str, Array], Array]:
            inputs: dict[str, Array] = {}
            return inputs, self._run(number, theta, state, inputs.__setitem__)

        for start in range(0, len(states), CHUNKS_AT_ONCE // 2):
            chunks = slice(start, start + CHUNKS_AT_ONCE // 2)
            floats = self._threads.map(observe, float_states[chunks])
            inputs = self._threads.map(inputs_of, states[chunks])
            moments.add(inputs, self._threads, [each for each, _ in floats])
            results += [result for _, result in floats]
        return moments, results

    def _inputs(self, number: int, theta: Theta, state: Array) -> dict[str, Array]:
        """Return the inputs of a block's layers; the product of the last layer is left out."""
        inputs: dict[str, Array] = {}

        def observe(name: str, x: Array) -> None:
            inputs[name] = x
            if name in _LAST_LAYERS:
                raise _AllInputsSeenError

        with contextlib.suppress(_AllInputsSeenError):
            self._run(number, theta, state, observe)
        return inputs

    def _run(
        self,
        number: int,
        theta: Theta,
        state: Array,
        observe: Callable[[str, Array], None] | None = None,
    ) -> Array:
        count = len(state)
        [cache, *_] = empty_caches(self.configuration, count, "f32")
        tables = self._tables[count]
        result, _ = run_block(
            self.configuration, theta, number, tables, state, np.int32(0), cache, observe
        )
        return np.asarray(result)


def _in_floats(tensor: InferenceTensor) -> InferenceTensor:
    if isinstance(tensor, QuantizedTensor):
        if tensor.activations is not None:
            return tensor
        return PrimitiveTensor(np.asarray(tensor.unpack().dequant(), np.float32), tensor.name)
    assert isinstance(tensor, PrimitiveTensor)
    is_float = tensor.array.dtype.kind not in "iu"
    return PrimitiveTensor(
        np.asarray(tensor.array, np.float32) if is_float else tensor.array, tensor.name
    )
