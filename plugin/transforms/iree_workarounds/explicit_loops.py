"""StableHLO, TOSA, named linalg and elementwise operations, lowered to ``linalg.generic``.

A pass over element types then only has to know scalar operations. Upstream's passes do the
lowering, except for forms that IREE 3.13 then refuses or gets wrong:

* ``stablehlo.concatenate``: on Vulkan, the loop with branches that it becomes gives the first
  operand's values for all. It becomes ``tensor.concat`` first.
* ``stablehlo.slice`` without elements: the verifier refuses the offset 0 of an empty dimension. It
  becomes ``tensor.empty``.
* Operations with scalar bodies that stay StableHLO's, such as ``sort``: upstream writes the
  operations in their bodies as loops over one element. The bodies are detached meanwhile.
* The fill of a tensor of one element: a loop nest without loops over a scalar. It becomes
  ``tensor.from_elements``.
* The fill of a tensor that ``tensor.insert_slice`` writes into, as in a pad with interior padding:
  a loop nest that reads no buffer, and two equal ones become one (`updates_in_place`). It becomes
  ``linalg.fill`` again. So does the fill of a dynamic tensor: beside a convolution, IREE makes
  vectors as long as the tensor of its loop nest, and refuses them.
* A pad of a tensor with interior padding, as padding and dilation of a convolution are: on Vulkan
  the outer pad reads elements that the inner one has not written. A barrier separates them.

Test: tests/test_stablehlo_rare_forms.py and tests/test_updates_in_place.py cover these forms.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core._mlir import Operation, ir, passmanager, register_upstream_passes, translate_errors
from ...dialects.quant import is_quantized
from ...emit import linalg
from ...emit.operation import create, integer
from ...errors import UnsupportedError
from ..base import TypePredicate, convert_signature, has_type, named, producer_named, walk
from .unsigned_integers import is_unsigned, signless

_TO_LOOPS = (
    "builtin.module(stablehlo-legalize-to-linalg,"
    "func.func(tosa-to-linalg-named,tosa-to-linalg,tosa-to-arith,"
    "convert-elementwise-to-linalg,linalg-generalize-named-ops),convert-shape-to-std,canonicalize)"
)
_INSERTION = "tensor.insert_slice"
_CAST = "builtin.unrealized_conversion_cast"
_EXPLICIT_LOOPS = frozenset(("arith.constant", "linalg.generic", "linalg.yield", "linalg.index"))


def make_loops_explicit(operations: list[Operation], applies: Callable[[ir.Type], bool]) -> bool:
    """Write StableHLO, TOSA, named linalg, and elementwise arith on tensors as ``linalg.generic``.

    Nothing changes unless one of `operations`, which are all of a module, is in one of the
    dialects, and has an operand or result whose type `applies` accepts.

    Returns:
        True if the module was changed: `operations` must then not be used again.

    Raises:
        UnsupportedError: an operation has quantized values; upstream crashes on some.
    """
    if not any(is_implicit_loop(op) and has_type(op, applies) for op in operations):
        return False
    for op in operations:
        if is_implicit_loop(op) and has_type(op, is_quantized):
            raise UnsupportedError(
                "computes with quantized values, which cannot be written as loops over integers; "
                "run legalize-quant-to-math and convert-quantized-to-storage before",
                op,
            )
    register_upstream_passes()
    root = operations[0].parent.operation
    operations = _rewrite_moves(operations)
    bodies = _detach_scalar_bodies(operations, applies)
    manager = passmanager.PassManager.parse(_TO_LOOPS)
    manager.enable_verifier(not bodies)
    with translate_errors(UnsupportedError, "cannot write the module as loops"):
        manager.run(root)
    _reattach_scalar_bodies(root, bodies)
    _rewrite_fills(root)
    _separate_pads(root)
    _make_signless(root)
    return True


def is_implicit_loop(op: Operation) -> bool:
    """True for StableHLO, TOSA, named linalg, and elementwise operations on tensors."""
    name = op.name
    if name in _EXPLICIT_LOOPS:
        return False
    if name.startswith(("arith.", "math.")):
        return len(op.results) > 0 and isinstance(op.results[0].type, ir.RankedTensorType)
    return bool(name.startswith(("linalg.", "stablehlo.", "tosa.")))


def _rewrite_moves(operations: list[Operation]) -> list[Operation]:
    """Write ``concatenate`` as ``tensor.concat``, and empty slices; return all operations."""
    remaining = []
    for op in operations:
        is_slice = op.name == "stablehlo.slice"
        if op.name != "stablehlo.concatenate" and not (is_slice and 0 in op.results[0].type.shape):
            remaining.append(op)
            continue
        type_ = op.results[0].type
        with ir.InsertionPoint(op), op.location:
            if is_slice:
                value = linalg.empty(list(type_.shape), type_.element_type)
            else:
                axis = int(op.attributes["dimension"].value)
                value = linalg.concatenate(list(op.operands), axis, type_)
        remaining.append(value.owner.operation)
        op.results[0].replace_all_uses_with(value)
        op.erase()
    return remaining


def _rewrite_fills(root: Operation) -> None:
    """Write fills without a loop: of one element, of insertion destinations, of dynamic tensors."""
    for op in walk(root):
        if op.name != "linalg.generic" or len(op.operands) != 2 or len(op.results) != 1:
            continue
        (scalar, output), result = op.operands, op.results[0]
        body = op.regions[0].blocks[0]
        returned = list(body.operations)[-1].operation.operands[0]
        if isinstance(scalar.type, ir.ShapedType) or returned != body.arguments[0]:
            continue
        with ir.InsertionPoint(op), op.location:
            if all(n == 1 for n in result.type.shape):
                value = linalg.from_elements([scalar], result.type)
            elif not result.type.has_static_shape or any(map(_writes_into, result.uses)):
                value = linalg.fill(scalar, output)
            else:
                continue
        result.replace_all_uses_with(value)
        op.erase()


def _writes_into(use: ir.OpOperand) -> bool:
    """True if a tensor is the destination of ``tensor.insert_slice``."""
    return bool(use.owner.name == _INSERTION and use.operand_number == 1)


def _separate_pads(root: Operation) -> None:
    """Put a barrier between a pad and an insertion before it."""
    for op in named(root, ["tensor.pad"]):
        if producer_named(op.operands[0], _INSERTION) is not None:
            with ir.InsertionPoint(op), op.location:
                op.operands[0] = linalg.with_barrier(op.operands[0])


def _make_signless(root: Operation) -> None:
    """Remove the casts that upstream leaves between unsigned integers and its loops.

    The loops have unsigned operations. StableHLO operations take the signedness from their types,
    so the casts stay if one remains, and IREE refuses them.
    """
    casts = named(root, [_CAST])
    operations = walk(root) if casts else []
    unsigned = TypePredicate(is_unsigned)
    for op in operations:
        if op.name.startswith("stablehlo.") and has_type(op, unsigned):
            return
    for op in operations:
        if op.name == "func.func":
            with op.location:
                convert_signature(op, signless)
        for value in unsigned.values_of(op):
            value.set_type(signless(value.type))
    for cast in casts:
        if cast.operands[0].type == cast.results[0].type:
            cast.results[0].replace_all_uses_with(cast.operands[0])
            cast.erase()


# -- bodies of scalars ----------------------------------------------------------------------------

_OPERATIONS_WITH_SCALAR_BODIES = frozenset(
    f"stablehlo.{name}"
    for name in ("all_reduce", "reduce_scatter", "scatter", "select_and_scatter", "sort")
)
"""Operations that upstream does not lower to loops, and IREE takes only with StableHLO bodies.

