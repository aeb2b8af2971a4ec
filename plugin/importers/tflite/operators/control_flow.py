"""Importers of variables, subgraph calls, WHILE and IF.

Sources: LiteRT, ``var_handle.cc``, ``read_variable.cc``, ``assign_variable.cc``, ``call_once.cc``,
``while.cc``, ``if.cc``, ``stablehlo_composite.cc``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ....numerics.array_functions import choose, repeat_while
from ....numerics.element_types import AnyArray
from ..call import Call, importer
from ..operand import VariableHandle
from ..reading.model import Tensor


@importer("VAR_HANDLE")
def var_handle(call: Call) -> VariableHandle:
    """Import VAR_HANDLE: a variable is identified by container and name in all subgraphs."""
    names = (call.options.container, call.options.shared_name)
    return VariableHandle("/".join(filter(None, names)))


def _variable(call: Call) -> str:
    handle = call.input(0).value
    if not isinstance(handle, VariableHandle):
        raise call.error(f"needs a variable, and {call.input(0).tensor} is none")
    return handle.variable


@importer("READ_VARIABLE")
def read_variable(call: Call) -> AnyArray:
    """Import READ_VARIABLE."""
    variable, context = _variable(call), call.context
    tensor = context.variable_tensor(variable, call.output)
    return context.transfer(context.read(variable, tensor), tensor, call.output)


@importer("ASSIGN_VARIABLE")
def assign_variable(call: Call) -> list[Any]:
    """Import ASSIGN_VARIABLE."""
    variable, context, operand = _variable(call), call.context, call.input(1)
    tensor = context.variable_tensor(variable, operand.tensor)
    context.write(variable, context.transfer(operand.value, operand.tensor, tensor))
    return []


@importer("CALL_ONCE")
def call_once(call: Call) -> list[Any]:
    """Import CALL_ONCE: the constructor of `Interpreter` has computed the initial values."""
    call.context.inputs_and_outputs(call.options.init_subgraph_index)
    return []


def _operands(call: Call, first: int = 0) -> tuple[list[AnyArray], list[Tensor]]:
    """Return the values and the tensors of the inputs from `first` on."""
    operands = call.all_inputs()[first:]
    return [each.value for each in operands], [each.tensor for each in operands]


def _transfer_all(
    call: Call, values: Sequence[AnyArray], sources: Sequence[Tensor], targets: Sequence[Tensor]
) -> list[AnyArray]:
    if not len(values) == len(sources) == len(targets):
        raise call.error(f"passes {len(values)} values on as {len(targets)}")
    return list(map(call.context.transfer, values, sources, targets))


def _run(
    call: Call,
    index: int,
    values: Sequence[AnyArray],
    sources: Sequence[Tensor],
    targets: Sequence[Tensor] | None = None,
) -> list[AnyArray]:
    """Compute a subgraph.

    The operands are values of the tensors `sources`. The results become values of the tensors
    `targets`, or stay values of the subgraph's outputs.
    """
    inputs, outputs = call.context.inputs_and_outputs(index)
    results = call.context.run(index, _transfer_all(call, values, sources, inputs))
    return results if targets is None else _transfer_all(call, results, outputs, targets)


@importer("CALL", "STABLEHLO_COMPOSITE")
def call_subgraph(call: Call) -> list[AnyArray]:
    """Import CALL, and STABLEHLO_COMPOSITE as the subgraph that decomposes it."""
    is_call, options = call.operator.name == "CALL", call.options
    index = options.subgraph if is_call else options.decomposition_subgraph_index
    return _run(call, index, *_operands(call), call.operator.outputs)


@importer("WHILE")
def while_(call: Call) -> list[AnyArray]:
    """Import WHILE as a loop in the program."""
    options, (operands, tensors) = call.options, _operands(call)
    values = list(map(call.context.materialize, operands, tensors))
    body_index = options.body_subgraph_index
    call.context.inputs_and_outputs(body_index)  # raises for a missing subgraph

    def condition(*values: AnyArray) -> AnyArray:
        results = _run(call, options.cond_subgraph_index, values, tensors)
        if len(results) != 1:
            raise call.error(f"has a condition of {len(results)} results")
        return results[0].reshape(())

    def body(*values: AnyArray) -> list[AnyArray]:
        return _run(call, body_index, values, tensors, tensors)

    results = repeat_while(condition, body, values)
    return _transfer_all(call, results, tensors, call.operator.outputs)


@importer("IF")
def if_(call: Call) -> list[AnyArray]:
    """Import IF; with a constant condition, the program has the selected branch only."""
    options, operands = call.options, _operands(call, 1)
    condition, results = call.input(0).value.reshape(()), call.operator.outputs
    then_index, else_index = options.then_subgraph_index, options.else_subgraph_index
    for index in (then_index, else_index):
        call.context.inputs_and_outputs(index)  # raises for a missing subgraph
    branches = [
        functools.partial(_run, call, index, *operands, results)
        for index in (then_index, else_index)
    ]
    return list(choose(condition, *branches))
