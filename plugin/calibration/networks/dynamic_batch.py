"""Dynamic batch of a network: its program for one element is quantized, and called in a loop.

The importers write a dynamic batch as a public function with a loop over a private one,
``main.item`` (`subquant.importers.batch_loop`). Calibration and quantization see the function of
one element alone, with static shapes. The loop is written again around the quantized function.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core._mlir import Operation, ir
from ...emit.functions import write_function
from ...emit.operation import with_shape
from ...errors import Place, UsageError, place_of
from ...importers.batch_loop import dynamic_type, write_loop
from ...transforms.base import NAMES_ATTRIBUTES, SIGNATURE_ATTRIBUTE
from .plan import function_of, operations_of

_ITEM = ".item"
"""Suffix of the name of the function of one element."""


def keep_element(module: Operation) -> list[bool]:
    """Remove the loop of a dynamic batch; return whether each argument has a batch.

    The function of one element gets the loop's name and attributes, and becomes public.

    Raises:
        UsageError: the program has no such loop.
    """
    loop = function_of(module)
    name = loop.attributes["sym_name"].value
    items = [
        op
        for op in operations_of(module.regions[0].blocks[0])
        if op.name == "func.func" and op.attributes["sym_name"].value == name + _ITEM
    ]
    if not items:
        raise UsageError(
            "a dynamic batch is for .onnx and .tflite files whose elements are computed apart; "
            "give --batch a number, or leave it out"
        )
    [item] = items
    types = item.attributes["function_type"].value
    whole = loop.attributes["function_type"].value.inputs
    batched = [one != many for one, many in zip(types.inputs, whole, strict=True)]
    for attribute in NAMES_ATTRIBUTES:
        if attribute in loop.attributes:
            item.attributes[attribute] = loop.attributes[attribute]
    if SIGNATURE_ATTRIBUTE in loop.attributes:
        signature = loop.attributes[SIGNATURE_ATTRIBUTE].value
        item.attributes[SIGNATURE_ATTRIBUTE] = ir.TypeAttr.get(
            ir.FunctionType.get(
                *(
                    [_with_shape_of(*pair) for pair in zip(signed, element_types, strict=True)]
                    for signed, element_types in (
                        (signature.inputs, types.inputs),
                        (signature.results, types.results),
                    )
                )
            )
        )
    loop.erase()
    item.attributes["sym_name"] = ir.StringAttr.get(name)
    del item.attributes["sym_visibility"]
    return batched


def write_batch_loop(function: Operation, batched: Sequence[bool]) -> None:
    """Write the loop over a batch around the function of one element, which becomes private.

    Args:
        function: public.
        batched: the result of `keep_element`.
    """
    name = function.attributes["sym_name"].value
    types = function.attributes["function_type"].value
    function.attributes["sym_name"] = ir.StringAttr.get(name + _ITEM)
    function.attributes["sym_visibility"] = ir.StringAttr.get("private")

    def with_batch(inputs: Sequence[ir.Type]) -> list[ir.Type]:
        pairs = zip(inputs, batched, strict=True)
        return [dynamic_type(each) if is_batched else each for each, is_batched in pairs]

    location = place_of(function.location) or Place("")
    with ir.InsertionPoint.after(function), function.location:
        loop = write_function(
            name,
            with_batch(types.inputs),
            lambda values: write_loop(name + _ITEM, values, batched, list(types.results), location),
        )
    for attribute in NAMES_ATTRIBUTES:
        if attribute in function.attributes:
            loop.attributes[attribute] = function.attributes[attribute]
            del function.attributes[attribute]
    if SIGNATURE_ATTRIBUTE in function.attributes:
        signature = function.attributes[SIGNATURE_ATTRIBUTE].value
        results = [dynamic_type(each) for each in signature.results]
        loop.attributes[SIGNATURE_ATTRIBUTE] = ir.TypeAttr.get(
            ir.FunctionType.get(with_batch(signature.inputs), results)
        )
        del function.attributes[SIGNATURE_ATTRIBUTE]


def _with_shape_of(type_: ir.Type, other: ir.Type) -> ir.Type:
    return with_shape(type_, [int(size) for size in other.shape])
