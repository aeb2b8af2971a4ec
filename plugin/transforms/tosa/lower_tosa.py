"""``lower-tosa``: lower the remaining TOSA to linalg, tensor, arith and scf.

IREE 3.13 does not parse the TOSA of newer MLIR (``tosa.const_shape``, the attributes of
``tosa.conv2d`` and others), so this pass runs upstream's own lowerings before the hand-over. Casts
between equal types, which converters leave around variables, are erased. Casts of the dialect
``quant`` are written as those of ``subquant`` meanwhile: upstream's canonicalization folds
``dcast(qcast(x))`` to the unrounded ``x``, in every function of the module.

Before::

    %s = tosa.const_shape {values = dense<[4, 2]> : tensor<2xindex>} : () -> !tosa.shape<2>
    %0 = tosa.reshape %x, %s : (tensor<8xi8>, !tosa.shape<2>) -> tensor<4x2xi8>

After::

    %0 = tensor.expand_shape %x [[0, 1]] output_shape [4, 2] : tensor<8xi8> into tensor<4x2xi8>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, ir, passmanager, register_upstream_passes, translate_errors
from ...emit.operation import create
from ...errors import Remark, UnsupportedError
from ..base import UNCHANGED, ModulePass, apply_patterns, named, walk
from .transposed_convolution import lower_transpose_conv2d

_PASSES = (
    "builtin.module(func.func("
    "tosa-make-broadcastable,tosa-to-linalg-named,tosa-to-linalg,"
    "tosa-to-arith{include-apply-rescale},tosa-to-tensor,tosa-to-scf,canonicalize))"
)
_FOLDED = ("qcast", "dcast")
_RENAMED = "of_quant"
"""Attribute of a cast that is renamed to the other dialect."""


@dataclass(frozen=True)
class LowerTosa(ModulePass):
    """Run upstream's lowerings of TOSA; fail if a TOSA operation remains.

    Upstream does not lower ``tosa.transpose_conv2d``: it becomes a ``tosa.conv2d`` first
    (`transposed_convolution`).
    """

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`, if it has an operation of TOSA.

        Raises:
            UnsupportedError: an operation that upstream does not lower.
        """
        operations = walk(module)
        if not any(op.name.startswith("tosa.") for op in operations):
            return UNCHANGED
        for op in operations:
            if (
                op.name == "builtin.unrealized_conversion_cast"
                and len(op.operands) == 1
                and [value.type for value in op.operands] == [value.type for value in op.results]
            ):
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()
        for op in named(module, [f"quant.{each}" for each in _FOLDED]):
            _rename(op, "subquant", {_RENAMED: ir.UnitAttr.get(op.context)})
        apply_patterns(module, {"tosa.transpose_conv2d": lower_transpose_conv2d})
        register_upstream_passes()
        manager = passmanager.PassManager.parse(_PASSES)
        with translate_errors(UnsupportedError, "upstream's lowering of TOSA failed"):
            manager.run(module)
        for op in named(module, [f"subquant.{each}" for each in _FOLDED]):
            if _RENAMED in op.attributes:
                _rename(op, "quant", {})
        for op in walk(module):
            if op.name.startswith("tosa."):
                raise UnsupportedError("is not lowered by upstream's passes", op)
        return None


def _rename(op: Operation, dialect: str, attributes: dict[str, ir.Attribute]) -> None:
    """Replace a cast by that of a dialect."""
    with op.location, ir.InsertionPoint(op):
        name = f"{dialect}.{op.name.partition('.')[2]}"
        other = create(name, [*op.operands], [op.results[0].type], attributes)
    op.results[0].replace_all_uses_with(other.results[0])
    op.erase()
