"""``lower-tosa``: what is left of TOSA becomes linalg, tensor, arith and scf.

IREE 3.13 does not parse the TOSA of newer MLIR (``tosa.const_shape``, the attributes of
``tosa.conv2d`` and others), so upstream's own lowerings are run here, on the bindings' side of the
hand-over. Casts between equal types, which converters leave around variables, go away.

Before::

    %s = tosa.const_shape {values = dense<[4, 2]> : tensor<2xindex>} : () -> !tosa.shape<2>
    %0 = tosa.reshape %x, %s : (tensor<8xi8>, !tosa.shape<2>) -> tensor<4x2xi8>

After::

    %0 = tensor.expand_shape %x [[0, 1]] output_shape [4, 2] : tensor<8xi8> into tensor<4x2xi8>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .._mlir import Operation, passmanager, register_upstream_passes, translate_errors
from ..errors import Remark, UnsupportedError
from .base import UNCHANGED, ModulePass, walk

__all__ = ["LowerTosa"]

_PASSES = (
    "builtin.module(func.func("
    "tosa-make-broadcastable,tosa-to-linalg-named,tosa-to-linalg,"
    "tosa-to-arith{include-apply-rescale},tosa-to-tensor,tosa-to-scf,canonicalize))"
)


@dataclass(frozen=True)
class LowerTosa(ModulePass):
    """Run upstream's lowerings of TOSA; fail if one of its operations is left."""

    name: ClassVar[str] = "lower-tosa"

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`, if it has an operation of TOSA.

        Raises:
            UnsupportedError: an operation that upstream does not lower, with its place.
        """
        operations = walk(module)
        if not any(op.name.startswith("tosa.") for op in operations):
            return UNCHANGED
        for op in operations:
            if _is_identity_cast(op):
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()
        register_upstream_passes()
        manager = passmanager.PassManager.parse(_PASSES)
        with translate_errors(UnsupportedError, "upstream's lowering of TOSA failed"):
            manager.run(module)
        for op in walk(module):
            if op.name.startswith("tosa."):
                raise UnsupportedError("is not lowered by upstream's passes", op)
        return None


def _is_identity_cast(op: Operation) -> bool:
    return (
        op.name == "builtin.unrealized_conversion_cast"
        and len(op.operands) == 1
        and [value.type for value in op.operands] == [value.type for value in op.results]
    )
