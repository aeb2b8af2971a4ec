"""``bound-loops``: check the iteration count of loops of dynamic length at run time (Vulkan).

Symptom: wrong results, without an error, on Mesa's llvmpipe.
Cause: llvmpipe ends the loops of an invocation after 65,535 iterations (`long_loops`).
Test: `test_llvmpipe_still_ends_loops` in tests/test_long_loops.py.

Loops of static length are split by `long_loops`, or recorded for the runtime, which refuses them on
that device. The iterations of the others are counted before they run. The runtime sets the maximum
on that device, and a call with more iterations fails with the location. Other devices end no loops,
so the maximum is unlimited there.

Before::

    %s = stablehlo.reduce(%x init: %zero) ... across dimensions = [0]
        : (tensor<?xf32>, tensor<f32>) -> tensor<f32>

After::

    %n = tensor.dim %x, %c0 : tensor<?xf32>
    %most = util.global.load @__subquant_most_iterations : i64
    %ok = arith.cmpi sle, %n, %most
    cf.assert %ok, "the loops of 'stablehlo.reduce' at x.mlir:3:8 run more than 65535 times, ..."
    %s = stablehlo.reduce(%x init: %zero) ...

    util.global private mutable @__subquant_most_iterations = 9223372036854775807 : i64
    func.func @__subquant_bound_loops(%most: i64)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ... import emit
from ...core._mlir import Operation, ir
from ...emit import linalg, variables
from ...emit.operation import create, integer
from ...errors import Remark, place_of
from ...iree_hooks.entry_names import SET_LOOP_LIMIT
from ...signature import MAX_LOOP_ITERATIONS
from ..base import UNCHANGED, ModulePass, named
from .long_loops import LOOPS, Iterations, iterations_of

_MAX_ITERATIONS = "__subquant_most_iterations"
_UNLIMITED = (1 << 63) - 1
"""The loop limit of a device that has none."""


@dataclass(frozen=True)
class BoundLoops(ModulePass):
    """Check before each loop of dynamic length that the device runs it to its end."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`."""
        functions = named(module, ["func.func"])
        if any(op.attributes["sym_name"].value == SET_LOOP_LIMIT for op in functions):
            return UNCHANGED
        iterations = {op: iterations_of(op) for op in named(module, LOOPS)}
        dynamic = {op: count for op, count in iterations.items() if count.dynamic}
        if not dynamic:
            return UNCHANGED
        for op, count in dynamic.items():
            with ir.InsertionPoint(op), op.location:
                _check(op, count)
        with module.location:
            _declare(module.regions[0].blocks[0])
        return None


def _check(op: Operation, iterations: Iterations) -> None:
    """Fail before an operation whose loops run too often."""
    i64 = ir.IntegerType.get_signless(64)
    static = emit.value("arith.constant", [], i64, {"value": integer(iterations.static)})
    count = emit.scalar(static)
    for tensor, axis in iterations.dynamic:
        size = emit.value("arith.index_cast", [linalg.dim(tensor, axis)], i64)
        count = count * emit.scalar(size)
    fits = count <= emit.scalar(variables.load(_MAX_ITERATIONS, i64))
    location = place_of(op.location)
    linalg.check(
        fits.value,
        f"the loops of '{op.name}'{f' at {location}' if location else ''} run more than "
        f"{MAX_LOOP_ITERATIONS} times, after which this device (Mesa's llvmpipe) ends loops, "
        "without an error: run it on another device",
    )


def _declare(block: ir.Block) -> None:
    """Declare the maximum iteration count, and the function that sets it."""
    i64 = ir.IntegerType.get_signless(64)
    with ir.InsertionPoint.at_block_begin(block):
        variables.define(_MAX_ITERATIONS, integer(_UNLIMITED))
    name = ir.StringAttr.get(SET_LOOP_LIMIT)
    type_ = ir.TypeAttr.get(ir.FunctionType.get([i64], []))
    with ir.InsertionPoint(block):
        function = create(
            "func.func", attributes={"sym_name": name, "function_type": type_}, regions=1
        )
    body = function.regions[0].blocks.append(i64, arg_locs=[ir.Location.current])
    with ir.InsertionPoint(body):
        variables.store(_MAX_ITERATIONS, body.arguments[0])
        create("func.return")
