"""Checks the types of a node's inputs against the schema of its operator.

The schema of an operator of ONNX's own is that of the newest operator set, since a node of an older
one is converted before (`opset_rules`). Types that only the older operator set has are accepted
too: ReduceLogSum took integers before operator set 28. Operators of ONNX Runtime have the schemas
of `contributed_schemas`.

Source: ONNX, "Operator Schemas", as the package `onnx` has them.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from ..call import Call
from .contributed_schemas import CONTRIBUTED, SchemaInput

_CONTAINERS = (("SEQUENCE", "SEQ("), ("OPTIONAL", "OPTIONAL("))
"""The types of values that are known while a program is written, and their names in schemas."""
_MAX_TYPES = 4
"""The number of types that an error lists."""


def check_operand_types(call: Call, opset: int) -> None:
    """Check that an operator takes the types of its inputs.

    A node of ONNX's own domain has the form of the newest operator set; `opset` is the file's.

    Raises:
        InputError: an input has another type; the message names the input and the type.
    """
    operator = call.node.operator
    is_contributed = operator in CONTRIBUTED
    schema = CONTRIBUTED[operator].inputs if is_contributed else _inputs_of(operator, opset)
    if not schema:
        return
    types: dict[str, tuple[str, str]] = {}
    for index, operand in enumerate(call.inputs):
        is_extra = index >= len(schema) and not schema[-1].is_variadic
        if operand is None or is_extra:  # `Call.check_all_is_read` names one that is too many
            continue
        formal = schema[min(index, len(schema) - 1)]
        subject, expected = f"input {index} ({formal.name!r})", ""
        if operand.type not in formal.types:
            expected = " or ".join(sorted(formal.types)[:_MAX_TYPES])
        elif formal.is_homogeneous:
            first, type_ = types.setdefault(formal.type_parameter, (subject, operand.type))
            if type_ != operand.type:
                expected = f"{type_}, the type of {first}"
        if expected:
            raise call.error(f"has {subject} of the type {operand.type}, expected {expected}")


def _schema_input(parameter: Any) -> SchemaInput:
    """Return an input of a schema of the package `onnx`."""
    types = {each.removeprefix("tensor(").removesuffix(")").upper() for each in parameter.types}
    types |= {kind for kind, start in _CONTAINERS for each in types if each.startswith(start)}
    option = parameter.option.name
    return SchemaInput(
        str(parameter.name), frozenset(types), str(parameter.type_str), option == "Optional",
        option == "Variadic", bool(parameter.is_homogeneous),
    )  # fmt: skip


@functools.cache
def _inputs_of(operator: str, opset: int) -> tuple[SchemaInput, ...]:
    """Return the inputs of an operator; none if the package `onnx` does not know it."""
    from onnx import defs

    domain, _, name = operator.rpartition(".")
    newest = defs.onnx_opset_version()
    try:
        schema = defs.get_schema(name, opset if domain else newest, domain)
    except defs.SchemaError:
        return ()
    inputs = tuple(map(_schema_input, schema.inputs))
    if domain:
        return inputs
    try:
        older = map(_schema_input, defs.get_schema(name, min(opset, newest)).inputs)
    except defs.SchemaError:  # an operator that a rule replaced an older one by
        return inputs
    types = {each.name: each.types for each in older}
    return tuple(
        replace(each, types=each.types | types.get(each.name, frozenset())) for each in inputs
    )
