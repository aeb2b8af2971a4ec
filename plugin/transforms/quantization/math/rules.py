"""Registry of the rules of ``legalize-quant-to-math``, and their view of an operation.

A rule is a function of a `QuantizedOperation`, with its formula as its docstring. It returns the
new results, or None if the operation keeps its quantized types. `lowers` registers it for
operations, which makes them roots of the pass. Every row of
`subquant.dialects.stablehlo.OPERATIONS` has a rule or a reason here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from ....core._mlir import Operation, Value, ir
from ....dialects.quant import element_type, is_quantized, parameters_of
from ....dialects.stablehlo import of_category
from ....emit import ArrayLike, Tensors, as_quantized, linalg
from ....emit.casts import ScaledSum, requantize
from ....emit.operation import dynamic_dims
from ....errors import UnsupportedError
from ....numerics.array_functions import convert
from ....numerics.casts import Division
from ....numerics.parameters import QuantizationParameters
from .operands import Operand, dequantize, quantize

Results: TypeAlias = Value | Sequence[Value] | None
"""A value, several, or None if the operation stays."""


@dataclass(frozen=True)
class QuantizedOperation:
    """An operation of StableHLO on quantized values, as rules read it.

    For its division see ``lower-quant-casts``.
    """

    op: Operation
    division: Division

    @property
    def name(self) -> str:
        """The name without its dialect."""
        return str(self.op.name).partition(".")[2]

    @cached_property
    def operands(self) -> list[Operand]:
        """The operands, all quantized.

        Raises:
            UnsupportedError: one is not, or has a sub-channel type.
        """
        return [self.operand(number) for number in range(len(self.op.operands))]

    def operand(self, number: int) -> Operand:
        """One operand, which is quantized; UnsupportedError if it is not."""
        value = self.op.operands[number]
        if not is_quantized(value.type):
            raise UnsupportedError(
                f"has a quantized operand or result and operand {number} of '{value.type}', "
                "expected a quantized one; quantize it (stablehlo.uniform_quantize)",
                self.op,
            )
        return Operand.of(value, self.op)

    @cached_property
    def target(self) -> QuantizationParameters:
        """The parameters of the first result.

        Raises:
            UnsupportedError: it is not quantized, or has a sub-channel type.
        """
        (result, *_) = self.op.results
        parameters = parameters_of(result.type, self.op)
        if parameters is None:
            raise UnsupportedError(
                f"has quantized operands and a result of '{result.type}', expected a quantized "
                "result; dequantize the operands (stablehlo.uniform_dequantize) for a real one",
                self.op,
            )
        if parameters.granularity == "sub-channel":
            Operand.of(result, self.op)
        return parameters

    @cached_property
    def form(self) -> Tensors:
        """The shape of the operand that has the fewest dynamic sizes."""
        ranked = [v for v in self.op.operands if isinstance(v.type, ir.RankedTensorType)]
        if len(ranked) != len(self.op.operands):
            raise UnsupportedError("has an unranked operand; expected ranked tensors", self.op)
        return Tensors(min(ranked, key=lambda value: dynamic_dims(value.type)))

    # -- results ----------------------------------------------------------------------------------

    def nearest(self, total: ScaledSum) -> Value:
        """The result with the storage values nearest to an exact sum."""
        return as_quantized(requantize(total, self.target), self.op.results[0].type)

    def holding(self, storage: ArrayLike) -> Value:
        """The result of storage values that fit its storage type."""
        narrow = convert(storage, self.target.storage.element)
        return as_quantized(narrow.value, self.op.results[0].type)

    def dequantized(self, number: int) -> ArrayLike:
        """The expressed values of an operand."""
        return dequantize(self.operand(number), self.op, self.division)

    def quantized(
        self, expressed: ArrayLike, target: QuantizationParameters, type_: ir.Type
    ) -> Value:
        """A result of values in the target's expressed type."""
        return as_quantized(quantize(expressed, target, self.op, self.division).value, type_)

    def real(self, expressed: ArrayLike) -> Value:
        """The float result of expressed values of a compatible shape."""
        return linalg.cast(expressed.value, self.op.results[0].type)

    def refuse(self, reason: str) -> UnsupportedError:
        """The error that the operation cannot be lowered, for a reason."""
        return UnsupportedError(reason, self.op)


# -- registration ---------------------------------------------------------------------------------

Rule = Callable[[QuantizedOperation], Results]

_RULES: dict[str, Rule] = {}
_MODULES = ("casts", "contraction", "functions", "linear", "movement", "order")


def lowers(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operations, by name with the dialect."""

    def register(rule: Rule) -> Rule:
        for name in names:
            assert name not in _RULES, f"{name} has two rules"
            _RULES[name] = rule
        return rule

    return register


def rules() -> dict[str, Rule]:
    """Every rule, by the name of its root operation."""
    for module in _MODULES:
        importlib.import_module(f".{module}", __package__)
    return dict(_RULES)


NO_RULE: dict[str, str] = {
    **dict.fromkeys(
        of_category("reduction"),
        "the additions in its body become integer additions (`reduction`), other operations in it "
        "have their own rules",
    ),
    **dict.fromkeys(of_category("map"), "the operations in its body have their own rules"),
    **dict.fromkeys(
        of_category("control", "transfer", "storage", "query", "collective-movement"),
        "passes storage on: convert-quantized-to-storage changes its types",
    ),
    "stablehlo.sort": "moves each operand to a result of the same type; its comparator has rules",
}
"""Reasons why operations of the table have no rule."""


def element_names(values: Sequence[Value]) -> list[str]:
    """The element types of values, for messages."""
    return [str(element_type(value.type)) for value in values]
