"""Quantized operations: fields of a row of the table of StableHLO, and operands for its rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from ..core._mlir import ir
from ..numerics.parameters import QuantizationParameters
from .quant import element_type, parameters_of

Category = Literal[
    "cast",
    "collective-movement",
    "comparison",
    "contraction",
    "control",
    "data-movement",
    "elementwise-binary",
    "elementwise-ternary",
    "elementwise-unary",
    "generation",
    "linear-algebra",
    "map",
    "normalization",
    "query",
    "reduction",
    "storage",
    "transfer",
]

Reads = Literal["shape", "window", "index"]

_MOVES = frozenset(("collective-movement", "data-movement", "query"))

NO_FLOAT_FORM = {
    "cast": "is a cast",
    "control": "passes values on, quantized or not",
    "storage": "acts on stored bits, which a float does not have",
    "transfer": "exchanges values with another program, which would see other types",
}
_COMPUTES = frozenset(get_args(Category)) - _MOVES - NO_FLOAT_FORM.keys()


@dataclass(frozen=True)
class Value:
    """An operand or result: its type, and its name in a reason."""

    type: ir.Type
    name: str

    @cached_property
    def element(self) -> ir.Type:
        """The element type."""
        return element_type(self.type)

    @cached_property
    def parameters(self) -> QuantizationParameters | None:
        """The quantization, None for a type that is not quantized.

        Raises:
            UnsupportedError: as `parameters_of`.
        """
        return parameters_of(self.type)

    @property
    def is_per_axis(self) -> bool:
        """True for a per-axis type."""
        return self.parameters is not None and self.parameters.granularity == "per-axis"

    @property
    def axis(self) -> int | None:
        """The quantized dimension of a per-axis type."""
        return self.parameters.axes[0] if self.parameters and self.is_per_axis else None

    @property
    def expressed(self) -> str:
        """The expressed type, or the element type where it is not quantized."""
        return self.parameters.expressed.value if self.parameters else str(self.element)

    @property
    def baseline(self) -> tuple[object, ...]:
        """The element type without scales and zero points (``baseline_element_type``)."""
        if self.parameters is None:
            return (self.element,)
        return (self.parameters.storage, self.parameters.expressed, self.axis)

    def extent(self, axis: int) -> int | None:
        """The length of an axis; None where it is dynamic."""
        return None if self.type.is_dynamic_dim(axis) else int(self.type.shape[axis])

    def __str__(self) -> str:
        """Write the element type, long lists of scales cut."""
        text = str(self.element)
        if self.parameters is None or len(text) <= 80:
            return text
        start, _, _ = text.partition("{")
        return f"{start}{{{len(self.parameters.scales)} scales}}>"


@dataclass(frozen=True)
class Instance:
    """An operation as rules see it: the types and attributes that it has, or would have."""

    op: QuantizedOp
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attributes: Mapping[str, ir.Attribute]

    @cached_property
    def elements(self) -> tuple[Value, ...]:
        """The operands that may be quantized: not indices, predicates or shapes."""
        return tuple(self.operands[n] for n in self.op.element_operands(len(self.operands)))

    @cached_property
    def carriers(self) -> tuple[Value, ...]:
        """Operands and results that may be quantized."""
        return (*self.elements, *(self.results if self.op.quantized_results else ()))


Rule = Callable[[Instance], Iterator[str]]
"""Yields the reasons why an operation breaks a constraint; a reason may rely on those before it."""


@dataclass(frozen=True)
class Body:
    """Element types of a region's arguments and results (None: predicates)."""

    arguments: tuple[ir.Type, ...]
    results: tuple[ir.Type, ...] | None


Bodies = Callable[[Sequence[ir.Type], Sequence[ir.Type]], tuple[Body, ...]]


@dataclass(frozen=True)
class QuantizedOp:
    """Row of the table of operations.

    Args:
        name: with its dialect, ``stablehlo.add``.
        per_axis: per-axis types are admitted; otherwise per-tensor types only.
        element_operands: from the number of operands to the positions of operands that may be
            quantized; other operands are indices, predicates, shapes and tokens.
        quantized_results: results may be quantized.
        per_tensor_operands: positions where a per-axis type is not admitted all the same.
        bodies: from the element types of operands and results to those of the regions' arguments
            and results; None for an operation without regions, or whose regions take no elements.
        is_periodic: a function with the period 2 pi, whose multiples an angle may lose.
        reads: what says which elements of an operand become an element of a result: the shapes
            alone, a window that moves, or an index of its own (``dynamic_slice`` has one for all).
    """

    name: str
    category: Category
    per_axis: bool = False
    rules: tuple[Rule, ...] = ()
    element_operands: Callable[[int], Sequence[int]] = range
    quantized_results: bool = True
    per_tensor_operands: tuple[int, ...] = ()
    bodies: Bodies | None = None
    is_periodic: bool = False
    reads: Reads = "shape"

    @property
    def computes(self) -> bool:
        """True where the meaning is: dequantize, compute with floats, quantize."""
        return self.category in _COMPUTES

    @property
    def moves(self) -> bool:
        """True where elements only change place, or only the shape is read."""
        return self.category in _MOVES

    @property
    def why_no_float_form(self) -> str | None:
        """Why the operation on floats does not mean the same; None where it does."""
        return NO_FLOAT_FORM.get(self.category)
