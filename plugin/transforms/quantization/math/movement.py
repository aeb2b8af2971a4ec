"""Rules of data movement: the operation stays, and its operands get the result's parameters.

``convert-quantized-to-storage`` gives it storage types.

Source: StableHLO specification, the operations' own sections (their constraints on element types).
"""

from __future__ import annotations

from typing import NoReturn

from ....core._mlir import Operation, Value
from ....dialects.quant import element_type, is_quantized, parameters_of
from ....dialects.stablehlo import DEPRECATED_MOVEMENT, OPERATIONS, of_category
from ....emit import as_quantized, create, with_element
from ....errors import UnsupportedError
from ....numerics.parameters import QuantizationParameters
from .operands import Operand, same_values
from .rules import QuantizedOperation, lowers

__all__: list[str] = []


@lowers(*(n for n in of_category("data-movement") if n != "stablehlo.sort"), *DEPRECATED_MOVEMENT)
def move(op: QuantizedOperation) -> None:
    """``q2[i] = q1[j]``, with ``q1`` in the result's parameters."""
    results = [result.type for result in op.op.results if is_quantized(result.type)]
    if not results:
        return
    for number in _moved(op.op):
        value = op.op.operands[number]
        if not is_quantized(value.type):
            continue
        source, target = parameters_of(value.type, op.op), parameters_of(results[0], op.op)
        assert source is not None and target is not None  # both are quantized
        if same_values(source, target) or _is_one_block(source, target):
            continue
        if source.granularity != "per-tensor" or target.granularity != "per-tensor":
            raise op.refuse(
                f"moves values of '{element_type(value.type)}' to a result of "
                f"'{element_type(results[0])}', whose scales or zero points differ; requantize "
                "with stablehlo.uniform_quantize first"
            )
        changed = Operand.of(value, op.op).in_parameters(target)
        type_ = with_element(value.type, element_type(results[0]))
        op.op.operands[number] = as_quantized(changed.value, type_)


def _moved(op: Operation) -> range | list[int]:
    """The numbers of the operands whose elements the result has."""
    count = len(op.operands)
    if op.name in DEPRECATED_MOVEMENT:
        return range(DEPRECATED_MOVEMENT[op.name])
    return list(OPERATIONS[op.name].element_operands(count))


def _is_one_block(source: QuantizationParameters, target: QuantizationParameters) -> bool:
    """True if one scale of the source, broadcast, is every scale of the target."""
    return (
        source.storage == target.storage
        and source.expressed == target.expressed
        and source.scales.size == 1
        and bool((target.scales == source.scales.reshape(-1)[0]).all())
        and bool((target.zero_points == source.zero_points.reshape(-1)[0]).all())
    )


@lowers("stablehlo.composite")
def composite(op: QuantizedOperation) -> list[Value]:
    """A call of the function that defines the composite."""
    callee = {"callee": op.op.attributes["decomposition"]}
    types = [result.type for result in op.op.results]
    return list(create("func.call", list(op.op.operands), types, callee).results)


_REFUSED = {
    "stablehlo.convert": "has a quantized operand or result, which the specification forbids; use "
    "stablehlo.uniform_quantize or stablehlo.uniform_dequantize",
    "stablehlo.custom_call": "has quantized operands or results, and nothing says what its target "
    "does with their scales; dequantize before and quantize after it",
    "stablehlo.get_tuple_element": "takes quantized values out of a tuple, which IREE does not "
    "have; pass the values themselves",
    "stablehlo.tuple": "puts quantized values into a tuple, which IREE does not have; pass the "
    "values themselves",
}


@lowers(*_REFUSED)
def refuse(op: QuantizedOperation) -> NoReturn:
    """Refuse an operation without a quantized form, with the reason in `_REFUSED`."""
    raise UnsupportedError(_REFUSED[op.op.name], op.op)
