"""Static forms of dynamic operations whose results have static types.

torch-mlir computes the shape of a range at run time, from floats, though it knows it. Before::

    %n = stablehlo.ceil %cst : tensor<f64>
    ...
    %0 = stablehlo.dynamic_iota %shape, dim = 0 : (tensor<1xi64>) -> tensor<3xi64>

After::

    %0 = stablehlo.iota dim = 0 : tensor<3xi64>
"""

from __future__ import annotations

from ...core._mlir import Operation, ir
from ...emit.operation import erase_unused, value
from ..base import named

_IOTA, _RESHAPE = "stablehlo.dynamic_iota", "stablehlo.dynamic_reshape"
_MOVES = ("stablehlo.convert", "stablehlo.reshape", "stablehlo.broadcast_in_dim")
"""Operations that torch-mlir also writes where they change nothing."""
_AXES = "broadcast_dimensions"


def write_static_shapes(module: Operation) -> None:
    """Replace dynamic ranges and reshapes of static types, and erase what computed their shapes."""
    for op in named(module, (_IOTA, _RESHAPE)):
        type_ = op.results[0].type
        is_reshape = op.name == _RESHAPE
        if not type_.has_static_shape or (is_reshape and not op.operands[0].type.has_static_shape):
            continue
        with ir.InsertionPoint(op), op.location:
            if is_reshape:
                static = value("stablehlo.reshape", [op.operands[0]], type_)
            else:
                axis = {"iota_dimension": op.attributes["iota_dimension"]}
                static = value("stablehlo.iota", [], type_, axis)
        op.results[0].replace_all_uses_with(static)
        erase_unused(op, also=lambda each: each.name.startswith(("stablehlo.", "arith.")))


def erase_identities(module: Operation) -> None:
    """Erase conversions, reshapes and broadcasts whose result is their operand."""
    for op in named(module, _MOVES):
        operand = op.operands[0]
        axes = list(op.attributes[_AXES]) if _AXES in op.attributes else []
        if op.results[0].type == operand.type and axes == sorted(axes):
            op.results[0].replace_all_uses_with(operand)
            op.erase()
