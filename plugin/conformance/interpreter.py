"""StableHLO's reference interpreter, on arrays."""

from __future__ import annotations

import re

import numpy as np

from ..compiler.reading import parse_text
from ..core._mlir import ir, stablehlo, translate_errors
from ..dialects import create_context
from ..dialects.dense import array_of_dense
from ..errors import UnsupportedError
from .program import DTYPES, Array


def interpret(text: str, inputs: list[Array]) -> list[Array]:
    """Evaluate the only function of a module, named ``main``.

    Raises:
        UnsupportedError: the interpreter refuses an operation.
        ParseError: the text is no module.
    """
    context = create_context()
    module = parse_text(text, context)
    (function,) = (op for op in module.body.operations if op.operation.name == "func.func")
    types = function.operation.attributes["function_type"].value.inputs
    with context, ir.Location.unknown():
        arguments = [_dense(array, type_) for array, type_ in zip(inputs, types, strict=True)]
        with translate_errors(UnsupportedError, "StableHLO's interpreter failed"):
            results = stablehlo.eval_module(module, arguments)
        return [array_of(result) for result in results]


def _dense(array: Array, type_: ir.Type) -> ir.Attribute:
    element, raw = type_.element_type, np.ascontiguousarray(array)
    raw = raw.view(np.uint16) if isinstance(element, ir.BF16Type) else raw
    return ir.DenseElementsAttr.get(raw, type=element, shape=type_.shape)


def array_of(attribute: ir.Attribute) -> Array:
    """Return a dense attribute as an array of the dtype in which NumPy holds its elements."""
    element = str(attribute.type.element_type)
    match = re.fullmatch(r"(u|s?)i(\d+)", element)
    if match is not None and match.group(2) == "1":
        return np.asarray(np.array(attribute), np.bool_).reshape(attribute.type.shape)
    array = array_of_dense(attribute)
    if match is None:
        return np.asarray(array.astype(DTYPES[element]))
    size = next(w for w in (8, 16, 32, 64) if w >= int(match.group(2)))
    if match.group(1) == "u":
        array = array & ((1 << int(match.group(2))) - 1) if size < 64 else array
    return np.asarray(array.astype(f"{'u' if match.group(1) == 'u' else 'i'}{size // 8}"))
