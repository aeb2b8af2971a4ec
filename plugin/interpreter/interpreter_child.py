"""Evaluation by StableHLO's interpreter, in a child process (`subquant.isolation.client.call`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core._mlir import (
    ir,
    passmanager,
    register_upstream_passes,
    skip_operation_classes,
    stablehlo,
    translate_errors,
)
from ..dialects import create_context
from ..dialects.dense import array_of_dense, dense_of_array
from ..errors import UnsupportedError
from ..isolation.child import ReportStep
from ..numerics.element_types import Array
from ..transforms.base import walk
from .interpreter_client import array_of, described

skip_operation_classes()  # only child processes import this module

_ENTRY = "main"  # the name of the function that the interpreter evaluates
_FAILED = "StableHLO's interpreter does not know an operation or type of the program"


def evaluate(
    arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Evaluate a function with StableHLO's interpreter, which may end this process."""
    text, *data = blobs
    arrays = [array_of(each, part) for each, part in zip(arguments["arrays"], data, strict=True)]
    with create_context() as context, ir.Location.unknown():
        module = ir.Module.parse(text.decode(), context)
        _name_entry(module, arguments["function"])
        dense = [
            _dense(array, ir.Type.parse(element))
            for array, element in zip(arrays, arguments["elements"], strict=True)
        ]
        if arguments["is_dynamic"]:
            _refine(module, [attribute.type for attribute in dense])
        with translate_errors(UnsupportedError, _FAILED):
            try:
                attributes = stablehlo.eval_module(module, dense)
            except (RuntimeError, ValueError) as error:
                raise UnsupportedError(f"{_FAILED}: {error}") from None
        results = [_array(result) for result in attributes]
    return [described(array) for array in results], [array.tobytes() for array in results]


def _name_entry(module: ir.Module, name: str) -> None:
    """Give the function the name that the interpreter evaluates, and its calls too."""
    renamed = {name: _ENTRY, _ENTRY: f"{_ENTRY}_of_the_program"} if name != _ENTRY else {}
    for op in walk(module.operation):
        for attribute in ("sym_name", "callee"):
            if attribute in op.attributes and op.name in ("func.func", "func.call"):
                old = op.attributes[attribute].value
                if old in renamed:
                    kind = ir.StringAttr if attribute == "sym_name" else ir.FlatSymbolRefAttr
                    op.attributes[attribute] = kind.get(renamed[old])


def _refine(module: ir.Module, types: Sequence[ir.Type]) -> None:
    """Give a program with dynamic shapes the shapes of its arguments."""
    register_upstream_passes()
    types = ",".join(str(type_) for type_ in types)
    text = (
        f"builtin.module(stablehlo-refine-arguments{{types={types}}},stablehlo-refine-shapes,"
        "func.func(stablehlo-canonicalize-dynamism))"
    )
    with translate_errors(UnsupportedError, "the program cannot be given static shapes"):
        passmanager.PassManager.parse(text).run(module.operation)


def _dense(array: Array, element: ir.Type) -> ir.Attribute:
    if isinstance(element, ir.IntegerType) and element.width == 1:
        type_ = ir.RankedTensorType.get(list(array.shape), element)
        bits = [ir.BoolAttr.get(bool(bit)) for bit in array.reshape(-1)]
        return ir.DenseElementsAttr.get(bits, type_)
    return dense_of_array(np.asarray(array), element)


def _array(attribute: ir.Attribute) -> Array:
    type_ = attribute.type
    if str(type_.element_type) == "i1":
        return np.asarray(np.array(attribute), np.bool_).reshape(list(type_.shape))
    return array_of_dense(attribute).reshape(list(type_.shape))
