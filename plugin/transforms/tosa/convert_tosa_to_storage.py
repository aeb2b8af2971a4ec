"""``convert-tosa-to-storage``: give TOSA's values their signless storage types.

TOSA's operations are defined on integers, with zero points as operands: a quantized type adds the
values that the integers express, and an unsigned type (``ui8``) how ``tosa.rescale`` reads them.
Upstream's lowerings accept neither. This pass gives TOSA's values the signless storage type, with
``quant.scast`` at operations of other dialects, and refuses an operation whose result would
contradict its types:

* operations that move data, or compare (``clamp``, ``max_pool2d``), need one type, per-tensor if
  elements move; those that compare need signed storage;
* operations with zero points need those of their types, and signed storage; ``tosa.rescale`` takes
  unsigned storage if its flags agree;
* ``tosa.table`` is a map of storage values;
* every other operation would compute with storage values instead of expressed values.

Before::

    func.func @f(%x: tensor<4x!quant.uniform<i8:f32, 0.5>>) -> tensor<4xui8> {
      %0 = tosa.rescale %x, ... {output_unsigned = true, ...}
             : (tensor<4x!quant.uniform<i8:f32, 0.5>>, ...) -> tensor<4xui8>

After::

    func.func @f(%x: tensor<4x!quant.uniform<i8:f32, 0.5>>) -> tensor<4xi8>
        attributes {subquant.function_type = (...) -> tensor<4xui8>} {
      %s = quant.scast %x : tensor<4x!quant.uniform<i8:f32, 0.5>> to tensor<4xi8>
      %0 = tosa.rescale %s, ... : (tensor<4xi8>, ...) -> tensor<4xi8>

Source: TOSA specification, "Quantization" and the operations' argument tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.dense import array_of_dense, dense_of_array
from ...dialects.quant import element_type, is_quantized, parameters_of, storage_mlir_type
from ...emit.operation import number_of, with_element
from ...errors import Remark, UnsupportedError
from ...numerics.parameters import StorageType
from ..base import (
    UNCHANGED,
    ModulePass,
    TypePredicate,
    convert_signature,
    has_type,
    producer_named,
    walk,
)

_CASTS = ("builtin.unrealized_conversion_cast",)
_MOVES = frozenset(
    f"tosa.{name}"
    for name in (
        *("concat", "cond_if", "const", "gather", "identity", "reshape", "reverse"),
        *("scatter", "select", "slice", "tile", "transpose", "variable", "variable_read"),
        *("variable_write", "while_loop", "yield"),
    )
)
_COMPARES = frozenset(
    f"tosa.{name}"
    for name in (
        *("argmax", "clamp", "equal", "greater", "greater_equal", "max_pool2d", "maximum"),
        *("minimum", "reduce_max", "reduce_min"),
    )
)
_ELEMENTWISE = frozenset(
    f"tosa.{name}"
    for name in (
        *("clamp", "const", "equal", "greater", "greater_equal", "identity", "maximum"),
        *("minimum", "select", "variable", "variable_read", "variable_write"),
    )
)
"""Operations that accept a per-axis type, because no element moves."""
_ZERO_POINTS: dict[str, dict[int, int]] = {
    "tosa.avg_pool2d": {1: 0, 2: -1},
    "tosa.conv2d": {3: 0, 4: 1},
    "tosa.conv3d": {3: 0, 4: 1},
    "tosa.depthwise_conv2d": {3: 0, 4: 1},
    "tosa.matmul": {2: 0, 3: 1},
    "tosa.negate": {1: 0, 2: -1},
    "tosa.rescale": {3: 0, 4: -1},
    "tosa.transpose_conv2d": {3: 0, 4: 1},
}
"""Numbers of the operands that are zero points, and of their operands (-1: the result)."""
_FILLS_STORAGE = ("tosa.negate", "tosa.rescale", "tosa.table")
"""Operations whose results may exceed a narrowed storage range."""
_CARRIES_UNSIGNED = ("builtin.", "cf.", "func.", "scf.", "tosa.")


@dataclass(frozen=True)
class ConvertTosaToStorage(ModulePass):
    """Give the values of TOSA operations their signless storage type."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Convert `module`, if it has an operation of TOSA.

        Raises:
            UnsupportedError: an operation whose result would contradict its types.
        """
        operations = walk(module)
        tosa = [op for op in operations if op.name.startswith("tosa.") or op.name in _CASTS]
        if not any(op.name.startswith("tosa.") for op in tosa):
            return UNCHANGED
        special = TypePredicate(_is_special)
        for op in tosa:
            if has_type(op, special):
                _check(op)
        for op in tosa:
            with op.location:
                if op.name == "tosa.variable":
                    _convert_variable(op)
                _convert_quantized(op)
        _convert_unsigned(operations)
        return None


def _is_special(type_: ir.Type) -> bool:
    return is_quantized(type_) or _is_unsigned(type_)


def _is_unsigned(type_: ir.Type) -> bool:
    element = element_type(type_)
    return isinstance(element, ir.IntegerType) and not element.is_signless


def _check(op: Operation) -> None:
    """Refuse operations that compute with storage as if it were the value."""
    values = [*op.operands, *op.results]
    all_parameters = [parameters_of(value.type, op) for value in values]
    if op.name in _CASTS or op.name == "tosa.table":
        return
    if op.name in _MOVES or op.name in _COMPARES:
        _check_same(op, [value.type for value in values if is_quantized(value.type)])
    if op.name in _COMPARES or (op.name in _ZERO_POINTS and op.name != "tosa.rescale"):
        for value, parameters in zip(values, all_parameters, strict=True):
            if _is_unsigned(value.type) or (parameters and not parameters.storage.signed):
                raise UnsupportedError(
                    f"computes with the unsigned storage of '{value.type}', and TOSA's integers "
                    "are signed; rescale it to signed storage first (input_unsigned)",
                    op,
                )
    if op.name in _ZERO_POINTS:
        _check_zero_points(op)
    elif op.name not in _MOVES and op.name not in _COMPARES:
        type_ = next(value.type for value in values if _is_special(value.type))
        raise UnsupportedError(
            f"computes with the storage of '{type_}' as if it were the value it stands for; "
            "rescale its operands to i32 first (tosa.rescale)",
            op,
        )


def _check_same(op: Operation, types: list[ir.Type]) -> None:
    """Refuse operations that move elements away from their scales, or have unlike types."""
    for type_ in types:
        parameters = parameters_of(type_, op)
        assert parameters is not None  # callers pass quantized types only
        if parameters.granularity != "per-tensor" and op.name not in _ELEMENTWISE:
            raise UnsupportedError(
                f"may move elements to other blocks of a {parameters.granularity} type, whose "
                "scales stay where they are; use a per-tensor type",
                op,
            )
        if element_type(type_) != element_type(types[0]):  # upstream's verifier misses some
            raise UnsupportedError(
                f"has values of different quantized types, '{element_type(types[0])}' and "
                f"'{element_type(type_)}'; rescale one of them first (tosa.rescale)",
                op,
            )


def _check_zero_points(op: Operation) -> None:
    """Refuse zero points and flags for unsigned storage that the quantized types do not have."""
    for position, of in _ZERO_POINTS[op.name].items():
        value = op.results[0] if of < 0 else op.operands[of]
        side = "output" if of < 0 else "input"
        parameters = parameters_of(value.type, op)
        unsigned = _is_unsigned(value.type) or bool(parameters and not parameters.storage.signed)
        if op.name == "tosa.rescale" and _is_special(value.type):
            flag = op.attributes[f"{side}_unsigned"].value
            if flag != unsigned:
                raise UnsupportedError(
                    f"says {side}_unsigned = {str(flag).lower()}, and the storage of "
                    f"'{value.type}' is {'un' if unsigned else ''}signed; make them agree",
                    op,
                )
        if parameters is None:
            continue
        operand = _zero_point(op.operands[position], unsigned)
        expected = np.unique(parameters.zero_points)
        if operand is None or expected.size != 1 or int(expected[0]) != operand:
            raise UnsupportedError(
                f"has the zero point {'of a variable' if operand is None else operand} for a value "
                f"of type '{value.type}'; expected the constant {', '.join(map(str, expected))}",
                op,
            )


def _zero_point(value: Value, unsigned: bool) -> int | None:
    """The constant of a zero point, as unsigned or signed storage; None if it is computed."""
    producer = producer_named(value, "tosa.const")
    if producer is None:
        return None
    number = int(array_of_dense(producer.attributes["values"])[0])
    return number & ((1 << element_type(value.type).width) - 1) if unsigned else number


def _convert_quantized(op: Operation) -> None:
    for number, operand in enumerate(op.operands):
        if is_quantized(operand.type):
            with ir.InsertionPoint(op):
                op.operands[number] = _storage_of(operand, op)
    for argument in (a for region in op.regions for block in region for a in block.arguments):
        if is_quantized(argument.type):
            with ir.InsertionPoint.at_block_begin(argument.owner):
                _convert_value(argument, op)
    for result in op.results:
        if is_quantized(result.type):
            with ir.InsertionPoint.after(op):
                _convert_value(result, op)


def _storage_of(value: Value, op: Operation) -> Value:
    type_, cast = _storage_type(value.type, op), producer_named(value, "quant.scast")
    if cast is not None and cast.operands[0].type == type_:
        return cast.operands[0]
    return emit.value("quant.scast", [value], type_)


def _convert_value(value: Value, op: Operation) -> None:
    """Give a value its storage type; its users read a cast of it until they are converted."""
    old, uses = value.type, [(use.owner, use.operand_number) for use in value.uses]
    value.set_type(_storage_type(old, op))
    if op.name in _FILLS_STORAGE:
        value = _clamp(value, old, op)
    if uses:
        quantized = emit.value("quant.scast", [value], old)
        for owner, number in uses:
            owner.operands[number] = quantized


def _clamp(value: Value, type_: ir.Type, op: Operation) -> Value:
    """Clamp a value to the storage range of its type, if that is narrower than its integers."""
    parameters = parameters_of(type_, op)
    assert parameters is not None  # callers pass quantized types only
    storage = parameters.storage
    if storage == StorageType(storage.width, storage.signed):
        return value
    if not storage.signed:
        raise UnsupportedError(
            f"has a result with the unsigned storage range {storage.minimum}:{storage.maximum}, "
            "which TOSA cannot clamp to; use the whole range, or a signed one",
            op,
        )
    element = element_type(value.type)
    bounds = {"min_val": storage.minimum, "max_val": storage.maximum}
    attributes = {name: number_of(element, bound) for name, bound in bounds.items()}
    return emit.value("tosa.clamp", [value], value.type, attributes)


def _storage_type(type_: ir.Type, op: Operation) -> ir.Type:
    parameters = parameters_of(type_, op)
    assert parameters is not None  # callers pass quantized types only
    if not isinstance(type_, ir.RankedTensorType):
        raise UnsupportedError(f"has the type '{type_}'; expected a ranked tensor", op)
    return with_element(type_, storage_mlir_type(parameters.storage))


def _convert_variable(op: Operation) -> None:
    """Convert a variable; without an initial value it starts at its zero point."""
    type_ = op.attributes["type"].value
    parameters = parameters_of(type_, op)
    if parameters is None:
        return
    storage = storage_mlir_type(parameters.storage)
    op.attributes["type"] = ir.TypeAttr.get(storage)
    zero_points = np.unique(parameters.zero_points)
    if "initial_value" not in op.attributes and zero_points.size == 1:
        shape = [int(size) for size in np.array(op.attributes["var_shape"]).reshape(-1)]
        if all(size >= 0 for size in shape):
            values = np.full(shape, int(zero_points[0]))
            op.attributes["initial_value"] = dense_of_array(values, storage)


def _convert_unsigned(operations: list[Operation]) -> None:
    unsigned = TypePredicate(_is_unsigned)
    for op in operations:
        _convert_unsigned_attributes(op)
        for value in unsigned.values_of(op):
            _check_carries(op, value.type)
            for use in value.uses:
                _check_carries(use.owner.operation, value.type)
    for op in operations:
        with op.location:
            for value in unsigned.values_of(op):
                value.set_type(_signless(value.type))


def _check_carries(op: Operation, type_: ir.Type) -> None:
    """Refuse other operations with values that TOSA operations hold as signless integers."""
    if not op.name.startswith(_CARRIES_UNSIGNED):
        raise UnsupportedError(
            f"has a value of type '{type_}' in a module with TOSA operations, which hold it as a "
            "signless integer; put the two in modules of their own",
            op,
        )


def _convert_unsigned_attributes(op: Operation) -> None:
    if op.name == "func.func":
        convert_signature(op, lambda type_: _signless(type_) if _is_unsigned(type_) else type_)
    elif op.name == "tosa.variable" and _is_unsigned(op.attributes["type"].value):
        op.attributes["type"] = ir.TypeAttr.get(_signless(op.attributes["type"].value))
    name = {"tosa.const": "values", "tosa.variable": "initial_value"}.get(op.name)
    if name and name in op.attributes and _is_unsigned(op.attributes[name].type):
        dense = op.attributes[name]
        with op.location:
            signless = _signless(element_type(dense.type))
            op.attributes[name] = dense_of_array(array_of_dense(dense), signless)


def _signless(type_: ir.Type) -> ir.Type:
    return with_element(type_, ir.IntegerType.get_signless(element_type(type_).width))
