"""Pass ``legalize-torch``: lower the ``torch`` dialect to StableHLO by torch-mlir's passes.

Before::

    func.func @main(%x: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],f32> {
      %0 = torch.aten.relu %x : !torch.vtensor<[4,8],f32> -> !torch.vtensor<[4,8],f32>

After::

    func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
      %0 = stablehlo.maximum %x, %zero : tensor<4x8xf32>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, ir, passmanager, register_upstream_passes, translate_errors
from ...dialects.dense import elements_of_resource
from ...errors import Remark, UnsupportedError
from ..base import UNCHANGED, ModulePass, named, walk
from .constant_arithmetic import fold_constant_arithmetic

_DIALECTS = ("torch.", "torch_c.")

_PIPELINES = (
    "func.func(torch-match-quantized-custom-ops)",
    "torchdynamo-export-to-torch-backend-pipeline",
    "func.func(convert-torch-to-stablehlo)",
    "func.func(chlo-legalize-to-stablehlo)",
    "func.func(convert-torch-to-arith)",
    "canonicalize",
    "cse",
    "torch-func-backend-type-conversion-for-stablehlo",
    "canonicalize",
    "func.func(torch-finalizing-backend-type-conversion-for-stablehlo)",
    "func.func(stablehlo-canonicalize-dynamism)",
    "canonicalize",
    "func.func(shape-legalize-to-stablehlo)",
    "func.func(stablehlo-canonicalize-dynamism)",
    "canonicalize",
)
"""torch-mlir's passes of ``torch-backend-to-stablehlo-backend-pipeline``, and a lowering of shapes.

Its check is left out, which refuses variables, and ``stablehlo-refine-shapes``, which refuses
several functions.
"""

_IMPORT_ATTRIBUTE = "torch.assume_strict_symbolic_shapes"


_OPERATOR = re.compile(r'"torch\.operator"\(.*name = "torch\.([\w.]+)"')


def _reworded(message: str, notes: list[str]) -> str:
    """Name the operator that torch-mlir does not know, in PyTorch's words."""
    operator = _OPERATOR.search(message)
    if operator is None:
        return message
    return (
        f"the program has the operator {operator.group(1)}, which torch-mlir does not lower to "
        "StableHLO; replace it in the module, or give subquant a model in ONNX "
        "(torch.onnx.export)"
    )


@dataclass(frozen=True)
class LegalizeTorch(ModulePass):
    """Lower the ``torch`` dialect to StableHLO."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Lower the module if it has an operation of the ``torch`` dialect.

        Raises:
            UnsupportedError: an operator that torch-mlir does not lower, at its place.
        """
        if not any(op.name.startswith(_DIALECTS) for op in walk(module)):
            return UNCHANGED
        register_upstream_passes()
        for text in _PIPELINES:
            manager = passmanager.PassManager.parse(f"builtin.module({text})")
            message = f"torch-mlir's '{text}' failed"
            with translate_errors(UnsupportedError, message, reword=_reworded):
                manager.run(module)
        for op in module.regions[0].blocks[0].operations:
            if _IMPORT_ATTRIBUTE in op.attributes:
                del op.attributes[_IMPORT_ATTRIBUTE]
        for op in named(module, ["stablehlo.constant"]):
            if not isinstance(op.attributes["value"], ir.DenseElementsAttr):
                op.attributes["value"] = elements_of_resource(op) or op.attributes["value"]
        fold_constant_arithmetic(module)
        return None
