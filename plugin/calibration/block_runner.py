"""Forward pass of a model's blocks, one at a time, with weights in floats.

NumPy computes it (`models.transformer`): products are those of its BLAS library, and the threads
take a chunk of tokens each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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

_CHUNKS_AT_ONCE = 4
"""Chunks whose inputs of layers are in memory together."""


class BlockRunner:
    """Blocks of a model, for chunks of tokens.

    Args:
        chunks: int32 ``[T]`` each.
    """

    def __init__(
        self, source: ModelSource, chunks: Sequence[Array], threads: WorkerThreads
    ) -> None:
        self._configuration, self._threads = source.configuration, threads
        self._tensors = {
            name: source.tensors[name] for name in expected_tensors(source.configuration)
        }
        self._tables = {
            count: block_tables(self._configuration, self._weights, np.int32(0), count)
            for count in set(map(len, chunks))
        }
        self._chunks = chunks

    def embeddings(self) -> list[Array]:
        """Return the hidden states of each chunk before the first block, float32 ``[T, width]``."""

        def packed(part: str) -> Theta:
            return Theta({"weight": self._tensors[f"{part}.weight"]})

        return [np.asarray(embed(self._configuration, packed, each)) for each in self._chunks]

    def weights(self, number: int) -> dict[str, InferenceTensor]:
        """Return the tensors of a block in floats, by their names in it."""
        return self._weights(f"blk.{number}").flatten()

    def _weights(self, part: str) -> Theta:
        prefix = f"{part}."
        floats = {
            name.removeprefix(prefix): _in_floats(tensor)
            for name, tensor in self._tensors.items()
            if name.startswith(prefix)
        }
        return Theta(floats)

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
        theta = Theta(block)

        def inputs_of(state: Array) -> dict[str, Array]:
            inputs: dict[str, Array] = {}
            self._run(number, theta, state, inputs.__setitem__)
            return inputs

        moments = BlockMoments()
        for start in range(0, len(states), _CHUNKS_AT_ONCE):
            inputs = self._threads.map(inputs_of, states[start : start + _CHUNKS_AT_ONCE])
            moments.add(inputs, self._threads)
        return moments

    def _run(
        self,
        number: int,
        theta: Theta,
        state: Array,
        observe: Callable[[str, Array], None] | None = None,
    ) -> Array:
        count = len(state)
        [cache, *_] = empty_caches(self._configuration, count, "f32")
        tables = self._tables[count]
        result, _ = run_block(
            self._configuration, theta, number, tables, state, np.int32(0), cache, observe
        )
        return np.asarray(result)


def _in_floats(tensor: InferenceTensor) -> PrimitiveTensor:
    if isinstance(tensor, QuantizedTensor):
        return PrimitiveTensor(np.asarray(tensor.unpack().dequant(), np.float32), tensor.name)
    assert isinstance(tensor, PrimitiveTensor)
    is_float = tensor.array.dtype.kind not in "iu"
    return PrimitiveTensor(
        np.asarray(tensor.array, np.float32) if is_float else tensor.array, tensor.name
    )
