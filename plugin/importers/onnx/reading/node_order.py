"""Topological order of nodes.

ONNX demands it. ONNX Runtime does not for the graph of a model, and its conversion to 16-bit floats
appends nodes; in graphs of nodes it does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from .model import Node, Subgraph


def in_topological_order(nodes: Sequence[Node]) -> list[Node]:
    """Return nodes so that each follows the nodes that it reads, else in their order.

    Nodes of a cycle come last.
    """
    producers: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for name in node.outputs:
            producers.setdefault(name, position)
    readers: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for position, node in enumerate(nodes):
        read = {producers[name] for name in _names_read(node) if name in producers}
        missing[position] = len(read)
        for producer in read:
            readers[producer].append(position)
    ready = [position for position, count in enumerate(missing) if not count]
    order = []
    while ready:
        position = heapq.heappop(ready)
        order.append(nodes[position])
        for reader in readers[position]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    return order + [node for node, count in zip(nodes, missing, strict=True) if count]


def _names_read(node: Node) -> Iterator[str]:
    """Return the tensors that a node reads, also in its graphs."""
    yield from filter(None, node.inputs)
    for graph in node.attributes.values():
        if isinstance(graph, Subgraph):
            inner = {*graph.inputs, *graph.constants, *_names(graph.nodes)}
            read = {*graph.outputs}.union(*map(_names_read, graph.nodes))
            yield from read - inner


def _names(nodes: Iterable[Node]) -> Iterator[str]:
    return (name for node in nodes for name in node.outputs)
