"""Divisions of sizes on the host, checked at run time.

Symptom: the process ends by SIGFPE, as where a dimension of size -1 is inferred of an empty tensor
(all targets).
Cause: the VM of IREE 3.13 divides without a check.
Test: none, since the process ends.

Before::

    %n = arith.divui %elements, %rows : i64

After::

    %ok = arith.cmpi ne, %rows, %c0 : i64
    cf.assert %ok, "'arith.divui' op: the divisor must not be 0"
    %n = arith.divui %elements, %rows : i64
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, ir
from ...emit import linalg
from ...emit.linalg import name_and_place
from ..base import NoMatch, producer_named

DIVISIONS = (
    *("arith.ceildivsi", "arith.ceildivui", "arith.divsi", "arith.divui"),
    *("arith.floordivsi", "arith.remsi", "arith.remui"),
)
_HOST = ("builtin.module", "cf", "func.func", "scf")
"""Operations, and dialects of operations, whose regions the host executes."""


def check_divisor(op: Operation) -> NoMatch | None:
    """Check that the divisor of a division of scalars is not 0."""
    divisor = op.operands[1]
    if not isinstance(divisor.type, (ir.IntegerType, ir.IndexType)):
        return NoMatch("divides no scalars")
    constant = producer_named(divisor, "arith.constant")
    if constant is not None and constant.attributes["value"].value:
        return NoMatch("divides by a constant")
    if not _is_on_host(op):
        return NoMatch("is executed by a device")
    if any(_checks(use.owner.operation) for use in divisor.uses):
        return NoMatch("has a check")
    is_valid = emit.scalar(divisor) != 0
    linalg.check(is_valid.value, f"{name_and_place(op)}: the divisor must not be 0")
    return None


def _checks(op: Operation) -> bool:
    """True for the comparison of a check."""
    uses = op.results[0].uses if op.name == "arith.cmpi" else ()
    return any(use.owner.name == "cf.assert" for use in uses)


def _is_on_host(op: Operation) -> bool:
    parent = op.parent
    while parent is not None:
        operation = parent.operation
        if operation.name not in _HOST and operation.name.split(".")[0] not in _HOST:
            return False
        parent = operation.parent
    return True
