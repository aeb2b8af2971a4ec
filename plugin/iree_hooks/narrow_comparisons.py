"""Widened integers in SPIR-V, compared with constants in the type that they are widened from.

Symptom: comparisons of 64-bit integers are wrong on Vulkan: ``40000 < 65536`` is false.
Cause: Mesa 22.3 compares a 32-bit integer that is sign-extended to 64 bits wrongly with a constant.
IREE 3.13 narrows such comparisons, but not of an integer that several dispatches widen: each
dispatch writes the 64 bits to workgroup memory, from where the same thread loads them.
Test: `test_integers_that_several_dispatches_widen` in tests/test_cross_thread_moves.py.

Before, in SPIR-V::

    %wide = spirv.SConvert %x : i32 to i64
    spirv.Store "Workgroup" %p, %wide : i64
    %again = spirv.Load "Workgroup" %p : i64
    %is_less = spirv.SLessThan %again, %bound : i64

After::

    %wide = spirv.SConvert %x : i32 to i64
    spirv.Store "Workgroup" %p, %wide : i64
    %is_less = spirv.SLessThan %x, %narrow_bound : i32

A stored value is forwarded to loads inside of one block, and not past a barrier, a call, or a store
to another pointer, which may be an alias. A constant beyond 32 bits stays.
"""

from __future__ import annotations

from typing import Any

_STORE, _LOAD, _CONSTANT = "spirv.Store", "spirv.Load", "spirv.Constant"
_WORKGROUP = ", Workgroup>"
_COMPARISONS = frozenset(
    f"spirv.{name}" for name in ("SLessThan", "SLessThanEqual", "SGreaterThan", "SGreaterThanEqual")
)
_BOUND = 1 << 31
"""The magnitude up to which integers have 32 bits."""


def narrow_comparisons(ir: Any, module: Any) -> None:
    """Compare widened integers with constants before they are widened.

    The module is in the SPIR-V dialect; `ir` is IREE's bindings.
    """
    for region in module.regions:
        for block in region.blocks:
            _change_block(ir, block)


def _change_block(ir: Any, block: Any) -> None:
    """Forward stored values to loads of a block, and narrow its comparisons."""
    stored: tuple[Any, Any] | None = None  # the pointer and the value of the last store
    for op in [each.operation for each in block.operations]:
        if op.name == _STORE and str(op.operands[0].type).endswith(_WORKGROUP):
            stored = op.operands[0], op.operands[1]
        elif op.name == _LOAD and stored is not None and op.operands[0] == stored[0]:
            op.results[0].replace_all_uses_with(stored[1])
            op.erase()
        elif op.name in _COMPARISONS:
            _narrow(ir, op)
        elif len(op.regions) or "Barrier" in op.name or op.name == "spirv.FunctionCall":
            stored = None
            narrow_comparisons(ir, op)


def _narrow(ir: Any, comparison: Any) -> None:
    """Compare 32 bits if one operand is widened, and the other is a constant of 32 bits."""
    for number in (0, 1):
        wide, bound = comparison.operands[number], comparison.operands[1 - number]
        source, constant = wide.owner, bound.owner
        if getattr(source, "name", "") != "spirv.SConvert" or str(wide.type) != "i64":
            continue
        narrow = source.operands[0]
        if str(narrow.type) != "i32" or getattr(constant, "name", "") != _CONSTANT:
            continue
        value = int(constant.attributes["value"].value)
        if not -_BOUND <= value < _BOUND:
            continue
        with ir.InsertionPoint(comparison), comparison.location:
            attribute = ir.IntegerAttr.get(narrow.type, value)
            small = ir.Operation.create(
                _CONSTANT, results=[narrow.type], attributes={"value": attribute}
            )
        comparison.operands[number] = narrow
        comparison.operands[1 - number] = small.results[0]
        return
