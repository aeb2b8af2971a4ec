"""``convert-quantized-to-storage``: replace quantized values by the integers that store them.

After the casts are lowered, quantized types remain on ``scast`` operations, on function
signatures, calls and branches, and on operations that only move data. This pass gives all of them
the storage type, removes the ``scast`` operations, and records each public function's first
signature in the attribute ``subquant.function_type``, by which the runtime quantizes and
dequantizes at the boundary. An operation that would compute with the integers is refused: another
pass has to lower its meaning for the expressed values.

Before::

    func.func @f(%q: tensor<4x!quant.uniform<i8:f32, 2.0>>) -> tensor<4xi8> {
      %s = quant.scast %q : tensor<4x!quant.uniform<i8:f32, 2.0>> to tensor<4xi8>
      return %s : tensor<4xi8>
    }

After::

    func.func @f(%q: tensor<4xi8>) -> tensor<4xi8>
        attributes {subquant.function_type = (tensor<4x!quant.uniform<i8:f32, 2.0>>) -> ...} {
      return %q : tensor<4xi8>
    }
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core._mlir import ir
from ...dialects.quant import SCASTS, is_quantized, parameters_of, storage_mlir_type
from ...dialects.stablehlo import DEPRECATED_MOVEMENT, of_category
from ...emit.operation import with_element
from ...errors import Remark, UnsupportedError
from ..base import (
    UNCHANGED,
    ModulePass,
    TypePredicate,
    convert_future,
    convert_signature,
    named,
    operation_of,
    walk,
)

_MOVES_DATA = frozenset(
    (
        *of_category(
            "collective-movement",
            "control",
            "data-movement",
            "map",
            "query",
            "reduction",
            "storage",
            "transfer",
        ),
        *DEPRECATED_MOVEMENT,
        *("arith.select", "builtin.module", "cf.br", "cf.cond_br", "cf.switch", "func.call"),
        *("func.func", "func.return", "scf.condition", "scf.execute_region", "scf.for"),
        *("scf.forall", "scf.if", "scf.index_switch", "scf.parallel", "scf.while", "scf.yield"),
        *("shape.shape_of", "stablehlo.return", "stablehlo.set_dimension_size"),
        *("stablehlo.while", "tensor.bitcast", "tensor.cast", "tensor.collapse_shape"),
        *("tensor.concat", "tensor.dim", "tensor.empty", "tensor.expand_shape"),
        *("tensor.extract", "tensor.extract_slice", "tensor.from_elements", "tensor.gather"),
        *("tensor.generate", "tensor.insert", "tensor.insert_slice"),
        *("tensor.parallel_insert_slice", "tensor.rank", "tensor.reshape", "tensor.scatter"),
        *("tensor.splat", "tensor.yield", "util.optimization_barrier"),
    )
)
"""Operations that accept every element type."""


@dataclass(frozen=True)
class ConvertQuantizedToStorage(ModulePass):
    """Give every quantized value its storage type; record the signatures that change."""

    def run(self, module: ir.Operation) -> Sequence[Remark] | None:
        """Convert `module`.

        Raises:
            UnsupportedError: an operation computes with quantized values.
        """
        changed = False
        for op in named(module, ["func.func"]):
            changed |= convert_signature(op, functools.partial(_converted, op=op))
        values = []
        for op, quantized in TypePredicate(is_quantized).among(walk(module, in_kernels=False)):
            values += quantized
            if op.name not in SCASTS:
                _check_moves_data(op)
                _check_keeps_blocks(op)
        for value in values:
            for use in value.uses:
                if use.owner.operation.name not in SCASTS:
                    _check_moves_data(use.owner.operation)
        storage_types: dict[ir.Type, ir.Type] = {}  # reading the parameters of a type takes 10 us
        for value in values:
            type_ = value.type
            if type_ not in storage_types:
                storage_types[type_] = _storage_type(type_, operation_of(value))
            value.set_type(storage_types[type_])
        futures, scasts = named(module, ["stablehlo.async_start"]), named(module, SCASTS)
        for op in futures:
            convert_future(op.results[0], functools.partial(_converted, op=op))
        for op in scasts:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        return None if changed or values or futures or scasts else UNCHANGED


def _check_moves_data(op: Any) -> None:
    """Refuse operations that compute with quantized values; those that move data may stay."""
    if op.name not in _MOVES_DATA:
        raise UnsupportedError(
            "computes with quantized values, which this pipeline does not lower; dequantize its "
            "operands (quant.dcast) and quantize its results (quant.qcast), or lower it with a "
            "pass before convert-quantized-to-storage",
            op,
        )


_MOVES_ELEMENTS = frozenset(
    f"tensor.{name}"
    for name in (
        *("bitcast", "collapse_shape", "concat", "expand_shape", "extract_slice", "gather"),
        *("insert_slice", "parallel_insert_slice", "reshape", "scatter"),
    )
)
"""Operations that may move an element into another block, and so to another scale."""


def _check_keeps_blocks(op: Any) -> None:
    """Refuse an operation that moves elements away from the blocks of their scales."""
    if op.name not in _MOVES_ELEMENTS:
        return
    type_ = op.results[0].type
    parameters = parameters_of(type_, op)
    if parameters is None or parameters.granularity == "per-tensor":
        return
    if op.name in ("tensor.extract_slice", "tensor.insert_slice") and all(
        _takes_whole_axis(op, axis) for axis in parameters.axes
    ):
        return
    if op.name == "tensor.concat" and op.attributes["dim"].value not in parameters.axes:
        return
    raise UnsupportedError(
        f"may move elements to other blocks of a {parameters.granularity} type, whose scales stay "
        "where they are; dequantize first (quant.dcast), or keep every quantized dimension whole",
        op,
    )


def _takes_whole_axis(op: Any, axis: int) -> bool:
    """True for a slice of equal rank that covers an axis, from 0 with stride 1."""
    whole = op.operands[0 if op.name == "tensor.extract_slice" else 1].type
    part = op.results[0].type if op.name == "tensor.extract_slice" else op.operands[0].type
    offsets, sizes, strides = (
        list(op.attributes[f"static_{name}"]) for name in ("offsets", "sizes", "strides")
    )
    return (
        whole.rank == part.rank
        and not whole.is_dynamic_dim(axis)
        and (offsets[axis], strides[axis]) == (0, 1)
        and sizes[axis] == int(whole.shape[axis])
    )


def _converted(type_: ir.Type, op: Any) -> ir.Type:
    return _storage_type(type_, op) if is_quantized(type_) else type_


def _storage_type(type_: ir.Type, op: Any) -> ir.Type:
    parameters = parameters_of(type_, op)
    assert parameters is not None  # callers pass quantized types only
    storage = storage_mlir_type(parameters.storage)
    is_tensor = isinstance(type_, (ir.RankedTensorType, ir.UnrankedTensorType))
    if isinstance(type_, ir.ShapedType) and not is_tensor:
        raise UnsupportedError(
            f"has a quantized value in '{type_}'; expected a tensor or a scalar", op
        )
    with op.location:
        return with_element(type_, storage)
