"""Checks the types of a node's inputs beside the schema of its operator.

The schema is that of the newest operator set, since a node of an older one is converted before
(`opset_converter`). Types that only the older operator set has are taken, too: ReduceLogSum took
integers before operator set 28.

Source: ONNX, "Operator Schemas", as the package `onnx` has them.
"""

from __future__ import annotations

import functools
from typing import Any

from .call import Call

__all__ = ["check_operand_types"]

_CONTAINERS = (("SEQUENCE", "SEQ("), ("OPTIONAL", "OPTIONAL("))
"""The types of values that are known while a program is written, and their names in schemas."""
_MAX_TYPES = 4
"""The number of types that an error lists."""


def check_operand_types(call: Call, opset: int) -> None:
    """Check that an operator of ONNX's own domain takes the types of its inputs.

    Args:
        call: a node in the form of the newest operator set.
        opset: the operator set of the file.

    Raises:
        InputError: it does not; the message names the input and its type.
    """
    formals = _inputs_of(call.node.operator, opset)
    if not formals:
        return
    bound: dict[str, tuple[str, str]] = {}
    for index, operand in enumerate(call.inputs):
        is_extra = index >= len(formals) and not formals[-1].is_variadic
        if operand is None or is_extra:  # `Call.check_all_is_read` names one that is too many
            continue
        formal = formals[min(index, len(formals) - 1)]
        what, expected = f"input {index} ({formal.name!r})", ""
        if operand.type not in formal.types:
            expected = " or ".join(sorted(formal.types)[:_MAX_TYPES])
        elif formal.is_homogeneous:
            first, type_ = bound.setdefault(formal.type_str, (what, operand.type))
            if type_ != operand.type:
                expected = f"{type_}, the type of {first}"
        if expected:
            raise call.error(f"has {what} of the type {operand.type}, expected {expected}")


class _Formal:
    """An input of a schema."""

    def __init__(self, parameter: Any) -> None:
        self.name = str(parameter.name)
        types = {each.removeprefix("tensor(").removesuffix(")").upper() for each in parameter.types}
        types |= {kind for kind, start in _CONTAINERS for each in types if each.startswith(start)}
        self.types = frozenset(types)
        self.type_str = str(parameter.type_str)
        self.is_variadic = parameter.option.name == "Variadic"
        self.is_homogeneous = bool(parameter.is_homogeneous)


@functools.cache
def _inputs_of(operator: str, opset: int) -> tuple[_Formal, ...]:
    """Return the inputs of an operator; none if the package `onnx` does not know it."""
    from onnx import defs

    newest = defs.onnx_opset_version()
    try:
        formals = tuple(map(_Formal, defs.get_schema(operator, newest).inputs))
    except defs.SchemaError:
        return ()
    try:
        older = map(_Formal, defs.get_schema(operator, min(opset, newest)).inputs)
    except defs.SchemaError:  # an operator that a rule replaced an older one by
        return formals
    types = {each.name: each.types for each in older}
    for formal in formals:
        formal.types |= types.get(formal.name, frozenset())
    return formals
