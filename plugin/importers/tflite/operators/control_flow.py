"""Variables, and operators that compute other graphs.

Sources: LiteRT, ``var_handle.cc``, ``read_variable.cc``, ``assign_variable.cc``, ``call_once.cc``,
``while.cc``, ``if.cc``, ``stablehlo_composite.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....numerics.array_functions import choose, repeat_while
from ....numerics.element_types import AnyArray
from ..call import Call, Handle, kernel
from ..reading.model import Tensor

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
    variable, graphs = _variable(call), call.graphs
    holder = graphs.kept_as(variable, call.output)
    return graphs.passed(graphs.read(variable, holder), holder, call.output)


@kernel("ASSIGN_VARIABLE")
def assign_variable(call: Call) -> list[Any]:
    """Give a variable a value."""
    variable, graphs, operand = _variable(call), call.graphs, call.input(1)
    holder = graphs.kept_as(variable, operand.tensor)
    graphs.write(variable, graphs.passed(operand.value, operand.tensor, holder))
    return []


@kernel("CALL_ONCE")
def call_once(call: Call) -> list[Any]:
    """A graph that gives variables their first values: `Interpreter` has computed them."""
    call.graphs.tensors_of(call.options.init_subgraph_index)
    return []


def _tensors(call: Call, first: int = 0) -> list[Tensor]:
    return [call.input(index).tensor for index in range(first, len(call.inputs))]


def _operands(call: Call, first: int = 0) -> list[AnyArray]:
    return [call.input(index).value for index in range(first, len(call.inputs))]


def _passed(
    call: Call, values: Sequence[AnyArray], sources: Sequence[Tensor], targets: Sequence[Tensor]
) -> list[AnyArray]:
    if not len(values) == len(sources) == len(targets):
        raise call.error(f"passes {len(values)} values on as {len(targets)}")
    each = zip(values, sources, targets, strict=True)
    return [call.graphs.passed(value, source, target) for value, source, target in each]


def _run(
    call: Call,
    index: int,
    values: Sequence[AnyArray],
    sources: Sequence[Tensor],
    targets: Sequence[Tensor] | None = None,
) -> list[AnyArray]:
    """Compute a graph.

    Args:
        call: the operator.
        index: the number of the graph.
        values: the operands.
        sources: the tensors of the operands.
        targets: the tensors of the results; None for the outputs of the graph.
    """
    inputs, outputs = call.graphs.tensors_of(index)
    results = call.graphs.run(index, _passed(call, values, sources, inputs))
    return results if targets is None else _passed(call, results, outputs, targets)


@kernel("CALL")
def call_(call: Call) -> list[AnyArray]:
    """Another graph."""
    results = call.operator.outputs
    return _run(call, call.options.subgraph, _operands(call), _tensors(call), results)


@kernel("STABLEHLO_COMPOSITE")
def composite(call: Call) -> list[AnyArray]:
    """A function that others may know by its name: the graph that computes it."""
    index, results = call.options.decomposition_subgraph_index, call.operator.outputs
    return _run(call, index, _operands(call), _tensors(call), results)


@kernel("WHILE")
def while_(call: Call) -> list[AnyArray]:
    """A graph again and again, while another says so; a loop in the program too."""
    options, graphs, carried = call.options, call.graphs, _tensors(call)
    values = [
        graphs.lifted(value, tensor) for value, tensor in zip(_operands(call), carried, strict=True)
    ]

    def condition(*values: AnyArray) -> AnyArray:
        results = _run(call, options.cond_subgraph_index, values, carried)
        if len(results) != 1:
            raise call.error(f"has a condition of {len(results)} results")
        return results[0].reshape(())

    def body(*values: AnyArray) -> list[AnyArray]:
        return _run(call, options.body_subgraph_index, values, carried, carried)

    results = repeat_while(condition, body, values)
    return _passed(call, results, carried, call.operator.outputs)


@kernel("IF")
def if_(call: Call) -> list[AnyArray]:
    """One graph or another; where the condition is known, only that one is in the program."""
    options, values, sources = call.options, _operands(call, 1), _tensors(call, 1)
    condition, results = call.input(0).value.reshape(()), call.operator.outputs
    yes, no = options.then_subgraph_index, options.else_subgraph_index
    for index in (yes, no):
        call.graphs.tensors_of(index)  # or it raises
    return list(
        choose(
            condition,
            lambda: _run(call, yes, values, sources, results),
            lambda: _run(call, no, values, sources, results),
        )
    )
