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

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..core._mlir import ir
from ..errors import UnsupportedError
from .quant import is_quantized
from .quantized_ops import NO_FLOAT_FORM, Category, Instance, QuantizedOp, Rule, Value
from .stablehlo_rules import (
    add_rule,
    broadcast_rule,
    cast_rule,
    compare_bodies,
    convolution_rule,
    dot_general_rule,
    map_bodies,
    moved_axis,
    promotable,
    reduce_bodies,
    reduce_pair_bodies,
    reshape_rule,
    results_match_operands,
    same_baseline_type,
    same_computation,
    same_element_type,
    select_and_scatter_bodies,
    transpose_rule,
)

DEQUANTIZE = "stablehlo.uniform_dequantize"
QUANTIZE = "stablehlo.uniform_quantize"
STORAGE_WIDTHS = (2, 4, 8, 16, 32)
"""Storage bits that StableHLO's types and ``stablehlo.constant`` support."""

_ANY_VALUES = frozenset(
    f"stablehlo.{name}"
    for name in ("composite", "custom_call", "get_tuple_element", "tuple", "while")
)
"""Operations whose operands the specification calls values, of any type."""


def why_illegal(
    name: str,
    operands: Sequence[ir.Type],
    results: Sequence[ir.Type],
    attributes: Mapping[str, ir.Attribute],
) -> str | None:
    """Say why the specification forbids an operation with these types, as far as quantization goes.

    Args:
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
        return f"it {NO_FLOAT_FORM['control']}"
    if name == "stablehlo.dot":
        return "it is deprecated; stablehlo-legalize-deprecated-ops writes it as dot_general"
    return "the specification gives it no quantized types"


def _broken_rules(instance: Instance) -> Iterator[str]:
    """Check the types one by one, then with each other."""
    op = instance.op
    for value in (*instance.operands, *instance.results):
        if is_quantized(value.type):
            yield from _why_not_admitted(value, instance)
    for position in op.per_tensor_operands:
        if instance.operands[position].is_per_axis:
            yield (
                f"operand {position} must be quantized per tensor, got "
                f"{instance.operands[position]}"
            )
    for rule in op.rules:
        yield from rule(instance)


def _why_not_admitted(value: Value, instance: Instance) -> Iterator[str]:
    """Check one quantized type (specification, "Types", and the operation's own table).

    Storage types are integers of 2, 4, 8, 16, 32 or 64 bits, expressed types are floats, and there
    are per-tensor and per-axis types only. A per-axis type is quantized along a dimension of its
    tensor (C12 of quantized tensor types) and has a scale for each index of it (C13).
    """
    try:
        parameters = value.parameters
    except UnsupportedError as error:
        yield f"{value.name}: {error.message}"
        return
    if parameters is None or not isinstance(value.type, ir.RankedTensorType):
        yield f"{value.name} must be a ranked tensor, got {value.type}"
        return
    if parameters.granularity == "sub-channel":
        yield (
            f"{value.name} has a sub-channel type, which no StableHLO operation accepts; "
            "normalize-quant-types writes one that is per-axis or per-tensor as such"
        )
    if parameters.storage.width not in STORAGE_WIDTHS:
        yield f"{value.name} must have a storage type of 2, 4, 8, 16 or 32 bits, got {value}"
    if value not in instance.carriers:
        yield f"{value.name} must not be quantized, got {value}"
    if value.axis is None:
        return
    if not instance.op.per_axis:
        yield f"{value.name} must be quantized per tensor, got {value}"
    if value.axis >= value.type.rank:
        yield f"{value.name} must be quantized along one of its dimensions, got {value} (C12)"
    if value.extent(value.axis) not in (None, len(parameters.scales)):
        yield f"{value.name} must have a scale for each index of its axis, got {value.type} (C13)"


# -- the table ------------------------------------------------------------------------------------


def _first(count: int) -> Callable[[int], Sequence[int]]:
    return lambda operands: range(min(count, operands))


def _but_first(operands: int) -> Sequence[int]:
    return range(1, operands)


def _except_indices(operands: int) -> Sequence[int]:
    """Inputs and updates of ``scatter``, with the indices between them."""
    return [n for n in range(operands) if n != operands // 2]


def _row(name: str, category: Category, *rules: Rule, **fields: Any) -> QuantizedOp:
    return QuantizedOp(f"stablehlo.{name}", category, rules=rules, **fields)


_PER_AXIS: dict[str, Any] = {"per_axis": True}
_WEIGHTS: dict[str, Any] = {"per_axis": True, "per_tensor_operands": (0,)}
_PREDICATE: dict[str, Any] = {"quantized_results": False}
_NO_OPERAND: dict[str, Any] = {"element_operands": _first(0)}
_FIRST: dict[str, Any] = {"element_operands": _first(1)}
_FIRST_TWO: dict[str, Any] = {"element_operands": _first(2)}

_PERIODIC = ("cosine", "sine", "tan")
_ROWS = (
    # one operand, element by element
    _row("abs", "elementwise-unary", same_baseline_type("C2")),
    *(
        _row(name, "elementwise-unary", same_baseline_type(), is_periodic=name in _PERIODIC)
        for name in (
            *("cbrt", "ceil", "cosine", "exponential", "exponential_minus_one", "floor", "log"),
            *("log_plus_one", "logistic", "negate", "reduce_precision", "round_nearest_afz"),
            *("round_nearest_even", "rsqrt", "sign", "sine", "sqrt", "tan", "tanh"),
        )
    ),
    # two and three operands, element by element
    _row("add", "elementwise-binary", add_rule, **_PER_AXIS),
    *(
        _row(name, "elementwise-binary", same_baseline_type())
        for name in (
            *("atan2", "divide", "maximum", "minimum", "multiply", "power", "remainder"),
            "subtract",
        )
    ),
    _row("clamp", "elementwise-ternary", same_baseline_type("C3, C4")),
    _row("select", "elementwise-ternary", same_baseline_type("C2"), element_operands=_but_first),
    _row("compare", "comparison", same_baseline_type(), **_PREDICATE),
    _row("is_finite", "comparison", **_PREDICATE),
    # contractions
    _row("dot_general", "contraction", dot_general_rule, **_WEIGHTS),
    _row("convolution", "contraction", convolution_rule, reads="window", **_WEIGHTS),
    _row("dynamic_conv", "contraction", convolution_rule, reads="window", **_FIRST_TWO, **_WEIGHTS),
    # several results, or whole matrices
    _row("batch_norm_grad", "normalization", same_baseline_type("C2")),
    _row("batch_norm_inference", "normalization", same_baseline_type("C2")),
    _row("batch_norm_training", "normalization", same_baseline_type("C2")),
    _row("cholesky", "linear-algebra", same_baseline_type()),
    _row("triangular_solve", "linear-algebra", same_baseline_type("C1, C4")),
    # functions on elements
    _row("map", "map", bodies=map_bodies),
    _row("reduce", "reduction", promotable("C2", "C6"), bodies=reduce_bodies),
    _row(
        "reduce_window", "reduction", promotable("C3", "C13"), bodies=reduce_bodies, reads="window"
    ),
    _row(
        "scatter",
        "reduction",
        promotable("C6", "C23"),
        element_operands=_except_indices,
        bodies=reduce_bodies,
    ),
    _row(
        "select_and_scatter",
        "reduction",
        promotable("C1, C3", "C10"),
        bodies=select_and_scatter_bodies,
        reads="window",
    ),
    _row(
        "all_reduce",
        "reduction",
        promotable("C5", "C5"),
        same_computation,
        bodies=reduce_pair_bodies,
    ),
    _row("collective_reduce", "reduction", promotable("C4", "C4"), bodies=reduce_pair_bodies),
    _row("reduce_scatter", "reduction", promotable("C7", "C7"), bodies=reduce_pair_bodies),
    # places of elements
    _row("broadcast_in_dim", "data-movement", broadcast_rule, **_PER_AXIS),
    _row("dynamic_broadcast_in_dim", "data-movement", broadcast_rule, **_FIRST, **_PER_AXIS),
    _row("concatenate", "data-movement", same_element_type("C1, C5")),
    _row("dynamic_gather", "data-movement", same_element_type("C14"), reads="index", **_FIRST),
    _row("dynamic_pad", "data-movement", same_element_type(), **_FIRST_TWO),
    _row("dynamic_reshape", "data-movement", moved_axis, reshape_rule, **_FIRST, **_PER_AXIS),
    _row("dynamic_slice", "data-movement", same_element_type(), **_FIRST),
    _row("dynamic_update_slice", "data-movement", same_element_type("C1, C2"), **_FIRST_TWO),
    _row("gather", "data-movement", same_element_type("C23"), reads="index", **_FIRST),
    _row("pad", "data-movement", same_element_type()),
    _row("reshape", "data-movement", moved_axis, reshape_rule, **_PER_AXIS),
    _row("reverse", "data-movement", same_element_type()),
    _row("slice", "data-movement", same_element_type()),
    _row("sort", "data-movement", results_match_operands("C2"), bodies=compare_bodies),
    _row("transpose", "data-movement", moved_axis, transpose_rule, **_PER_AXIS),
    _row("all_gather", "collective-movement", results_match_operands("C6")),
    _row("all_to_all", "collective-movement", results_match_operands("C9")),
    _row("collective_broadcast", "collective-movement", results_match_operands("C3")),
    _row("collective_permute", "collective-movement", results_match_operands("C5")),
    _row("get_dimension_size", "query", **_PER_AXIS, **_PREDICATE),
    # from nothing
    _row("iota", "generation"),
    _row("dynamic_iota", "generation", **_NO_OPERAND),
    # no float form
    _row("bitcast_convert", "storage", **_PER_AXIS),
    _row("constant", "storage", **_PER_AXIS),
    _row("case", "control", **_NO_OPERAND, **_PER_AXIS),
    _row("if", "control", **_NO_OPERAND, **_PER_AXIS),
    _row("async_start", "control", quantized_results=False),
    _row("async_done", "control"),
    _row("optimization_barrier", "control", results_match_operands("C1")),
    _row("infeed", "transfer", **_NO_OPERAND, **_PER_AXIS),
    _row("outfeed", "transfer", **_PER_AXIS, **_PREDICATE),
    _row("recv", "transfer", **_NO_OPERAND, **_PER_AXIS),
    _row("send", "transfer", **_PER_AXIS, **_PREDICATE),
    _row("uniform_dequantize", "cast", cast_rule("operand"), **_PER_AXIS, **_PREDICATE),
    _row("uniform_quantize", "cast", cast_rule("result"), **_PER_AXIS),
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


CONTRACTIONS = (*of_category("contraction"), "stablehlo.dot")
"""Contractions, with the deprecated `dot`."""
