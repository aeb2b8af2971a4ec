"""Checks of exported programs: operators that torch-mlir lowers wrongly, or crashes on."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from ...errors import UnsupportedError
from .source_lines import place_of_node


def check_program(program: ExportedProgram) -> None:
    """Refuse random numbers, sizes that depend on data, control flow, and updated arguments.

    Raises:
        UnsupportedError: the program has one, at the line of the Python code.
    """
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            raise UnsupportedError(
                f"the program has the control flow '{target.name()}', which subquant does not "
                "compile; compute both branches and select by torch.where, or unroll the loop",
                place_of_node(node),
            )
        if not isinstance(target, torch._ops.OpOverload):
            continue
        name = str(target).removesuffix(".default")
        if torch.Tag.nondeterministic_seeded in target.tags:
            raise UnsupportedError(
                f"the program draws random numbers ({name}), which differ from those of eager "
                "PyTorch; make them an argument of the module",
                place_of_node(node),
            )
        if node.meta.get("unbacked_bindings"):
            raise UnsupportedError(
                f"{name} makes a size or a number of Python from the data of a tensor; write it "
                "with sizes that the shapes of the arguments decide, such as by torch.where in "
                "place of a mask as index",
                place_of_node(node),
            )
    updated = program.graph_signature.user_inputs_to_mutate
    for node in program.graph.nodes:
        if node.name not in updated:
            continue
        raise UnsupportedError(
            f"the module updates its argument '{updated[node.name]}' in place, which a compiled "
            "module cannot; update a copy (clone()), and return it",
            place_of_node(node),
        )
