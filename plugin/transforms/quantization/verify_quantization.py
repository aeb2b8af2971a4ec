"""``verify-quantization``: check the rules of quantized types that upstream does not check.

Upstream checks a sub-channel type only at ``quant`` casts. This pass checks every value of a
module (results, block arguments) and every function signature, against the *containing* tensor:

1. ``1 <= block size <= dimension``
2. every quantized dimension is less than the rank, and named once
3. ``dimension % block size == 0``, unless a ``subquant`` cast uses the type (ragged last block)
4. ``shape(scales) == shape(zero points) == ceil(shape / block size)``
5. zero points are in the storage range
6. scales are positive, finite, and not zero in the expressed type

and the operands and attributes of the ``subquant`` operations. Rules 1 to 6 are the RFC's "Type
Constraints" with StableHLO's C5 to C7. Upstream's type itself refuses an element type of scales or
zero points that differs from the expressed or storage type (RFC, 5 and 6). The module is not
changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, ir
from ...dialects import subquant
from ...dialects.quant import element_type, is_quantized, parts_of
from ...errors import Remark, VerificationError
from ..base import UNCHANGED, ModulePass, walk
from .operation_rules import OPERATION_CHECKS
from .type_rules import check_type


@dataclass(frozen=True)
class VerifyQuantization(ModulePass):
    """Raise a located VerificationError for the first quantized type or operation that is wrong."""

    def run(self, module: ir.Operation) -> Sequence[Remark]:
        """Check `module` against the rules in the module's docstring."""
        operations = list(walk(module))
        casts = [op for op in operations if op.name in subquant.CASTS]
        values = [value for op in casts for value in (*op.operands, *op.results)]
        lenient = {element_type(value.type) for value in values}
        verified: set[ir.Type] = set()

        def check(type_: ir.Type, op: Operation, what: str) -> None:
            if type_ in verified:
                return
            for inner in filter(is_quantized, parts_of(type_)):
                check_type(inner, op, what, lenient=element_type(inner) in lenient)
            verified.add(type_)

        for op in operations:
            for number, result in enumerate(op.results):
                what = f"result {number}" if len(op.results) > 1 else "result"
                check(result.type, op, what)
            for region in op.regions:
                for block in region:
                    for number, argument in enumerate(block.arguments):
                        check(argument.type, op, f"block argument {number}")
            if "function_type" in op.attributes:
                _check_signature(op, check)
            verify = OPERATION_CHECKS.get(op.name)
            if verify is not None:
                for number, operand in enumerate(op.operands):  # may be defined below
                    check(operand.type, op, f"operand {number}")
                with _readable_attributes(op):
                    verify(op)
        return UNCHANGED


@contextlib.contextmanager
def _readable_attributes(op: Operation) -> Iterator[None]:
    """Refuse arrays whose element type the bindings do not support, such as ``array<ui8: 1>``."""
    try:
        yield
    except TypeError as error:
        if "DenseArrayAttr" not in str(error):
            raise
        unread = str(error).partition("(Attribute(")[2].removesuffix("))")
        raise VerificationError(
            f"attribute '{unread}' has another element type than i64", op
        ) from None


def _check_signature(op: Operation, check: Callable[[ir.Type, Operation, str], None]) -> None:
    type_ = getattr(op.attributes["function_type"], "value", None)
    if not isinstance(type_, ir.FunctionType):
        return
    for number, input_type in enumerate(type_.inputs):
        check(input_type, op, f"argument {number}")
    for number, result_type in enumerate(type_.results):
        check(result_type, op, f"result {number}")
