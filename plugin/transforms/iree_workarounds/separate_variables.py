"""``separate-variables``: memory of their own for variables with equal initial values.

Symptom: two variables share memory, so an update of one changes the other (all targets).
Cause: IREE 3.13 updates a variable in place where a function stores the loaded value with a part
overwritten (a cache of keys and values, for example). The variable is then one buffer, which IREE
takes for immutable, and it merges two that have the same initial value.
Test: `test_equal_variables_are_still_one_without_the_pass` in tests/test_updates_in_place.py.

The initial value of all but one is selected in an initializer, by a flag that IREE cannot fold: it
would merge two that get the same constant again, also behind a barrier. The select is a loop,
because other forms crash upstream's passes in an initializer.

Before::

    "util.global"() {sym_name = "keys", is_mutable, initial_value = dense<0.0> : tensor<64x8xf16>,
                     type = tensor<64x8xf16>, ...}
    "util.global"() {sym_name = "values", is_mutable, initial_value = dense<0.0> : tensor<64x8xf16>,
                     type = tensor<64x8xf16>, ...}

After::

    "util.global"() {sym_name = "keys", is_mutable, initial_value = dense<0.0> : ..., ...}
    "util.global"() {sym_name = "values", is_mutable, type = tensor<64x8xf16>, ...}
    "util.initializer"() ({
      %hidden = "util.optimization_barrier"(%true) : (i1) -> i1
      %first = linalg.generic ins(%hidden, %zeros, %ones) { ... arith.select ... }
      "util.global.store"(%first) {global = @values} : (tensor<64x8xf16>) -> ()
      "util.return"() : () -> ()
    }) {function_type = () -> ()}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, Value, ir
from ...emit import Scalars, linalg, value, variables
from ...emit.operation import attributes_of, create, splat
from ...errors import Remark
from ...numerics.element_types import BOOL
from ..base import UNCHANGED, ModulePass, named

_INITIAL = "initial_value"


@dataclass(frozen=True)
class SeparateVariables(ModulePass):
    """Initialize all but the first of several variables that start with equal values."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`; never fails."""
        seen: set[ir.Attribute] = set()
        changed = False
        for op in named(module, ["util.global"]):
            if "is_mutable" not in op.attributes or not _is_written(op.attributes["type"].value):
                continue
            initial = op.attributes.get(_INITIAL)
            if not isinstance(initial, ir.DenseElementsAttr):
                continue
            if initial in seen:
                _initialize(op, initial)
                changed = True
            seen.add(initial)
        return None if changed else UNCHANGED


def _is_written(type_: ir.Type) -> bool:
    """True for tensors whose attributes the bindings can read and write: not complex ones."""
    is_tensor = isinstance(type_, ir.RankedTensorType)
    return is_tensor and not isinstance(type_.element_type, ir.ComplexType)


def _initialize(op: Operation, initial: ir.DenseElementsAttr) -> None:
    """Write a variable without an initial value, and an initializer that computes the value."""
    attributes = attributes_of(op)
    del attributes[_INITIAL]
    with ir.InsertionPoint(op), op.location:
        create("util.global", attributes=attributes)
        nothing = ir.TypeAttr.get(ir.FunctionType.get([], []))
        initializer = create("util.initializer", attributes={"function_type": nothing}, regions=1)
        with ir.InsertionPoint(initializer.regions[0].blocks.append()):
            variables.store(op.attributes["sym_name"].value, _opaque_initial_value(initial))
            create("util.return")
    op.erase()


def _opaque_initial_value(initial: ir.DenseElementsAttr) -> Value:
    """An initial value that an opaque flag selects in a loop."""
    true = Scalars().known(1, BOOL).value
    hidden = value(linalg.BARRIER, [true], true.type)
    values = [linalg.constant(initial), linalg.constant(_different_constant(initial))]
    whole = linalg.identity_map(initial.type.rank)
    no_axes = ir.AffineMap.get(initial.type.rank, 0, [])
    output = linalg.empty([int(size) for size in initial.type.shape], initial.type.element_type)
    return linalg.generic(
        [hidden, *values],
        output,
        [no_axes, whole, whole, whole],
        lambda flag, yes, no, _: value("arith.select", [flag, yes, no], yes.type),
    )


def _different_constant(initial: ir.DenseElementsAttr) -> ir.DenseElementsAttr:
    """A constant that differs from an initial value."""
    zeros, ones = (splat(number, initial.type) for number in (0, 1))
    return ones if initial == zeros else zeros
