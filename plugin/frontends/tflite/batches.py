"""The batch of a model: another number than the file's, or one that each call decides.

A batch is the first dimension of every input that the file says may have another extent there, or
of every input if the file says it of none. With a number, shapes follow from it; a dynamic one is a
loop, of `subquant.frontends.batches`.
"""

from __future__ import annotations

from ...formats.tflite import Subgraph

__all__ = ["batched_inputs", "input_shapes"]


def batched_inputs(graph: Subgraph) -> list[bool]:
    """Which inputs of a graph have a batch."""
    marked = [bool(tensor.known_shape) and tensor.known_shape[0] == -1 for tensor in graph.inputs]
    return marked if any(marked) else [bool(tensor.shape) for tensor in graph.inputs]


def input_shapes(graph: Subgraph, batch: int | None) -> list[tuple[int, ...]]:
    """The shapes of the inputs of a graph, with a batch if it is not that of the file."""
    return [
        (batch, *tensor.shape[1:]) if is_batched and batch is not None else tensor.shape
        for tensor, is_batched in zip(graph.inputs, batched_inputs(graph), strict=True)
    ]
