"""``canonicalize-reductions``: write the implicit conversions of reductions as operations.

The body of a reduction may compute in another element type than the one of its operands: the RFC
"StableHLO quantization for reduction ops" converts implicitly, and so does StableHLO's
specification since (``is_promotable``). This pass writes the conversions: of inputs, init values,
updates and sources to the types of the body's arguments, and of the results of ``subquant``
reductions from the body's type to their own. After it, operands, body and results of a reduction
have one element type each, the accumulator's, and no ``subquant`` reduction remains.

| from | to | conversion |
|---|---|---|
| quantized | quantized | ``stablehlo.uniform_quantize`` (A) |
| floating-point | floating-point | ``stablehlo.convert`` (F) |
| integer | integer | ``stablehlo.convert`` (G), which extends by the operand's signedness |
| complex | complex | ``stablehlo.convert`` (H) |

A ``select_and_scatter`` whose two bodies have different types becomes a windowed reduction in the
operand's type, with ``select`` as it is, and a ``scatter`` in the accumulator's: a conversion of
the operand could merge values and change the selected one: see `select_and_scatter`.

``batch_norm_training`` and ``batch_norm_grad`` have no body, and their quantized semantics is that
of the dequantized operation: they have no implicit conversions, and stay.

Before::

    %sum = "subquant.reduce"(%x, %zero) ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %0 = stablehlo.add %a, %b : tensor<i32>
      stablehlo.return %0 : tensor<i32>
    }) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>

After::

    %0 = stablehlo.convert %x : (tensor<2x8xi8>) -> tensor<2x8xi32>
    %1 = stablehlo.convert %zero : (tensor<i8>) -> tensor<i32>
    %2 = stablehlo.reduce(%0 init: %1) applies stablehlo.add across dimensions = [1]
        : (tensor<2x8xi32>, tensor<i32>) -> tensor<2xi32>
    %sum = stablehlo.convert %2 : (tensor<2xi32>) -> tensor<2xi8>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type, parameters_of
from ...dialects.reduction_rules import kind_of
from ...dialects.subquant import REDUCTIONS
from ...emit import with_element
from ...errors import Remark, UnsupportedError
from ..base import ModulePass, NoMatch, Pattern, Replacement, apply_patterns
from ..iree_workarounds.select_and_scatter import expand_select_and_scatter


@dataclass(frozen=True)
class CanonicalizeReductions(ModulePass):
    """Write implicit conversions of reductions; refuse those between quantized and other types."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Canonicalize `module`.

        Raises:
            UnsupportedError: a conversion that StableHLO does not have, or a select_and_scatter of
                a dynamic shape whose bodies have different types.
        """
        return apply_patterns(module, _PATTERNS)


def _canonicalize(op: Operation) -> NoMatch | None:
    """Convert operands in place to the types of their block arguments."""
    arguments = _argument_of_operand(op)
    if all(element_type(op.operands[n].type) == element for n, element in arguments.items()):
        return NoMatch("operands have the types of the body's arguments")
    for number, element in arguments.items():
        op.operands[number] = _converted(op.operands[number], element, op)
    return None


def _argument_of_operand(op: Operation) -> dict[int, ir.Type]:
    """The element type in which the body takes each operand, by operand number."""
    elements = [element_type(a.type) for a in op.regions[0].blocks[0].arguments]
    count = len(op.operands)
    if op.name in ("stablehlo.all_reduce", "stablehlo.reduce_scatter"):
        return dict.fromkeys(range(count), elements[0])
    numbers = list(range(count))
    if op.name == "stablehlo.scatter":
        del numbers[count // 2]  # inputs, the indices, updates
    return dict(zip(numbers, elements, strict=True))


def _canonicalize_reduce_of_subquant(op: Operation) -> list[Value]:
    """Build StableHLO's operation in the body's types, and convert its results."""
    elements = list(_argument_of_operand(op).values())
    created = emit.like(
        op,
        [_converted(v, element, op) for v, element in zip(op.operands, elements, strict=True)],
        [
            with_element(result.type, element)
            for result, element in zip(op.results, elements, strict=False)
        ],
        name=REDUCTIONS[op.name],
        take_bodies=True,
    )
    return [
        _converted(value, element_type(result.type), op)
        for value, result in zip(created.results, op.results, strict=True)
    ]


def _canonicalize_select_and_scatter(op: Operation) -> Replacement:
    """Convert the init value; if the bodies have different types, separate the two."""
    operand, source, init_value = op.operands
    accumulator = element_type(op.regions[1].blocks[0].arguments[0].type)
    result = element_type(op.results[0].type)
    if element_type(operand.type) == accumulator:
        if op.name.startswith("stablehlo.") and element_type(init_value.type) == accumulator:
            return NoMatch("operands have the types of the bodies' arguments")
        if op.name.startswith("stablehlo."):
            op.operands[2] = _converted(init_value, accumulator, op)
            return None
        type_ = with_element(op.results[0].type, accumulator)
        name = REDUCTIONS[op.name]
        accumulated = emit.like(op, results=[type_], name=name, take_bodies=True).results[0]
    else:
        accumulated = expand_select_and_scatter(
            op, _converted(source, accumulator, op), _converted(init_value, accumulator, op)
        )
    return _converted(accumulated, result, op)


_PATTERNS: dict[str, Pattern] = {
    **dict.fromkeys(REDUCTIONS, _canonicalize_reduce_of_subquant),
    "stablehlo.all_reduce": _canonicalize,
    "stablehlo.reduce": _canonicalize,
    "stablehlo.reduce_scatter": _canonicalize,
    "stablehlo.reduce_window": _canonicalize,
    "stablehlo.scatter": _canonicalize,
    "stablehlo.select_and_scatter": _canonicalize_select_and_scatter,
    "subquant.select_and_scatter": _canonicalize_select_and_scatter,
}


def _converted(value: Value, element: ir.Type, op: Operation) -> Value:
    """Convert a tensor; refuse a quantized and an unquantized type, and types not per tensor."""
    source = element_type(value.type)
    if source == element:
        return value
    if kind_of(source) == kind_of(element) == "quantized":
        for type_ in (source, element):
            parameters = parameters_of(type_, op)
            if parameters is None or parameters.granularity != "per-tensor":
                raise UnsupportedError(
                    f"converts '{source}' to '{element}' implicitly; expected per-tensor types, "
                    "write the conversion as stablehlo.uniform_quantize",
                    op,
                )
        name = "stablehlo.uniform_quantize"
    elif "quantized" in (kind_of(source), kind_of(element)):
        raise UnsupportedError(
            f"converts '{source}' to '{element}' implicitly; expected two quantized types, write "
            "the conversion as an operation",
            op,
        )
    else:
        name = "stablehlo.convert"
    return emit.value(name, [value], with_element(value.type, element))
