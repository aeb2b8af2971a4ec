"""``lower-tosa-variables``: lower ``tosa.variable`` to a global that persists between calls.

IREE 3.13 does not parse newer MLIR's ``tosa.variable``, and has mutable globals: one for each
variable, with its initial value, which belongs to the loaded executable. A variable without an
initial value starts with zeros (TOSA does not define it).

Before::

    tosa.variable @state = dense<-128> : tensor<1x2x40xi8>
    func.func @step(...) {
      %0 = tosa.variable_read @state : tensor<1x2x40xi8>
      tosa.variable_write @state, %1 : tensor<1x2x40xi8>

After::

    "util.global"() {sym_name = "state", sym_visibility = "private", is_mutable,
                     type = tensor<1x2x40xi8>, initial_value = dense<-128> : tensor<1x2x40xi8>}
    func.func @step(...) {
      %0 = "util.global.load"() {global = @state} : () -> tensor<1x2x40xi8>
      "util.global.store"(%1) {global = @state} : (tensor<1x2x40xi8>) -> ()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, ir
from ...emit import variables
from ...emit.operation import splat, tensor_type
from ...errors import Remark, UnsupportedError
from ..base import UNCHANGED, ModulePass, walk


@dataclass(frozen=True)
class LowerTosaVariables(ModulePass):
    """Turn the variables of TOSA into globals of IREE."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`.

        Raises:
            UnsupportedError: a variable of a dynamic, unsigned or quantized type.
        """
        operations = [op for op in walk(module) if op.name in _LOWERED]
        for op in operations:
            _LOWERED[op.name](op)
        return None if operations else UNCHANGED


def _define(op: Operation) -> None:
    element = op.attributes["type"].value
    is_signless = isinstance(element, ir.IntegerType) and element.is_signless
    if not is_signless and not isinstance(element, ir.FloatType):
        raise UnsupportedError(
            f"has elements of type '{element}'; run convert-tosa-to-storage first", op
        )
    shape = [int(size) for size in np.array(op.attributes["var_shape"]).reshape(-1)]
    if any(size < 0 for size in shape):
        raise UnsupportedError(
            "has a dynamic shape, and a variable is kept between calls in a buffer of one size; "
            "give it a static shape",
            op,
        )
    with ir.InsertionPoint(op), op.location:
        type_ = tensor_type(shape, element)
        has_initial = "initial_value" in op.attributes
        initial = op.attributes["initial_value"] if has_initial else splat(0, type_)
        variables.define(op.attributes["sym_name"].value, initial)
    op.erase()


def _access(op: Operation) -> None:
    """Replace a read or a write; upstream's verifier has checked that the variable exists."""
    with ir.InsertionPoint(op), op.location:
        name = op.attributes["name"].value
        if op.name == "tosa.variable_write":
            variables.store(name, op.operands[0])
        else:
            op.results[0].replace_all_uses_with(variables.load(name, op.results[0].type))
    op.erase()


_LOWERED = {"tosa.variable": _define, "tosa.variable_read": _access, "tosa.variable_write": _access}