Upstream lowers the operations in their bodies to loops over one element, which IREE refuses.
"""
_BODY_NUMBER = "subquant.body"


def _detach_scalar_bodies(
    operations: list[Operation], applies: Callable[[ir.Type], bool]
) -> list[Operation]:
    """Move the bodies that must stay out of the module; return the operations that hold them.

    A body with a value whose type `applies` accepts stays in the module: the caller lowers it.
    """
    holders: list[Operation] = []
    for op in operations:
        if op.name not in _OPERATIONS_WITH_SCALAR_BODIES:
            continue
        inside = [op, *walk(op)]
        values = [argument for r in op.regions for b in r for argument in b.arguments]
        values += [value for inner in inside[1:] for value in (*inner.operands, *inner.results)]
        if any(applies(value.type) for value in values):
            continue
        with op.context, op.location:
            holder = create("subquant_body.holder", regions=len(op.regions), detached=True)
            number = integer(len(holders))
        for old, new in zip(op.regions, holder.regions, strict=True):
            old.blocks[0].append_to(new)
        op.attributes[_BODY_NUMBER] = number
        holders.append(holder)
    return holders


def _reattach_scalar_bodies(root: Operation, holders: list[Operation]) -> None:
    if not holders:
        return
    for op in walk(root):
        if _BODY_NUMBER in op.attributes:
            holder = holders[op.attributes[_BODY_NUMBER].value]
            del op.attributes[_BODY_NUMBER]
            for old, new in zip(holder.regions, op.regions, strict=True):
                old.blocks[0].append_to(new)
