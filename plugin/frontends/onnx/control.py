"""Branches, whose graphs read values of the graph around them.

A condition that is known chooses when the program is written.

Source: ONNX, If 1 to 25.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...formats.onnx import Subgraph
from ...numerics.array_functions import choose, is_known
from ...numerics.element_types import AnyArray
from .call import Call, Typed, kernel

__all__: list[str] = []


@kernel("If")
def if_(call: Call) -> list[Any]:
    """One of two graphs."""
    condition = call.array(0)
    branches = [call.subgraph(name) for name in ("then_branch", "else_branch")]
    if condition.size != 1:
        raise call.error(f"has {condition.size} conditions")
    if is_known(condition):
        chosen = branches[0 if condition.reshape(-1)[0] else 1]
        return [Typed(each.type, each.value) for each in call.graph.inner(chosen, [])]
    types: list[list[str]] = []

    def branch(graph: Subgraph) -> Callable[[], list[AnyArray]]:
        def compute() -> list[AnyArray]:
            results = [call.plain(each) for each in call.graph.inner(graph, [])]
            types.append([each.type for each in results])
            return [each.value for each in results]

        return compute

    values = choose(condition.reshape(()), *map(branch, branches))
    if types[0] != types[1]:
        raise call.error(f"has branches of the types {types[0]} and {types[1]}")
    return [Typed(type_, value) for type_, value in zip(types[0], values, strict=True)]
