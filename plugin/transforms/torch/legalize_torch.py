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

from ...core._mlir import (
    Operation,
    ir,
    passmanager,
    place_of,
    register_upstream_passes,
    translate_errors,
)
from ...dialects.dense import elements_of_resource, resource_of
from ...errors import Remark, UnsupportedError
from ..base import UNCHANGED, ModulePass, named, producer_named, walk
from .constant_arithmetic import fold_constant_arithmetic
from .constant_unpacking import fold_constant_unpacking
from .direct_operators import write_operators
from .dynamic_shapes import write_broadcasts, write_iotas, write_shapes
from .float8_bytes import write_bytes
from .hidden_constants import hide_constants, show_constants
from .integer_convolutions import narrow_convolutions
from .negative_indices import normalize_indices
from .output_paddings import reverse_output_paddings
from .remainders import write_remainders
from .sort_order import order_sorts
from .static_shapes import erase_identities, write_static_shapes

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
)
"""torch-mlir's passes of ``torch-backend-to-stablehlo-backend-pipeline``, and a lowering of shapes.

Its check is left out, which refuses variables, and ``stablehlo-refine-shapes``, which refuses
several functions.
"""

_LOWERED_TO_TYPES = _PIPELINES.index("torch-func-backend-type-conversion-for-stablehlo")
"""The number of pipelines after which no operator of the dialect may be left."""

_IMPORT_ATTRIBUTE = "torch.assume_strict_symbolic_shapes"


_OPERATORS = ("torch.aten.", "torch.prims.", "torch.quantized_decomposed.", "torch.torchvision.")
_OPERATOR = re.compile(
    r"failed to legalize operation '"
    r"(?:torch\.(aten[\w.]+)'|torch\.operator'.*name = \"torch\.([\w.]+)\")"
)
_CURRENT = re.compile(
    r"see current operation: .*?\"torch\.(?:(aten[\w.]+)\"|operator\".*name = \"torch\.([\w.]+)\")"
)
"""The operator at which a pass of torch-mlir failed, in a note."""


def _is_of_torch(op: Operation) -> bool:
    if op.name == "func.func":
        return "!torch" in str(op.attributes["function_type"])
    return bool(op.name.startswith(_DIALECTS))


def _refusal(operator: str, reason: str = "") -> str:
    return (
        f"the program has the operator {operator}, which torch-mlir does not lower to StableHLO "
        f"with these arguments{reason and f' ({reason})'}; write it with others in the module, or "
        "give subquant a model in ONNX (torch.onnx.export)"
    )


def _reworded(message: str, notes: list[str]) -> str:
    """Name the operator that torch-mlir cannot lower, in PyTorch's words."""
    match = _OPERATOR.search(message)
    if match is not None:
        return _refusal(match.group(1) or match.group(2))
    match = _CURRENT.search("\n".join(notes))
    return message if match is None else _refusal(match.group(1) or match.group(2), message)


_POOLS = tuple(
    f"torch.aten.max_pool{rank}d{suffix}" for rank in (1, 2, 3) for suffix in ("", "_with_indices")
)
_CEIL_MODE = 5
"""The operand of a pooling that says whether windows may end outside."""


def _check_pools(module: Operation) -> None:
    """Refuse maxima with ``ceil_mode``, whose padding torch-mlir 20261001 gets wrong."""
    for op in named(module, _POOLS):
        constant = producer_named(op.operands[_CEIL_MODE], "torch.constant.bool")
        if constant is None or ir.BoolAttr(constant.attributes["value"]).value:
            raise UnsupportedError(
                "has ceil_mode, which torch-mlir lowers with wrong padding; pad the input, or "
                "compile the module by subquant.torch, which does",
                op,
            )


def _check_lowered(module: Operation) -> None:
    """Refuse operators that torch-mlir's patterns left."""
    for op in walk(module):
        if op.name.startswith(_OPERATORS):
            raise UnsupportedError(_refusal(op.name.removeprefix("torch.")), place_of(op.location))


@dataclass(frozen=True)
class LegalizeTorch(ModulePass):
    """Lower the ``torch`` dialect to StableHLO."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Lower the module if it has an operation of the ``torch`` dialect.

        Raises:
            UnsupportedError: an operator that torch-mlir does not lower, at its place.
        """
        if not any(map(_is_of_torch, walk(module))):
            return UNCHANGED
        register_upstream_passes()
        normalize_indices(module)
        write_remainders(module)
        write_operators(module)
        reverse_output_paddings(module)
        hide_constants(module)
        _check_pools(module)
        for number, text in enumerate(_PIPELINES):
            if number == _LOWERED_TO_TYPES:
                _check_lowered(module)
            manager = passmanager.PassManager.parse(f"builtin.module({text})")
            message = f"torch-mlir's '{text}' failed"
            converts = "convert-torch-to-stablehlo" in text
            manager.enable_verifier(not converts)  # write_iotas makes the module valid
            with translate_errors(UnsupportedError, message, reword=_reworded):
                manager.run(module)
                if converts:
                    write_iotas(module)
                    module.verify()
            if converts:
                write_broadcasts(module)
            elif "chlo-legalize" in text:
                write_shapes(module)
        for op in module.regions[0].blocks[0].operations:
            if _IMPORT_ATTRIBUTE in op.attributes:
                del op.attributes[_IMPORT_ATTRIBUTE]
        show_constants(module)
        write_static_shapes(module)
        erase_identities(module)
        order_sorts(module)
        for op in named(module, ["stablehlo.constant"]):
            if (resource := resource_of(op)) is not None:
                op.attributes["value"] = elements_of_resource(op, resource.type)
        write_bytes(module)
        fold_constant_unpacking(module)
        narrow_convolutions(module)
        fold_constant_arithmetic(module)
        return None
