"""StableHLO: the operations that admit quantized types, and the constraints of each.

The table `OPERATIONS` has one row an operation: its category, whether it admits per-axis types, and
the rules of the specification that concern quantization. `why_illegal` says whether an operation
would be allowed with given types, without an operation at hand. Rules on shapes, windows or indices
are StableHLO's verifier's, not this table's.

Source: StableHLO specification (docs/spec.md at 3c9301c): the tables of inputs and outputs of each
operation, and its constraints, which a rule names (``C14``) in its docstring and in its reason. The
bindings have no classes for these operations, so they are known by name.

Semantics of operations, by category (specification, "Semantics" of each, "Quantization
computations", and "Execution semantics of quantized operation"):

* *computes*: dequantize the operands, compute with floats, quantize the results. For reductions the
  specification leaves the order, and so where it rounds, to the implementation.
* *moves*: stored values go to other places (or, for a query, only the shape is read). On floats it
  means the same.
* the others act on stored bits (``constant``, ``bitcast_convert``), pass values on (``if``,
  ``optimization_barrier``), exchange them with other programs (``send``), or are casts: no
  operation on floats means the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ..core._mlir import ir, stablehlo
from ..errors import UnsupportedError
from ..numerics.parameters import QuantizationParameters
from .quant import element_type, is_quantized, parameters_of

__all__ = [
    "DEPRECATED_MOVEMENT",
    "DEQUANTIZE",
    "OPERATIONS",
    "QUANTIZE",
    "Body",
    "Category",
    "QuantizedOp",
    "of_category",
    "why_illegal",
    "why_not_in_table",
]

DEQUANTIZE = "stablehlo.uniform_dequantize"
QUANTIZE = "stablehlo.uniform_quantize"

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

_COMPUTES = frozenset(
    (
        "comparison",
        "contraction",
        "elementwise-binary",
        "elementwise-ternary",
        "elementwise-unary",
        "generation",
        "linear-algebra",
        "map",
        "normalization",
        "reduction",
    )
)
_MOVES = frozenset(("collective-movement", "data-movement", "query"))

_NO_FLOAT_FORM = {
    "cast": "is a cast",
    "control": "passes values on, quantized or not",
    "storage": "acts on stored bits, which a float does not have",
    "transfer": "exchanges values with another program, which would see other types",
}


_ANY_VALUES = frozenset(
    f"stablehlo.{name}"
    for name in ("composite", "custom_call", "get_tuple_element", "tuple", "while")
)
"""Operations whose operands the specification calls values, of any type."""


# -- what rules look at ---------------------------------------------------------------------------


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


Rule = Callable[[Instance], str | None]


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
        category: what kind of operation it is.
        per_axis: per-axis types are admitted; otherwise per-tensor types only.
        rules: constraints on quantized types.
        element_operands: from the number of operands to the positions of operands that may be
            quantized; other operands are indices, predicates, shapes and tokens.
        quantized_results: results may be quantized.
        per_tensor_operands: positions where a per-axis type is not admitted all the same.
        bodies: from the element types of operands and results to those of the regions' arguments
            and results; None for an operation without regions, or whose regions take no elements.
        is_periodic: a function of angles, which may lose whole turns.
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
        return _NO_FLOAT_FORM.get(self.category)


def why_illegal(
    name: str,
    operands: Sequence[ir.Type],
    results: Sequence[ir.Type],
    attributes: Mapping[str, ir.Attribute],
) -> str | None:
    """Say why the specification forbids an operation with these types, as far as quantization goes.

    Args:
        name: the operation's name, ``stablehlo.dot_general``.
        operands, results: their types; any may be quantized.
        attributes: the operation's attributes, for those that number dimensions.

    Returns:
        None if it is allowed (always, if nothing is quantized), else the reason, for example
        ``operand 0 and operand 1 must have one storage type, got ... (C17)``.
    """
    if not any(is_quantized(type_) for type_ in (*operands, *results)):
        return None
    op = OPERATIONS.get(name)
    if op is None:
        return why_not_in_table(name)
    several = len(results) > 1
    instance = Instance(
        op,
        tuple(Value(type_, f"operand {n}") for n, type_ in enumerate(operands)),
        tuple(
            Value(type_, f"result {n}" if several else "result") for n, type_ in enumerate(results)
        ),
        attributes,
    )
    return next(_broken_rules(instance), None)


def why_not_in_table(name: str) -> str:
    """Say why an operation is none of `OPERATIONS`."""
    if name in _ANY_VALUES:
        return f"it {_NO_FLOAT_FORM['control']}"
    if name == "stablehlo.dot":
        return "it is deprecated; stablehlo-legalize-deprecated-ops writes it as dot_general"
    return "the specification gives it no quantized types"


def _broken_rules(instance: Instance) -> Iterator[str]:
    """Check the types one by one, then with each other."""
    op = instance.op
    for value in (*instance.operands, *instance.results):
        if is_quantized(value.type):
            reason = _why_not_admitted(value, instance)
            if reason is not None:
                yield reason
    for position in op.per_tensor_operands:
        if instance.operands[position].is_per_axis:
            yield (
                f"operand {position} must be quantized per tensor, got "
                f"{instance.operands[position]}"
            )
    for rule in op.rules:
        reason = rule(instance)
        if reason is not None:
            yield reason


def _why_not_admitted(value: Value, instance: Instance) -> str | None:
    """Check one quantized type (specification, "Types", and the operation's own table).

    Storage types are integers of 2, 4, 8, 16, 32 or 64 bits, expressed types are floats, and there
    are per-tensor and per-axis types only. A per-axis type is quantized along a dimension of its
    tensor (C12 of quantized tensor types) and has a scale for each index of it (C13).
    """
    try:
        parameters = value.parameters
    except UnsupportedError as error:
        return f"{value.name}: {error.message}"
    if parameters is None or not isinstance(value.type, ir.RankedTensorType):
        return f"{value.name} must be a ranked tensor, got {value.type}"
    if parameters.granularity == "sub-channel":
        return (
            f"{value.name} has a sub-channel type, which no StableHLO operation accepts; "
            "normalize-quant-types writes one that is per-axis or per-tensor as such"
        )
    if parameters.storage.width not in (2, 4, 8, 16, 32):
        return f"{value.name} must have a storage type of 2, 4, 8, 16 or 32 bits, got {value}"
    if value not in instance.carriers:
        return f"{value.name} must not be quantized, got {value}"
    if value.axis is None:
        return None
    if not instance.op.per_axis:
        return f"{value.name} must be quantized per tensor, got {value}"
    if value.axis >= value.type.rank:
        return f"{value.name} must be quantized along one of its dimensions, got {value} (C12)"
    if value.extent(value.axis) not in (None, len(parameters.scales)):
        return f"{value.name} must have a scale for each index of its axis, got {value.type} (C13)"
    return None


# -- rules ----------------------------------------------------------------------------------------


def _apart(what: str, left: Value, right: Value, constraint: str) -> str:
    return (
        f"{left.name} and {right.name} must have one {what}, got {left} and {right} ({constraint})"
    )


def _one(what: str, key: Callable[[Value], object], constraint: str) -> Rule:
    """All that may be quantized agree in `key`."""

    def rule(instance: Instance) -> str | None:
        first, *remaining = instance.carriers
        for other in remaining:
            if key(other) != key(first):
                return _apart(what, first, other, constraint)
        return None

    return rule


def _one_baseline(constraint: str = "C1") -> Rule:
    """Agree in everything but scales and zero points (``baseline_element_type``)."""
    return _one("storage type, storage range and expressed type", lambda v: v.baseline, constraint)


def _one_element_type(constraint: str = "C1") -> Rule:
    """Operands and result have one element type, scales and zero points included."""
    return _one("element type", lambda v: v.element, constraint)


def _results_as_operands(constraint: str) -> Rule:
    """The n-th result has the element type of the n-th operand."""

    def rule(instance: Instance) -> str | None:
        for operand, result in zip(instance.elements, instance.results, strict=False):
            if operand.element != result.element:
                return _apart("element type", operand, result, constraint)
        return None

    return rule


def _add(instance: Instance) -> str | None:
    """C2 to C7 of ``add``.

    All three are quantized (C2), with one storage type (C3) and one expressed type (C4); the result
    is per-axis exactly if an operand is (C5), along the same dimension (C6, C7).
    """
    lhs, rhs, result = instance.carriers
    for value in (lhs, rhs, result):
        if value.parameters is None:
            return f"{value.name} must be quantized, got {value} (C2)"
    for other in (rhs, result):
        assert lhs.parameters is not None  # all three are quantized here
        assert other.parameters is not None
        if _storage(lhs) != _storage(other):
            return _apart("storage type", lhs, other, "C3")
        if lhs.expressed != other.expressed:
            return _apart("expressed type", lhs, other, "C4")
    if (lhs.is_per_axis or rhs.is_per_axis) != result.is_per_axis:
        return (
            "the result must be quantized per axis exactly if an operand is, got "
            f"{lhs}, {rhs} and {result} (C5)"
        )
    for value, constraint in ((lhs, "C6"), (rhs, "C7")):
        if value.is_per_axis and value.axis != result.axis:
            return _apart("quantization dimension", value, result, constraint)
    return None


def _storage(value: Value) -> tuple[int, bool] | None:
    """The storage type without its range."""
    if value.parameters is None:
        return None
    return value.parameters.storage.width, value.parameters.storage.signed


def _quantized_together(instance: Instance, labels: Sequence[str]) -> str | None:
    """Rules shared by ``dot_general`` and ``convolution``, with the numbers of each.

    lhs is quantized exactly if the result is, and rhs is (C14, C28). With a quantized lhs: one
    storage type of lhs and rhs (C17, C31), one expressed type of all (C18, C32), and a per-tensor
    rhs asks for a per-tensor result (C19, C33). Otherwise it is hybrid: the element types of lhs
    and result are the expressed type of rhs (C20, C34).
    """
    together, storage, expressed, granularity, hybrid = labels
    lhs, rhs, result = instance.carriers
    if rhs.parameters is None:
        return f"{rhs.name} must be quantized, got {rhs} ({together})"
    if (lhs.parameters is None) != (result.parameters is None):
        return f"{lhs.name} and {result.name} must both be quantized or both not ({together})"
    if lhs.parameters is not None and _storage(lhs) != _storage(rhs):
        return _apart("storage type", lhs, rhs, storage)
    for value in (lhs, result):
        if value.expressed != rhs.expressed:
            constraint = expressed if lhs.parameters is not None else hybrid
            return _apart("expressed type", value, rhs, constraint)
    if result.is_per_axis and not rhs.is_per_axis:
        return (
            f"{result.name} must be quantized per tensor because {rhs.name} is, got {result} "
            f"({granularity})"
        )
    return None


def _dot_general(instance: Instance) -> str | None:
    """C14 to C20 of ``dot_general``.

    Rules that it does not share with ``convolution``: zero points of rhs are 0 (C15), and rhs is
    not quantized along a dimension that is contracted (C16).
    """
    reason = _quantized_together(instance, ("C14", "C17", "C18", "C19", "C20"))
    if reason is not None:
        return reason
    rhs = instance.operands[1]
    assert rhs.parameters is not None  # checked as C14
    if np.any(rhs.parameters.zero_points):
        return f"the zero point of {rhs.name} must be 0, got {rhs} (C15)"
    numbers = stablehlo.DotDimensionNumbers(instance.attributes["dot_dimension_numbers"])
    contracted = list(numbers.rhs_contracting_dimensions)
    if rhs.axis in contracted:
        return (
            f"{rhs.name} must not be quantized along a dimension that is contracted, got "
            f"dimension {rhs.axis} (C16)"
        )
    return None


def _convolution(instance: Instance) -> str | None:
    """C28 to C34 of ``convolution`` and ``dynamic_conv``.

    Rules that it does not share with ``dot_general``: a per-axis rhs is quantized along the
    kernel's output features (C29), a per-axis result along the output's features (C30).
    """
    reason = _quantized_together(instance, ("C28", "C31", "C32", "C33", "C34"))
    if reason is not None:
        return reason
    numbers = stablehlo.ConvDimensionNumbers(instance.attributes["dimension_numbers"])
    for value, dimension, what, constraint in (
        (instance.operands[1], numbers.kernel_output_feature_dimension, "kernel", "C29"),
        (instance.results[0], numbers.output_feature_dimension, "output", "C30"),
    ):
        if value.is_per_axis and value.axis != dimension:
            return (
                f"{value.name} must be quantized along the {what}'s output features, which are "
                f"dimension {dimension}, got dimension {value.axis} ({constraint})"
            )
    return None


def _moved_axis(instance: Instance) -> str | None:
    """C1 of ``reshape`` and ``transpose``.

    One element type, except that a per-axis type may be quantized along another dimension.
    """
    operand, result = instance.carriers
    if operand.is_per_axis and result.is_per_axis:
        if _but_for_axis(operand) != _but_for_axis(result):
            return _apart(
                "element type (but for the quantization dimension)", operand, result, "C1"
            )
    elif operand.element != result.element:
        return _apart("element type", operand, result, "C1")
    return None


def _but_for_axis(value: Value) -> tuple[object, ...]:
    assert value.parameters is not None  # the caller asks for per-axis types only
    p = value.parameters
    return p.storage, p.expressed, p.scales.tobytes(), p.zero_points.tobytes()


def _reshape(instance: Instance) -> str | None:
    """C3 of ``reshape`` and ``dynamic_reshape``.

    The quantized dimension keeps its length, and as many elements lie before it and after it.
    Dynamic extents are not known and not compared.
    """
    operand, result = instance.carriers
    if operand.axis is None or result.axis is None:
        return None
    for part, left, right in (
        ("before", (0, operand.axis), (0, result.axis)),
        ("along", (operand.axis, operand.axis + 1), (result.axis, result.axis + 1)),
        ("after", (operand.axis + 1, operand.type.rank), (result.axis + 1, result.type.rank)),
    ):
        sizes = [
            [value.extent(axis) for axis in range(*bounds)]
            for value, bounds in ((operand, left), (result, right))
        ]
        if any(None in size for size in sizes):
            continue
        products = [math.prod(n for n in size if n is not None) for size in sizes]
        if products[0] != products[1]:
            return (
                f"{operand.name} and {result.name} must have as many elements {part} the "
                f"quantized dimension, got {products[0]} and {products[1]} (C3)"
            )
    return None


def _transpose(instance: Instance) -> str | None:
    """C4 of ``transpose``: the quantized dimension moves as the permutation says."""
    operand, result = instance.carriers
    if result.axis is None:
        return None
    expected = list(instance.attributes["permutation"])[result.axis]
    if operand.axis != expected:
        return (
            f"{operand.name} must be quantized along dimension {expected}, from which dimension "
            f"{result.axis} of the result comes, got dimension {operand.axis} (C4)"
        )
    return None


def _broadcast(instance: Instance) -> str | None:
    """C1 and C6 of ``broadcast_in_dim`` and ``dynamic_broadcast_in_dim``.

    Per-tensor: one element type. Per-axis: storage and expressed type agree; the result is
    quantized along the dimension to which the operand's goes; scales and zero points agree, each
    repeated if that dimension has length 1.
    """
    operand, result = instance.carriers
    if not (operand.is_per_axis and result.is_per_axis):
        if operand.element != result.element:
            return _apart("element type", operand, result, "C1")
        return None
    before, after = operand.parameters, result.parameters
    assert before is not None
    assert after is not None
    if (before.storage, before.expressed) != (after.storage, after.expressed):
        return _apart("storage and expressed type", operand, result, "C1")
    assert operand.axis is not None
    expected = list(instance.attributes["broadcast_dimensions"])[operand.axis]
    if result.axis != expected:
        return (
            f"{result.name} must be quantized along dimension {expected}, to which the operand's "
            f"goes, got dimension {result.axis} (C6)"
        )
    for what, left, right in (
        ("scales", before.scales, after.scales),
        ("zero points", before.zero_points, after.zero_points),
    ):
        if len(left) not in (1, len(right)) or np.any(left != right):
            return _apart(what, operand, result, "C6")
    return None


def _promotable(operands: str, bodies: str) -> Rule:
    """Reductions: results may have wider storage than operands (``is_promotable``).

    The element type E of the body is that of the result; its expressed type is the operand's, and
    its storage type has at least as many bits. Scales and zero points may differ: operands are
    converted to E first.

    Args:
        operands: the constraint by which inputs and their initial values (or updates, or source)
            have one element type.
        bodies: the constraint on the type of the body.
    """

    def rule(instance: Instance) -> str | None:
        count = len(instance.results)
        for number, operand in enumerate(instance.elements):
            first, result = instance.elements[number % count], instance.results[number % count]
            if operand.element != first.element:
                return _apart("element type", first, operand, operands)
            if (operand.parameters is None) != (result.parameters is None):
                return f"{operand.name} and {result.name} must both be quantized ({bodies})"
            if operand.parameters is None or result.parameters is None:
                continue
            if operand.expressed != result.expressed:
                return _apart("expressed type", operand, result, bodies)
            if operand.parameters.storage.width > result.parameters.storage.width:
                return (
                    f"{result.name} must have a storage type at least as wide as {operand.name}, "
                    f"got {result} and {operand} ({bodies})"
                )
        return None

    return rule


def _one_computation(instance: Instance) -> str | None:
    """C7 of ``all_reduce``: there is one computation, so the results have one element type."""
    first, *remaining = instance.results
    for other in remaining:
        if other.element != first.element:
            return _apart("element type", first, other, "C7")
    return None


def _dequantize(instance: Instance) -> str | None:
    """C2 of ``uniform_dequantize``: the result is of the operand's expressed type."""
    operand, result = instance.operands[0], instance.results[0]
    if operand.parameters is None:
        return f"{operand.name} must be quantized, got {operand}"
    if operand.expressed != result.expressed:
        return _apart("expressed type", operand, result, "C2")
    return None


def _quantize(instance: Instance) -> str | None:
    """C2 of ``uniform_quantize``: operand and result have one expressed type."""
    operand, result = instance.operands[0], instance.results[0]
    if result.parameters is None:
        return f"{result.name} must be quantized, got {result}"
    if operand.expressed != result.expressed:
        return _apart("expressed type", operand, result, "C2")
    return None


# -- regions --------------------------------------------------------------------------------------


def _reduces(operands: Sequence[ir.Type], results: Sequence[ir.Type]) -> tuple[Body, ...]:
    """(E0, ..., EN-1, E0, ..., EN-1) to (E0, ..., EN-1), with E of the results."""
    return (Body((*results, *results), tuple(results)),)


def _reduces_pairs(operands: Sequence[ir.Type], results: Sequence[ir.Type]) -> tuple[Body, ...]:
    """(E, E) to E, with E of the results."""
    return (Body((results[0], results[0]), (results[0],)),)


def _selects_and_scatters(
    operands: Sequence[ir.Type], results: Sequence[ir.Type]
) -> tuple[Body, ...]:
    """``select`` compares elements of the operand, ``scatter`` reduces in those of the result."""
    select = Body((operands[0], operands[0]), None)
    return (select, *_reduces_pairs(operands, results))


def _maps(operands: Sequence[ir.Type], results: Sequence[ir.Type]) -> tuple[Body, ...]:
    return (Body(tuple(operands), tuple(results)),)


def _compares(operands: Sequence[ir.Type], results: Sequence[ir.Type]) -> tuple[Body, ...]:
    """(E0, E0, E1, E1, ...) to a predicate."""
    return (Body(tuple(e for operand in operands for e in (operand, operand)), None),)


# -- the table ------------------------------------------------------------------------------------


def _first(count: int) -> Callable[[int], Sequence[int]]:
    return lambda operands: range(min(count, operands))


def _from(start: int) -> Callable[[int], Sequence[int]]:
    return lambda operands: range(start, operands)


def _around_indices(operands: int) -> Sequence[int]:
    """Inputs and updates of ``scatter``, with the indices between them."""
    return [n for n in range(operands) if n != operands // 2]


def _row(name: str, category: Category, *rules: Rule, **fields: Any) -> QuantizedOp:
    return QuantizedOp(f"stablehlo.{name}", category, rules=rules, **fields)


_PER_AXIS: dict[str, Any] = {"per_axis": True}
_WEIGHTS: dict[str, Any] = {"per_axis": True, "per_tensor_operands": (0,)}
_PREDICATE: dict[str, Any] = {"quantized_results": False}

_ROWS = (
    # one operand, element by element
    _row("abs", "elementwise-unary", _one_baseline("C2")),
    _row("cbrt", "elementwise-unary", _one_baseline()),
    _row("ceil", "elementwise-unary", _one_baseline()),
    _row("cosine", "elementwise-unary", _one_baseline(), is_periodic=True),
    _row("exponential", "elementwise-unary", _one_baseline()),
    _row("exponential_minus_one", "elementwise-unary", _one_baseline()),
    _row("floor", "elementwise-unary", _one_baseline()),
    _row("log", "elementwise-unary", _one_baseline()),
    _row("log_plus_one", "elementwise-unary", _one_baseline()),
    _row("logistic", "elementwise-unary", _one_baseline()),
    _row("negate", "elementwise-unary", _one_baseline()),
    _row("reduce_precision", "elementwise-unary", _one_baseline()),
    _row("round_nearest_afz", "elementwise-unary", _one_baseline()),
    _row("round_nearest_even", "elementwise-unary", _one_baseline()),
    _row("rsqrt", "elementwise-unary", _one_baseline()),
    _row("sign", "elementwise-unary", _one_baseline()),
    _row("sine", "elementwise-unary", _one_baseline(), is_periodic=True),
    _row("sqrt", "elementwise-unary", _one_baseline()),
    _row("tan", "elementwise-unary", _one_baseline(), is_periodic=True),
    _row("tanh", "elementwise-unary", _one_baseline()),
    # two and three operands, element by element
    _row("add", "elementwise-binary", _add, **_PER_AXIS),
    _row("atan2", "elementwise-binary", _one_baseline()),
    _row("divide", "elementwise-binary", _one_baseline()),
    _row("maximum", "elementwise-binary", _one_baseline()),
    _row("minimum", "elementwise-binary", _one_baseline()),
    _row("multiply", "elementwise-binary", _one_baseline()),
    _row("power", "elementwise-binary", _one_baseline()),
    _row("remainder", "elementwise-binary", _one_baseline()),
    _row("subtract", "elementwise-binary", _one_baseline()),
    _row("clamp", "elementwise-ternary", _one_baseline("C3, C4")),
    _row("select", "elementwise-ternary", _one_baseline("C2"), element_operands=_from(1)),
    _row("compare", "comparison", _one_baseline(), **_PREDICATE),
    _row("is_finite", "comparison", **_PREDICATE),
    # contractions
    _row("dot_general", "contraction", _dot_general, **_WEIGHTS),
    _row("convolution", "contraction", _convolution, reads="window", **_WEIGHTS),
    _row(
        "dynamic_conv",
        "contraction",
        _convolution,
        element_operands=_first(2),
        reads="window",
        **_WEIGHTS,
    ),
    # several results, or whole matrices
    _row("batch_norm_grad", "normalization", _one_baseline("C2")),
    _row("batch_norm_inference", "normalization", _one_baseline("C2")),
    _row("batch_norm_training", "normalization", _one_baseline("C2")),
    _row("cholesky", "linear-algebra", _one_baseline()),
    _row("triangular_solve", "linear-algebra", _one_baseline("C1, C4")),
    # functions on elements
    _row("map", "map", bodies=_maps),
    _row("reduce", "reduction", _promotable("C2", "C6"), bodies=_reduces),
    _row("reduce_window", "reduction", _promotable("C3", "C13"), bodies=_reduces, reads="window"),
    _row(
        "scatter",
        "reduction",
        _promotable("C6", "C23"),
        element_operands=_around_indices,
        bodies=_reduces,
    ),
    _row(
        "select_and_scatter",
        "reduction",
        _promotable("C1, C3", "C10"),
        bodies=_selects_and_scatters,
        reads="window",
    ),
    _row(
        "all_reduce", "reduction", _promotable("C5", "C5"), _one_computation, bodies=_reduces_pairs
    ),
    _row("collective_reduce", "reduction", _promotable("C4", "C4"), bodies=_reduces_pairs),
    _row("reduce_scatter", "reduction", _promotable("C7", "C7"), bodies=_reduces_pairs),
    # places of elements
    _row("broadcast_in_dim", "data-movement", _broadcast, **_PER_AXIS),
    _row(
        "dynamic_broadcast_in_dim",
        "data-movement",
        _broadcast,
        element_operands=_first(1),
        **_PER_AXIS,
    ),
    _row("concatenate", "data-movement", _one_element_type("C1, C5")),
    _row(
        "dynamic_gather",
        "data-movement",
        _one_element_type("C14"),
        element_operands=_first(1),
        reads="index",
    ),
    _row("dynamic_pad", "data-movement", _one_element_type(), element_operands=_first(2)),
    _row(
        "dynamic_reshape",
        "data-movement",
        _moved_axis,
        _reshape,
        element_operands=_first(1),
        **_PER_AXIS,
    ),
    _row("dynamic_slice", "data-movement", _one_element_type(), element_operands=_first(1)),
    _row(
        "dynamic_update_slice",
        "data-movement",
        _one_element_type("C1, C2"),
        element_operands=_first(2),
    ),
    _row(
        "gather",
        "data-movement",
        _one_element_type("C23"),
        element_operands=_first(1),
        reads="index",
    ),
    _row("pad", "data-movement", _one_element_type()),
    _row("reshape", "data-movement", _moved_axis, _reshape, **_PER_AXIS),
    _row("reverse", "data-movement", _one_element_type()),
    _row("slice", "data-movement", _one_element_type()),
    _row("sort", "data-movement", _results_as_operands("C2"), bodies=_compares),
    _row("transpose", "data-movement", _moved_axis, _transpose, **_PER_AXIS),
    _row("all_gather", "collective-movement", _results_as_operands("C6")),
    _row("all_to_all", "collective-movement", _results_as_operands("C9")),
    _row("collective_broadcast", "collective-movement", _results_as_operands("C3")),
    _row("collective_permute", "collective-movement", _results_as_operands("C5")),
    _row("get_dimension_size", "query", **_PER_AXIS, **_PREDICATE),
    # from nothing
    _row("iota", "generation"),
    _row("dynamic_iota", "generation", element_operands=_first(0)),
    # no float form
    _row("bitcast_convert", "storage", **_PER_AXIS),
    _row("constant", "storage", **_PER_AXIS),
    _row("case", "control", element_operands=_first(0), **_PER_AXIS),
    _row("if", "control", element_operands=_first(0), **_PER_AXIS),
    _row("async_start", "control", quantized_results=False),
    _row("async_done", "control"),
    _row("optimization_barrier", "control", _results_as_operands("C1")),
    _row("infeed", "transfer", element_operands=_first(0), **_PER_AXIS),
    _row("outfeed", "transfer", **_PER_AXIS, **_PREDICATE),
    _row("recv", "transfer", element_operands=_first(0), **_PER_AXIS),
    _row("send", "transfer", **_PER_AXIS, **_PREDICATE),
    _row("uniform_dequantize", "cast", _dequantize, **_PER_AXIS, **_PREDICATE),
    _row("uniform_quantize", "cast", _quantize, **_PER_AXIS),
)

OPERATIONS: dict[str, QuantizedOp] = {row.name: row for row in _ROWS}
"""The operations that admit quantized types, by name."""

DEPRECATED_MOVEMENT = {
    "stablehlo.broadcast": 1,
    "stablehlo.real_dynamic_slice": 1,
    "stablehlo.torch_index_select": 1,
}
"""Operations that the specification no longer has: how many of the first operands are moved."""


def of_category(*categories: Category) -> tuple[str, ...]:
    """The names of the operations of some categories, in the order of the table."""
    return tuple(name for name, row in OPERATIONS.items() if row.category in categories)
