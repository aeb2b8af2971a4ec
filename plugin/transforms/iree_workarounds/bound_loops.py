"""``bound-loops``: loops of unknown length are checked at run time (Vulkan).

Mesa's llvmpipe ends the loops of an invocation after 65,535 iterations, without an error. Those of
known length are split (`iree.long_loops`), or recorded for the runtime, which refuses them on that
device. The others are counted before they run: the runtime sets on that device how many iterations
there may be, and a call with more fails with the place. Elsewhere nothing ends, and so nothing is
refused.

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
from typing import ClassVar

from ... import emit
from ...core._mlir import Operation, ir
from ...emit import linalg, variables
from ...emit.operation import create, integer
from ...errors import Remark, place_of
from ...signature import BOUND_LOOPS, MOST_ITERATIONS
from ..base import UNCHANGED, ModulePass, named
from .long_loops import LOOPS, Iterations, iterations_of

__all__ = ["BoundLoops"]

_MOST = "__subquant_most_iterations"
_UNBOUNDED = (1 << 63) - 1


@dataclass(frozen=True)
class BoundLoops(ModulePass):
    """Check before each loop of unknown length that the device runs it to its end."""

    name: ClassVar[str] = "bound-loops"

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`."""
        functions = named(module, ["func.func"])
        if any(op.attributes["sym_name"].value == BOUND_LOOPS for op in functions):
            return UNCHANGED
        unknown = [(op, iterations_of(op)) for op in named(module, LOOPS)]
        unknown = [(op, iterations) for op, iterations in unknown if iterations.unknown]
        if not unknown:
            return UNCHANGED
        for op, iterations in unknown:
            with ir.InsertionPoint(op), op.location:
                _check(op, iterations)
        with module.location:
            _declare(module.regions[0].blocks[0])
        return None


def _check(op: Operation, iterations: Iterations) -> None:
    """Fail before an operation whose loops run too often."""
    i64 = ir.IntegerType.get_signless(64)
    known = emit.value("arith.constant", [], i64, {"value": integer(iterations.known)})
    count = emit.scalar(known)
    for tensor, axis in iterations.unknown:
        extent = emit.value("arith.index_cast", [linalg.dim(tensor, axis)], i64)
        count = count * emit.scalar(extent)
    fits = count <= emit.scalar(variables.load(_MOST, i64))
    place = place_of(op.location)
    linalg.check(
        fits.value,
        f"the loops of '{op.name}'{f' at {place}' if place else ''} run more than "
        f"{MOST_ITERATIONS} times, after which this device (Mesa's llvmpipe) ends loops, without "
        "an error: run it on another device",
    )


def _declare(block: ir.Block) -> None:
    """Declare how many iterations there may be, and the function that sets it."""
    i64 = ir.IntegerType.get_signless(64)
    with ir.InsertionPoint.at_block_begin(block):
        variables.define(_MOST, integer(_UNBOUNDED))
    name = ir.StringAttr.get(BOUND_LOOPS)
    type_ = ir.TypeAttr.get(ir.FunctionType.get([i64], []))
    with ir.InsertionPoint(block):
        function = create(
            "func.func", attributes={"sym_name": name, "function_type": type_}, regions=1
        )
    body = function.regions[0].blocks.append(i64, arg_locs=[ir.Location.current])
    with ir.InsertionPoint(body):
        variables.store(_MOST, body.arguments[0])
        create("func.return")
