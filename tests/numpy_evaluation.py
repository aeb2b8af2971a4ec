"""Evaluates lowered programs in NumPy: loop nests, and the scalar operations in their bodies.

It tests emitted operations without a compiler. It knows ``linalg.generic``, ``arith``, and the
few operations around them that the lowering of casts and block contractions leaves; another one is
a `KeyError`. Integers wrap. Undefined results of MLIR (a conversion out of range, a shift
beyond the width) are `POISON`, so that a result which depends on it is wrong.

A device may divide less exactly than NumPy: `evaluate` takes the division as a function.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from subquant.core._mlir import ir
from subquant.dialects.dense import array_of_dense
from subquant.dialects.quant import element_type

POISON = 0x5A5A5A5A
"""Result of undefined operations."""
Array = np.ndarray[Any, Any]
Division = Callable[[Array, Array], Array]

_FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
_INTEGER_PREDICATES = (
    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
)  # fmt: skip
_UNSIGNED_FIRST = 6  # the predicates of unsigned integers: lt, le, gt, ge
_FLOAT_PREDICATES = {
    1: operator.eq, 2: operator.gt, 3: operator.ge, 4: operator.lt, 5: operator.le, 6: operator.ne,
}  # fmt: skip
_UNORDERED = 14
_CASTS = ("quant.scast", "subquant.scast", "tensor.cast")


def evaluate(
    module: ir.Module, name: str, arguments: Sequence[Array], divide: Division = np.divide
) -> list[Array]:
    """Evaluate a function of one block; arguments and results have the dtypes of their types."""
    for op in module.body.operations:
        function = op.operation
        if function.attributes["sym_name"].value == name:
            block = function.regions[0].blocks[0]
            values = {
                argument: _read(array, argument.type)
                for argument, array in zip(block.arguments, arguments, strict=True)
            }
            with np.errstate(all="ignore"):
                return _Evaluation(values, divide).block(block)
    raise KeyError(name)


def _read(array: Array, type_: ir.Type) -> Array:
    element = element_type(type_)
    return array.astype(np.int64) if isinstance(element, ir.IntegerType) else np.asarray(array)


class _Evaluation:
    """Values of evaluated operations; integers are int64, wrapped to their width."""

    def __init__(self, values: dict[Any, Any], divide: Division) -> None:
        self.values = values
        self.divide = divide
        self.place: list[Any] = []

    def block(self, block: Any) -> list[Any]:
        for op in block.operations:
            operation = op.operation
            operands = [self.values[operand] for operand in operation.operands]
            if operation.name in ("func.return", "linalg.yield"):
                return operands
            if operation.name == "cf.assert":
                assert operands[0], operation.attributes["msg"].value
                continue
            result = self.operation(operation, operands)
            self.values[operation.results[0]] = result
        raise AssertionError("a block without an end")

    def operation(self, op: Any, operands: list[Any]) -> Any:
        name = op.name
        if name in _CASTS:
            return operands[0]
        dialect, _, short = name.partition(".")
        if name == "linalg.generic":
            return self.generic(op, operands)
        if name == "linalg.fill":
            return np.full_like(operands[1], operands[0])
        if name == "linalg.index":
            return self.place[op.attributes["dim"].value]
        if dialect in ("tensor", "stablehlo") or short == "constant":
            return _TENSORS[short](op, *operands)
        if short in ("cmpi", "cmpf"):
            return self.compare(op, *operands)
        if short == "divf":
            return np.asarray(self.divide(*operands))
        return _rounded(_SCALARS[short](op, *operands), op.results[0].type)

    def compare(self, op: Any, left: Array, right: Array) -> Array:
        predicate = op.attributes["predicate"].value
        if op.name == "arith.cmpf":
            if predicate == _UNORDERED:
                return np.asarray(np.isnan(left) | np.isnan(right), np.int64)
            return np.asarray(_FLOAT_PREDICATES[predicate](left, right), np.int64)
        if predicate >= _UNSIGNED_FIRST:
            width = _width(op.operands[0].type)
            left, right = _unsigned(left, width), _unsigned(right, width)
            predicate -= 4
        return np.asarray(_INTEGER_PREDICATES[predicate](left, right), np.int64)

    def generic(self, op: Any, operands: list[Any]) -> Array:
        """All parallel loops at once, the reductions one step after the other."""
        maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
        kinds = ["reduction" in str(kind) for kind in op.attributes["iterator_types"]]
        extents: dict[int, int] = {}
        for map_, operand in zip(maps, operands, strict=True):
            for expression, extent in zip(map_.results, np.shape(operand), strict=True):
                if isinstance(expression, ir.AffineDimExpr):
                    extents[expression.position] = extent
        loops = [extents[number] for number in range(len(kinds))]
        parallel = [number for number, reduces in enumerate(kinds) if not reduces]
        grids = np.meshgrid(*[np.arange(loops[n]) for n in parallel], indexing="ij", sparse=False)
        total = np.array(operands[-1])
        for step in np.ndindex(*[n if kinds[k] else 1 for k, n in enumerate(loops)]):
            position: list[Any] = list(step)
            for number, grid in zip(parallel, grids, strict=True):
                position[number] = grid
            block = op.regions[0].blocks[0]
            for argument, map_, array in zip(
                block.arguments, maps, [*operands[:-1], total], strict=True
            ):
                index = tuple(_index(expression, position) for expression in map_.results)
                self.values[argument] = np.asarray(array[index] if index else array)
            self.place = position
            (value,) = self.block(block)
            index = tuple(_index(expression, position) for expression in maps[-1].results)
            if index:
                total[index] = value
            else:
                total = np.asarray(value)
        return total


_AFFINE = {
    ir.AffineAddExpr: operator.add, ir.AffineMulExpr: operator.mul,
    ir.AffineFloorDivExpr: operator.floordiv, ir.AffineModExpr: operator.mod,
}  # fmt: skip


def _index(expression: Any, position: Sequence[Any]) -> Any:
    if isinstance(expression, ir.AffineDimExpr):
        return position[expression.position]
    if isinstance(expression, ir.AffineConstantExpr):
        return expression.value
    function = _AFFINE[type(expression)]
    return function(_index(expression.lhs, position), _index(expression.rhs, position))


# -- numbers --------------------------------------------------------------------------------------


def _width(type_: ir.Type) -> int:
    element = element_type(type_)
    return int(element.width) if isinstance(element, ir.IntegerType) else 64


def _unsigned(value: Any, width: int) -> Array:
    """The bits as a number that is not negative (Python's integers, which never wrap)."""
    return np.asarray(np.asarray(value).astype(object) & ((1 << width) - 1))


def _rounded(value: Any, type_: ir.Type) -> Array:
    """The value in its type: an integer wraps, a float is rounded."""
    element = element_type(type_)
    if not isinstance(element, ir.IntegerType):
        if isinstance(element, ir.IndexType):
            return np.asarray(value).astype(np.int64)
        return np.asarray(value).astype(_FLOATS[str(element)])
    half = (1 << element.width) >> 1 if element.width > 1 else 0
    bits = np.asarray(value).astype(object) + half & (1 << element.width) - 1
    return np.asarray(bits - half, np.int64)


def _integers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Evaluate with Python's integers, which never wrap."""
    return lambda op, *values: function(*(np.asarray(value).astype(object) for value in values))


def _unsigned_operands(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda op, *values: function(
        *(_unsigned(v, _width(o.type)) for v, o in zip(values, op.operands, strict=True))
    )


def _values(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda op, *values: function(*values)


def _shift(function: Callable[..., Any], unsigned: bool = False) -> Callable[..., Any]:
    def applied(op: Any, value: Any, amount: Any) -> Any:
        width = _width(op.operands[0].type)
        value = _unsigned(value, width) if unsigned else np.asarray(value).astype(object)
        defined = (amount >= 0) & (amount < width)
        return np.where(defined, function(value, np.where(defined, amount, 0)), POISON)

    return applied


def _to_integer(unsigned: bool) -> Callable[..., Any]:
    def applied(op: Any, value: Any) -> Any:
        bits = _width(op.results[0].type)
        low, high = (0, 2**bits) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        whole = np.trunc(value.astype(np.float64))
        fits = (whole >= low) & (whole < high)
        return np.where(fits, np.where(fits, whole, 0).astype(np.int64), POISON)

    return applied


def _bitcast(op: Any, value: Any) -> Any:
    source, target = (element_type(v.type) for v in (op.operands[0], op.results[0]))
    if isinstance(target, ir.IntegerType):
        return np.ascontiguousarray(value).view(f"i{target.width // 8}").reshape(value.shape)
    bits = np.ascontiguousarray(np.asarray(value).astype(f"i{source.width // 8}"))
    return bits.view(_FLOATS[str(target)]).reshape(np.shape(value))


_SCALARS: dict[str, Callable[..., Any]] = {
    "addf": _values(operator.add),
    "subf": _values(operator.sub),
    "mulf": _values(operator.mul),
    "roundeven": _values(np.rint),
    "addi": _integers(operator.add),
    "subi": _integers(operator.sub),
    "muli": _integers(operator.mul),
    "divui": _unsigned_operands(operator.floordiv),
    "ceildivsi": _integers(lambda value, by: -(-value // by)),
    "andi": _integers(operator.and_),
    "ori": _integers(operator.or_),
    "xori": _integers(operator.xor),
    "minsi": _integers(np.minimum),
    "maxsi": _integers(np.maximum),
    "minui": _unsigned_operands(np.minimum),
    "maxui": _unsigned_operands(np.maximum),
    "shli": _shift(operator.lshift),
    "shrsi": _shift(operator.rshift),
    "shrui": _shift(operator.rshift, unsigned=True),
    **dict.fromkeys(
        ("extsi", "trunci", "extf", "truncf", "sitofp", "index_cast"), _values(np.asarray)
    ),
    **dict.fromkeys(("extui", "uitofp"), _unsigned_operands(np.asarray)),
    "fptosi": _to_integer(unsigned=False),
    "fptoui": _to_integer(unsigned=True),
    "bitcast": _bitcast,
    "select": lambda op, condition, yes, no: np.where(np.asarray(condition, bool), yes, no),
}

# -- tensors --------------------------------------------------------------------------------------


def _constant(op: Any) -> Any:
    attribute = op.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr):
        return _read(array_of_dense(attribute).reshape(op.results[0].type.shape), attribute.type)
    element = op.results[0].type
    if isinstance(element, ir.IntegerType | ir.IndexType):
        return np.int64(attribute.value)
    return np.asarray(attribute.value, _FLOATS[str(element)])


def _shape(static: Iterable[int], sizes: Sequence[Any]) -> list[int]:
    """The extents; negative ones are those of the operands, in order."""
    arguments = iter(sizes)
    return [int(next(arguments)) if extent < 0 else int(extent) for extent in static]


def _empty(op: Any, *sizes: Any) -> Array:
    type_ = op.results[0].type
    element = element_type(type_)
    dtype = np.int64 if isinstance(element, ir.IntegerType) else _FLOATS[str(element)]
    return np.full(_shape(type_.shape, sizes), POISON, dtype)


def _expand(op: Any, value: Array, *sizes: Any) -> Array:
    return value.reshape(_shape(op.attributes["static_output_shape"], sizes))


def _collapse(op: Any, value: Array) -> Array:
    groups = [[n.value for n in group] for group in op.attributes["reassociation"]]
    return value.reshape([int(np.prod([value.shape[n] for n in group])) for group in groups])


def _pad(op: Any, value: Array, filling: Any) -> Array:
    low, high = (list(op.attributes[f"edge_padding_{side}"]) for side in ("low", "high"))
    assert not any(op.attributes["interior_padding"])
    added = [(max(a, 0), max(b, 0)) for a, b in zip(low, high, strict=True)]
    padded = np.pad(value, added, constant_values=filling)
    edges = zip(low, high, padded.shape, strict=True)
    return padded[tuple(slice(max(-a, 0), n - max(-b, 0)) for a, b, n in edges)]


_TENSORS: dict[str, Callable[..., Any]] = {
    "constant": _constant,
    "empty": _empty,
    "dim": lambda op, value, axis: np.int64(value.shape[int(axis)]),
    "expand_shape": _expand,
    "collapse_shape": _collapse,
    "reshape": lambda op, value: value.reshape([int(n) for n in op.results[0].type.shape]),
    "convert": lambda op, value: _rounded(value, op.results[0].type),
    "from_elements": lambda op, *values: np.array(values).reshape(op.results[0].type.shape),
    "extract": lambda op, value, *index: value[tuple(index)],
    "pad": _pad,
}
