"""``box-half-scalars``: pass f16 and bf16 scalars of public functions as tensors of rank 0.

Symptom: an f16 or bf16 argument arrives as 0, without an error (all targets).
Cause: the virtual machine of IREE 3.13 has no 16-bit floats.
Test: `test_f16_scalars_need_a_box` in tests/test_iree_limits_numbers.py.

The runtime passes a tensor instead; it knows the scalar from the signature that this pass records.

Before::

    func.func @f(%x: f16) -> f16 { return %x : f16 }

After::

    func.func @f(%t: tensor<f16>) -> tensor<f16>
        attributes {subquant.function_type = (f16) -> f16} {
      %x = tensor.extract %t[] : tensor<f16>
      %r = tensor.from_elements %x : tensor<f16>
      return %r : tensor<f16>
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, ir
from ...emit import linalg
from ...emit.operation import tensor_type
from ...errors import Remark, UnsupportedError
from ..base import UNCHANGED, ModulePass, convert_signature, is_public, named, walk


@dataclass(frozen=True)
class BoxHalfScalars(ModulePass):
    """Change the signatures of public functions that have f16 or bf16 scalars."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Convert `module`.

        Raises:
            UnsupportedError: a converted function is also called inside the module.
        """
        boxed = set()
        for op in module.regions[0].blocks[0].operations:
            op = op.operation
            if op.name == "func.func" and is_public(op) and len(op.regions[0].blocks):
                with op.location:
                    if _box(op):
                        boxed.add(op.attributes["sym_name"].value)
        if not boxed:
            return UNCHANGED
        for op in named(module, ["func.call"]):
            if op.attributes["callee"].value in boxed:
                raise UnsupportedError(
                    "calls a public function with an f16 or bf16 scalar in its signature; make "
                    "the function private",
                    op,
                )
        return None


def _boxed(type_: ir.Type) -> ir.Type:
    return tensor_type([], type_) if isinstance(type_, (ir.F16Type, ir.BF16Type)) else type_


def _box(function: Operation) -> bool:
    if not convert_signature(function, _boxed):
        return False
    entry = function.regions[0].blocks[0]
    for argument in entry.arguments:
        if _boxed(argument.type) != argument.type:
            argument.set_type(_boxed(argument.type))
            with ir.InsertionPoint.at_block_begin(entry):
                value = linalg.extract(argument, [])
            argument.replace_all_uses_except(value, value.owner.operation)
    for op in [op for op in walk(function) if op.name == "func.return"]:
        with ir.InsertionPoint(op), op.location:
            for number, value in enumerate(op.operands):
                if _boxed(value.type) != value.type:
                    op.operands[number] = linalg.from_elements([value], _boxed(value.type))
    return True
