"""Barriers after dispatches that have several results and read nothing.

Symptom: a constant result has the bytes of another one.
Cause: IREE 3.13 executes a dispatch without operands again instead of copying one of its results,
and takes the first result of the second execution, whichever it should copy. Such dispatches
compute constants that IREE finds when it fuses operations, such as ``x xor not x``.
Test: `test_iree_still_copies_the_first_result_of_a_constant_dispatch` in
tests/test_iree_limits_numbers.py.

Before, in IREE's flow dialect::

    %0:2 = flow.dispatch @constants::@constants() : () -> (tensor<33xi32>, tensor<33xi8>)
    util.global.store %0#1, @bytes : tensor<33xi8>

After::

    %0:2 = flow.dispatch @constants::@constants() : () -> (tensor<33xi32>, tensor<33xi8>)
    %1 = util.optimization_barrier %0#1 : tensor<33xi8>
    util.global.store %1, @bytes : tensor<33xi8>
"""

from __future__ import annotations

from typing import Any

from .hal_operations import OPTIMIZATION_BARRIER, child_operations, descendants

_CODE = ("util.func", "util.initializer")
"""Operations of a module that call dispatches."""


def keep_results(ir: Any, module: Any) -> None:
    """Put a barrier after each result of a dispatch without operands, if it has several.

    The module is in the flow dialect; `ir` is IREE's bindings.
    """
    for code in [op for op in child_operations(module) if op.name in _CODE]:
        for dispatch in [*descendants(code)]:
            if dispatch.name != "flow.dispatch" or dispatch.operands or len(dispatch.results) < 2:
                continue
            for result in dispatch.results:
                uses = [(use.owner, use.operand_number) for use in result.uses]
                with dispatch.location, ir.InsertionPoint.after(dispatch):
                    barrier = ir.Operation.create(OPTIMIZATION_BARRIER, [result.type], [result])
                for user, number in uses:
                    user.operands[number] = barrier.results[0]
