"""``legalize-qdq-to-quantized-op``: fuse dequantize, float operation, quantize to one operation.

The specification defines a quantized StableHLO operation as this sequence. So a program in which a
quantizer left casts around float operations becomes one that a backend can run on integers. The
table `subquant.dialects.stablehlo.OPERATIONS` lists the operations that have a quantized form and
the types that the specification forbids; a sequence that would be forbidden stays.

Before::

    %a = stablehlo.uniform_dequantize %x : (tensor<4x!q1>) -> tensor<4xf32>
    %b = stablehlo.uniform_dequantize %y : (tensor<4x!q2>) -> tensor<4xf32>
    %s = stablehlo.add %a, %b : tensor<4xf32>
    %r = stablehlo.uniform_quantize %s : (tensor<4xf32>) -> tensor<4x!q3>

After::

    %r = stablehlo.add %x, %y : (tensor<4x!q1>, tensor<4x!q2>) -> tensor<4x!q3>

* Casts are those of ``stablehlo``, ``quant`` and ``subquant``. Every float operand must come from
  one, and every use of a float result must be one, all to the same type: otherwise the float
  operation would have to stay, and everything be computed twice. Integer operands (indices,
  predicates) pass through. A dequantize with other uses stays for them; an unused cast is erased.
* A reduction's body gets the quantized element types too (E of the specification is the element
  type of the result). The implementation may round and saturate accumulators to E at any point;
  subquant reduces in integers that are wide enough, and saturates once.
* A dequantize followed directly by a quantize becomes a requantization, or nothing if both have one
  type.
* A bias after a contraction, and a choice from constants (``max(x, 0)``), come between it and its
  quantize: they get casts of their own first (`float_sequences`), unless ``sequences=false``.
* ``hybrid=true``: a contraction in which only the right-hand side can be quantized gets that, and
  the rest stays float.
* No StableHLO operation accepts a sub-channel type, as operand or as result, not even an operation
  that only moves elements. These casts stay next to their operation, for a pass that lowers both.
* ``bitcast_convert`` stays: on a quantized value it acts on stored bits. So do operations that
  forward values or exchange them with other programs.

With ``explain=true`` each operation that has a dequantized operand and stays is reported with its
location and the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import DCASTS, QCASTS, element_type, is_quantized
from ...dialects.quantized_ops import Body, QuantizedOp
from ...dialects.stablehlo import (
    DEQUANTIZE,
    OPERATIONS,
    QUANTIZE,
    why_illegal,
    why_not_in_table,
)
from ...emit import with_element
from ...emit.operation import is_used
from ...errors import Remark
from ..base import ModulePass, has_type, walk
from .float_sequences import split_sequences
from .retyping import Retyping, is_float_tensor, why_invalid

_DEQUANTIZES = frozenset((DEQUANTIZE, *DCASTS))
_QUANTIZES = frozenset((QUANTIZE, *QCASTS))


@dataclass(frozen=True)
class LegalizeQdqToQuantizedOp(ModulePass):
    """Fuse casts and float operations where the specification has the quantized operation.

    Args:
        sequences: also fuse a contraction with its bias, and with ``max``, ``min`` or ``clamp`` by
            constants, before one quantize (`float_sequences`).
        hybrid: give contractions a quantized right-hand side where the left one stays float.
        explain: return a remark on each candidate that stays.
    """

    sequences: bool = True
    hybrid: bool = False
    explain: bool = False

    def run(self, module: Operation) -> Sequence[Remark]:
        """Fuse in `module`; never fails."""
        remarks: list[Remark] = []

        def explain(op: Operation, reason: str | None) -> None:
            if reason is not None and self.explain:
                remarks.append(Remark.about(op, f"is left alone: {reason}"))

        operations = walk(module)
        casts = _Casts(operations)
        if self.sequences and split_sequences(operations, casts.dequantizes, casts.quantizes):
            operations = walk(module)
            casts = _Casts(operations)
        for op in [op for op in operations if casts.is_candidate(op)]:
            with op.location:
                explain(op, self._fuse(op, casts))
        for op, dequantize in _Casts(walk(module)).pairs():
            with op.location:
                explain(op, _requantize(op, dequantize))
        return remarks

    def _fuse(self, op: Operation, casts: _Casts) -> str | None:
        """Fuse one operation; return the reason if it is left alone."""
        row = OPERATIONS.get(op.name)
        if row is None:
            return why_not_in_table(op.name)
        if row.why_no_float_form is not None:
            return f"it {row.why_no_float_form}"
        reason = _fuse_whole(op, row, casts)
        is_contraction = row.category == "contraction"
        if reason is None or not is_contraction or op.operands[1] not in casts.dequantizes:
            return reason
        if not self.hybrid:
            return f"{reason}; with hybrid=true operand 1 alone can be quantized"
        return _fuse_weights(op, casts)


class _Casts:
    """The casts around expressed tensors, collected once: `Value.owner` is slow.

    Attributes:
        dequantizes: from an expressed tensor to the operation that dequantizes it.
        quantizes: from an expressed tensor to the operations that quantize it.
    """

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.dequantizes: dict[Value, Operation] = {}
        self.quantizes: dict[Value, list[Operation]] = {}
        for op in operations:
            if op.name in _DEQUANTIZES and is_float_tensor(op.results[0].type):
                self.dequantizes[op.results[0]] = op
            elif op.name in _QUANTIZES and is_float_tensor(op.operands[0].type):
                self.quantizes.setdefault(op.operands[0], []).append(op)

    def is_candidate(self, op: Operation) -> bool:
        """True for a StableHLO operation on dequantized values, or one that generates values."""
        if not op.name.startswith("stablehlo.") or op.name == QUANTIZE:
            return False
        if any(operand in self.dequantizes for operand in op.operands):
            return True
        row = OPERATIONS.get(op.name)
        return row is not None and row.category == "generation" and op.results[0] in self.quantizes

    def pairs(self) -> list[tuple[Operation, Operation]]:
        """Return each quantize of a dequantized tensor, and its dequantize."""
        return [
            (quantize, self.dequantizes[expressed])
            for expressed, quantizes in self.quantizes.items()
            if expressed in self.dequantizes
            for quantize in quantizes
        ]


def _erase_if_unused(op: Operation) -> None:
    if not is_used(op.results[0]):
        op.erase()


def _fuse_whole(op: Operation, row: QuantizedOp, casts: _Casts) -> str | None:
    """Quantize every float operand and result of an operation, or return why not."""
    dequantizes: dict[int, Operation] = {}
    elements = row.element_operands(len(op.operands))
    for number in elements:
        operand = op.operands[number]
        if is_float_tensor(operand.type):
            if operand not in casts.dequantizes:
                return f"operand {number} is not dequantized"
            dequantizes[number] = casts.dequantizes[operand]
    quantizes: dict[int, list[Operation]] = {}
    for number, result in enumerate(op.results if row.quantized_results else ()):
        if is_float_tensor(result.type):
            name = f"result {number}" if len(op.results) > 1 else "result"
            quantizes[number] = casts.quantizes.get(result, [])
            reason = _why_not_quantized(result, quantizes[number], name)
            if reason is not None:
                return reason
    operand_types = [value.type for value in op.operands]
    result_types = [value.type for value in op.results]
    for number, dequantize in dequantizes.items():
        operand_types[number] = dequantize.operands[0].type
    for number, users in quantizes.items():
        result_types[number] = users[0].results[0].type
    reason = why_illegal(op.name, operand_types, result_types, op.attributes)
    if reason is not None:
        return reason
    retyping = Retyping()
    for number, dequantize in dequantizes.items():
        retyping.set_operand(op, number, dequantize.operands[0])
    for number in quantizes:
        retyping.set_type(op.results[number], result_types[number])
    if row.bodies is not None:
        bodies = row.bodies(
            [element_type(operand_types[number]) for number in elements],
            [element_type(type_) for type_ in result_types],
        )
        blocks = (region.blocks[0] for region in op.regions)
        reasons = (_quantize_body(*pair, retyping) for pair in zip(blocks, bodies, strict=True))
        reason = next(filter(None, reasons), None)
    reason = reason or why_invalid(op)
    if reason is not None:
        retyping.undo()
        return reason
    for number, users in quantizes.items():
        for user in users:
            user.results[0].replace_all_uses_with(op.results[number])
            user.erase()
    for dequantize in {id(cast): cast for cast in dequantizes.values()}.values():
        _erase_if_unused(dequantize)
    return None


def _why_not_quantized(result: Value, quantizes: list[Operation], name: str) -> str | None:
    """Check that every use of a result is a quantize, all to one type."""
    if not quantizes:
        return f"{name} is not quantized"
    uses = list(result.uses)
    if len(uses) > len(quantizes):
        users = (use.owner.operation.name for use in uses)
        other = next(user for user in users if user not in _QUANTIZES)
        return (
            f"{name} is also used by '{other}' without being quantized, so that the float "
            "operation has to stay"
        )
    first = quantizes[0].results[0].type
    for quantize in quantizes:
        if quantize.results[0].type != first:
            return (
                f"{name} is quantized in two ways, to {element_type(first)} and to "
                f"{element_type(quantize.results[0].type)}"
            )
    return None


def _fuse_weights(op: Operation, casts: _Casts) -> str | None:
    """Make a contraction hybrid: quantize its right-hand side only."""
    dequantize = casts.dequantizes[op.operands[1]]
    operands = [value.type for value in op.operands]
    operands[1] = dequantize.operands[0].type
    reason = why_illegal(op.name, operands, [op.results[0].type], op.attributes)
    if reason is not None:
        return reason
    retyping = Retyping()
    retyping.set_operand(op, 1, dequantize.operands[0])
    reason = why_invalid(op)
    if reason is not None:
        retyping.undo()
        return reason
    _erase_if_unused(dequantize)
    return None


def _requantize(op: Operation, dequantize: Operation) -> str | None:
    """Write a quantize of a dequantize as one cast, or as none if the type is the same."""
    source, target = dequantize.operands[0], op.results[0].type
    reason = why_illegal(QUANTIZE, [source.type], [target], {})
    if reason is not None:
        return reason
    if source.type != target:
        with ir.InsertionPoint(op):
            cast = emit.create(QUANTIZE, [source], [target])
        reason = why_invalid(cast)
        if reason is not None:
            cast.erase()
            return reason
        source = cast.results[0]
    op.results[0].replace_all_uses_with(source)
    op.erase()
    _erase_if_unused(dequantize)
    return None


def _quantize_body(block: ir.Block, body: Body, retyping: Retyping) -> str | None:
    """Give a body of a reduction, sort or map its quantized types, or return why not."""
    for argument, element in zip(block.arguments, body.arguments, strict=True):
        if is_float_tensor(argument.type) and is_quantized(element):
            retyping.set_type(argument, with_element(argument.type, element))
    *operations, terminator = (op.operation for op in block.operations)
    returned = list(zip(terminator.operands, body.results or (), strict=False))
    for op in operations:
        if not has_type(op, lambda type_: is_float_tensor(type_) or is_quantized(type_)):
            continue
        reason = _quantize_in_body(op, returned, retyping)
        if reason is not None:
            return f"'{op.name}' in its body {reason}"
    for value, element in returned:
        if element_type(value.type) != element:
            return f"its body returns {element_type(value.type)}, expected {element}"
    return None


def _quantize_in_body(
    op: Operation, returned: list[tuple[Value, ir.Type]], retyping: Retyping
) -> str | None:
    """Give the results of an operation in a body the returned type, or that of its operands."""
    row = OPERATIONS.get(op.name)
    if row is None or not (row.computes or row.moves) or len(op.regions):
        return "has no quantized form"
    for number in row.element_operands(len(op.operands)):
        operand = op.operands[number]
        if is_float_tensor(operand.type):
            return f"has operand {number} that is not quantized"
    elements = {element_type(v.type) for v in op.operands if is_quantized(v.type)}
    for result in op.results:
        if not is_float_tensor(result.type):
            continue
        element = next((e for value, e in returned if value == result), None)
        if element is None:
            if len(elements) != 1:
                return "has operands of several quantized types, and no type for its result"
            (element,) = elements
        retyping.set_type(result, with_element(result.type, element))
    types = ([v.type for v in op.operands], [v.type for v in op.results])
    reason = why_illegal(op.name, *types, op.attributes)
    return None if reason is None else f"would be forbidden: {reason}"
