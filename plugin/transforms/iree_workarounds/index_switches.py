"""``scf.index_switch`` as nested ``scf.if``.

Symptom: IREE refuses a switch of several cases with results: "default region returns 2" values (all
targets).
Cause: IREE 3.13 replaces the terminator of the default region once for each case.
Test: `test_forms_that_are_still_refused` in tests/test_iree_limits.py.

Before::

    %t = scf.index_switch %k -> tensor<4xf32>
    case 0 { scf.yield %a } case 1 { scf.yield %b } default { scf.yield %c }

After::

    %is0 = arith.cmpi eq, %k, %c0 : index
    %t = scf.if %is0 -> tensor<4xf32> {
      scf.yield %a
    } else {
      %is1 = arith.cmpi eq, %k, %c1 : index
      %u = scf.if %is1 -> tensor<4xf32> { scf.yield %b } else { scf.yield %c }
      scf.yield %u
    }
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import emit
from ...core._mlir import Operation, Value, ir
from ..base import NoMatch, Replacement


def expand_index_switch(op: Operation) -> Replacement:
    """Rewrite a switch of several cases as a chain of branches."""
    cases = [int(case) for case in op.attributes["cases"]]
    if len(cases) < 2:
        return NoMatch("has one case, or none")
    default, *bodies = (region.blocks[0] for region in op.regions)
    types = [result.type for result in op.results]
    return _branch(op.operands[0], list(zip(cases, bodies, strict=True)), default, types)


def _branch(
    selector: Value,
    cases: Sequence[tuple[int, ir.Block]],
    default: ir.Block,
    types: Sequence[ir.Type],
) -> list[Value]:
    """Write the branch of the first case, with the branches of the later cases in its else."""
    (case, body), *later = cases
    is_case = emit.scalar(selector) == case
    branch = emit.create("scf.if", [is_case.value], types, regions=2)
    body.append_to(branch.regions[0])
    if not later:
        default.append_to(branch.regions[1])
        return list(branch.results)
    with ir.InsertionPoint(branch.regions[1].blocks.append()):
        emit.create("scf.yield", _branch(selector, later, default, types))
    return list(branch.results)
