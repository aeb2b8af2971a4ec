"""Variables, and operators that compute other graphs.

Sources: LiteRT, ``var_handle.cc``, ``read_variable.cc``, ``assign_variable.cc``, ``call_once.cc``,
``while.cc``, ``if.cc``, ``stablehlo_composite.cc``.
"""

from __future__ import annotations

from typing import Any

from ...numerics.array_functions import choose, repeat_while
from ...numerics.element_types import AnyArray
from .call import Call, Handle, kernel

__all__: list[str] = []


@kernel("VAR_HANDLE")
def var_handle(call: Call) -> Handle:
    """A variable by its container and name, which all graphs share."""
    return Handle("/".join(filter(None, (call.options.container, call.options.shared_name))))


def _variable(call: Call) -> str:
    handle = call.input(0).value
    if not isinstance(handle, Handle):
        raise call.error(f"needs a variable, and {call.input(0).tensor} is none")
    return handle.variable


@kernel("READ_VARIABLE")
def read_variable(call: Call) -> AnyArray:
    """The value of a variable."""
    return call.graphs.read(_variable(call), call.output)


@kernel("ASSIGN_VARIABLE")
def assign_variable(call: Call) -> list[Any]:
    """Give a variable a value."""
    call.graphs.write(_variable(call), call.input(1).value)
    return []


@kernel("CALL_ONCE")
def call_once(call: Call) -> list[Any]:
    """A graph that gives variables their first values: these are computed beforehand."""
    return []


def _operands(call: Call, first: int = 0) -> list[AnyArray]:
    return [call.input(index).value for index in range(first, len(call.inputs))]


@kernel("CALL")
def call_(call: Call) -> list[AnyArray]:
    """Another graph."""
    return call.graphs.run(call.options.subgraph, _operands(call))


@kernel("STABLEHLO_COMPOSITE")
def composite(call: Call) -> list[AnyArray]:
    """A function that others may know by its name: the graph that computes it."""
    return call.graphs.run(call.options.decomposition_subgraph_index, _operands(call))


@kernel("WHILE")
def while_(call: Call) -> list[AnyArray]:
    """A graph again and again, while another says so; a loop in the program too."""
    options, graphs = call.options, call.graphs
    values = [
        graphs.lifted(value, call.input(index).tensor)
        for index, value in enumerate(_operands(call))
    ]

    def condition(*values: AnyArray) -> AnyArray:
        found = graphs.run(options.cond_subgraph_index, values)
        if len(found) != 1:
            raise call.error(f"has a condition of {len(found)} results")
        return found[0].reshape(())

    def body(*values: AnyArray) -> list[AnyArray]:
        return graphs.run(options.body_subgraph_index, values)

    return repeat_while(condition, body, values)


@kernel("IF")
def if_(call: Call) -> list[AnyArray]:
    """One graph or another; where the condition is known, only that one is in the program."""
    options, graphs, values = call.options, call.graphs, _operands(call, 1)
    condition = call.input(0).value.reshape(())
    return list(
        choose(
            condition,
            lambda: graphs.run(options.then_subgraph_index, values),
            lambda: graphs.run(options.else_subgraph_index, values),
        )
    )
