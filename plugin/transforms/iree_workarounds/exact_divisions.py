"""Correctly rounded f32 divisions for Vulkan devices.

Symptom: a rounded quotient is off by one next to a tie.
Cause: Vulkan allows an error of 2.5 units in the last place; quotients of an H100 are off by two.
Test: none: the Vulkan specification allows the error. tests/test_exact_divisions.py covers it.

Integer arithmetic corrects the quotient to the nearest float, as on CPUs. Results that are no
normal numbers are the device's.

Source: StableHLO specification, ``divide``: "division from IEEE-754"; Vulkan specification,
"Precision and Operation of SPIR-V Instructions".
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, ir
from ...dialects.quant import element_type
from ...numerics.casts import exact_quotient
from ..base import named


def divide_exactly(module: Operation) -> bool:
    """Rewrite the f32 divisions of tensors and in bodies of loops; False if there are none."""
    divisions = [
        op
        for op in named(module, ["arith.divf", "stablehlo.divide"])
        if isinstance(element_type(op.results[0].type), ir.F32Type)
    ]
    for op in divisions:
        with ir.InsertionPoint(op), op.location:
            quotient = exact_quotient(*map(emit.tensor_or_scalar, op.operands))
        op.results[0].replace_all_uses_with(quotient.value)
        op.erase()
    return bool(divisions)
