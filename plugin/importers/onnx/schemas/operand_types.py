"""Checks the types of a node's inputs beside the schema of its operator.

The schema of an operator of ONNX's own is that of the newest operator set, since a node of an older
one is converted before (`opset_converter`). Types that only the older operator set has are
taken, too: ReduceLogSum took integers before operator set 28. Operators of ONNX Runtime have the
schemas of `onnx_contributed`.

Source: ONNX, "Operator Schemas", as the package `onnx` has them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from ..call import Call
from .contributed_schemas import CONTRIBUTED

__all__ = ["check_operand_types"]

_CONTAINERS = (("SEQUENCE", "SEQ("), ("OPTIONAL", "OPTIONAL("))
"""The types of values that are known while a program is written, and their names in schemas."""
_MAX_TYPES = 4
"""The number of types that an error lists."""


@dataclass(frozen=True)
class _Formal:
    """An input of a schema.

    Args:
        name: as in the schema.
        types: the element types that it can have.
        type_parameter: inputs of one type parameter have one type.
        is_variadic: the last input is repeated.
        is_homogeneous: repeated inputs have one type.
    """

    name: str
    types: frozenset[str]
    type_parameter: str
    is_variadic: bool
    is_homogeneous: bool


def check_operand_types(call: Call, opset: int) -> None:
    """Check that an operator takes the types of its inputs.

    Args:
        call: a node; one of ONNX's own domain in the form of the newest operator set.
        opset: the operator set of the file.

    Raises:
        InputError: it does not; the message names the input and its type.
    """
    operator = call.node.operator
    formals = _contributed(operator) if operator in CONTRIBUTED else _inputs_of(operator, opset)
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
            first, type_ = bound.setdefault(formal.type_parameter, (what, operand.type))
            if type_ != operand.type:
                expected = f"{type_}, the type of {first}"
        if expected:
            raise call.error(f"has {what} of the type {operand.type}, expected {expected}")


@functools.cache
def _contributed(operator: str) -> tuple[_Formal, ...]:
    """Return the inputs of an operator of ONNX Runtime."""
    return tuple(
        _Formal(each.name, each.types, each.type_parameter, each.is_variadic, not each.is_variadic)
        for each in CONTRIBUTED[operator].inputs
    )


def _formal(parameter: Any) -> _Formal:
    """Return an input of a schema of the package `onnx`."""
    types = {each.removeprefix("tensor(").removesuffix(")").upper() for each in parameter.types}
    types |= {kind for kind, start in _CONTAINERS for each in types if each.startswith(start)}
    return _Formal(
        str(parameter.name), frozenset(types), str(parameter.type_str),
        parameter.option.name == "Variadic", bool(parameter.is_homogeneous),
    )  # fmt: skip


@functools.cache
def _inputs_of(operator: str, opset: int) -> tuple[_Formal, ...]:
    """Return the inputs of an operator; none if the package `onnx` does not know it."""
    from onnx import defs

    domain, _, name = operator.rpartition(".")
    newest = defs.onnx_opset_version()
    try:
        schema = defs.get_schema(name, opset if domain else newest, domain)
    except defs.SchemaError:
        return ()
    formals = tuple(map(_formal, schema.inputs))
    if domain:
        return formals
    try:
        older = map(_formal, defs.get_schema(name, min(opset, newest)).inputs)
    except defs.SchemaError:  # an operator that a rule replaced an older one by
        return formals
    types = {each.name: each.types for each in older}
    return tuple(
        replace(each, types=each.types | types.get(each.name, frozenset())) for each in formals
    )
