"""Checks of exported programs: operators that torch-mlir lowers wrongly, or crashes on."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from ...errors import UnsupportedError
from .control_flow import SUPPORTED, has_only_tensors
from .source_lines import nodes_of, place_of_node

_FLOAT8 = (
    torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz,
)  # fmt: skip


def check_program(program: ExportedProgram) -> None:
    """Refuse random numbers, sizes from data, some control flow, updated arguments, some types.

    Raises:
        UnsupportedError: the program has one, at the line of the Python code.
    """
    updated = program.graph_signature.user_inputs_to_mutate
    for node in nodes_of(program):
        reason = _reason(node)
        is_in_branch = node.graph is not program.graph
        if is_in_branch and reason is None and free_unbacked_symbols(node.meta.get("val")):
            reason = _size_from_data(node)
        if not is_in_branch and reason is None and node.name in updated:
            reason = (
                f"the module updates its argument '{updated[node.name]}' in place, which a "
                "compiled module cannot; update a copy (clone()), and return it"
            )
        if reason is not None:
            raise UnsupportedError(reason, place_of_node(node))
    _check_float8(program)


def _check_float8(program: ExportedProgram) -> None:
    """Refuse arguments and results of 8-bit floats, which NumPy has no arrays of."""
    signature = program.graph_signature
    exchanged = {*signature.user_inputs, *signature.user_outputs}
    for node in program.graph.nodes:
        dtype = getattr(node.meta.get("val"), "dtype", None)
        if node.name in exchanged and dtype in _FLOAT8:
            kind = "argument" if node.op == "placeholder" else "result"
            raise UnsupportedError(
                f"the {kind} '{node.name}' is of {dtype}, which is not exchanged with NumPy; "
                "exchange its bytes by view(torch.uint8)",
                place_of_node(node),
            )


def _reason(node: torch.fx.Node) -> str | None:
    """Return the reason to refuse a node; None for a node that may be lowered."""
    if any(_is_complex(each) for each in pytree.tree_leaves(node.meta.get("val"))):
        return f"{_name(node)} has complex numbers; write it with real and imaginary parts"
    if node.op != "call_function":
        return None
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        name = node.target.name()
        if name == "with_effects":
            return f"{_name(node)} checks the data of a tensor, which subquant does not compile"
        if name not in SUPPORTED:
            return (
                f"the program has the control flow '{name}', which subquant does not compile; "
                "unroll it, or write it with torch.cond and while_loop"
            )
        if not has_only_tensors(node):
            return (
                f"the program has the control flow '{name}' of numbers of Python, which subquant "
                "does not compile; pass tensors"
            )
        return None
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return (
            f"the program draws random numbers ({_name(node)}), which differ from those of eager "
            "PyTorch; make them an argument of the module"
        )
    return _size_from_data(node) if node.meta.get("unbacked_bindings") else None


def _size_from_data(node: torch.fx.Node) -> str:
    return (
        f"{_name(node)} makes a size or a number of Python from the data of a tensor; write it "
        "with sizes that the shapes of the arguments decide, such as by torch.where in place of a "
        "mask as index"
    )


def _is_complex(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_complex()


def _name(node: torch.fx.Node) -> str:
    """Return an operator's name, or an argument's."""
    if node.op != "call_function":
        return f"argument '{node.name}'"
    is_wrapped = isinstance(node.target, torch._ops.HigherOrderOperator)
    return str(node.args[1] if is_wrapped else node.target).removesuffix(".default")
