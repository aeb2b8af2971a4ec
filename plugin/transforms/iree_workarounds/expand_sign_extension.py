"""``expand-sign-extension``: sign extension as zero extension, xor and subtraction (Vulkan).

Symptom: the sign is lost in every vectorized matmul of i8.
Cause: the SPIR-V backend of IREE 3.13 rewrites ``extsi`` of a vector that was loaded as wider words
into shifts and masks that are right for ``extui`` only.
Test: `test_sign_extension_is_still_lost_without_the_pass` in tests/test_iree_limits_vulkan.py.

IREE does not rewrite the same with ``extui``, xor and subtraction. ``sitofp`` from a narrow type
becomes a sign extension and ``sitofp`` from i32.

Before::

    %w = arith.extsi %x : i8 to i32

After::

    %u = arith.extui %x : i8 to i32
    %f = arith.xori %u, %c128 : i32
    %w = arith.subi %f, %c128 : i32

StableHLO, TOSA, named linalg and elementwise operations on narrow integers become
``linalg.generic`` first.
"""

from __future__ import annotations

from dataclasses import dataclass

from ... import emit
from ...core._mlir import Operation, ir
from ...dialects.quant import element_type
from ...emit.operation import element_of
from ...numerics.array_functions import convert
from ...numerics.element_types import I32
from ..base import ModulePass, walk
from .explicit_loops import make_loops_explicit


@dataclass(frozen=True)
class ExpandSignExtension(ModulePass):
    """Rewrite every sign extension from 16 bits or fewer."""

    def run(self, module: Operation) -> None:
        """Rewrite `module`.

        Raises:
            UnsupportedError: with narrow integers in the module, an operation has quantized values.
        """
        operations = walk(module)
        if make_loops_explicit(operations, is_narrow):
            operations = walk(module)
        for op in [op for op in operations if op.name in ("arith.extsi", "arith.sitofp")]:
            if is_narrow(op.operands[0].type):
                with ir.InsertionPoint(op), op.location:
                    # Flip the sign bit, which shifts the range to start at 0, and shift the range
                    # back.
                    source, result = op.operands[0], op.results[0]
                    sign = 1 << (source.type.width - 1)
                    bits = convert(emit.scalar(source, element_of(source.type, signed=False)), I32)
                    extended = convert((bits ^ sign) - sign, element_of(result.type))
                    result.replace_all_uses_with(extended.value)
                    op.erase()


def is_narrow(type_: ir.Type) -> bool:
    """True for integers of 2 to 16 bits."""
    element = element_type(type_)
    return isinstance(element, ir.IntegerType) and 1 < element.width <= 16
