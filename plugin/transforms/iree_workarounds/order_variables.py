"""``order-variables``: names of variables in the order in which they are assigned.

Symptom: a program with variables is recorded anew in each call (all targets).
Cause: IREE 3.13 places the initial values of variables in one buffer in the order of their names,
and the values that a function assigns in the order of the assignments. Where the orders differ, so
do the offsets of a variable, which become variables themselves.
Test: `test_iree_still_places_initial_values_by_name` in tests/test_variable_offsets.py.

The variables that functions assign are numbered, in front of their names. Those of a program whose
names have this order already keep their names.

Before::

    "util.global"() {sym_name = "state_10", is_mutable, type = tensor<64xi8>, ...}
    "util.global"() {sym_name = "state_9", is_mutable, type = tensor<32xi8>, ...}
    func.func @step(...) {
      "util.global.store"(%0) {global = @state_9} : (tensor<32xi8>) -> ()
      "util.global.store"(%1) {global = @state_10} : (tensor<64xi8>) -> ()

After::

    "util.global"() {sym_name = "1.state_10", is_mutable, type = tensor<64xi8>, ...}
    "util.global"() {sym_name = "0.state_9", is_mutable, type = tensor<32xi8>, ...}
    func.func @step(...) {
      "util.global.store"(%0) {global = @"0.state_9"} : (tensor<32xi8>) -> ()
      "util.global.store"(%1) {global = @"1.state_10"} : (tensor<64xi8>) -> ()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, ir
from ...emit.parameters import LOAD
from ...emit.variables import STORE
from ...errors import Remark
from ..base import UNCHANGED, ModulePass, named

_NAME, _REFERENCE = "sym_name", "global"
_USERS = (STORE, LOAD, "util.global.address")
"""The operations whose attribute `_REFERENCE` names a variable."""


@dataclass(frozen=True)
class OrderVariables(ModulePass):
    """Number the variables that functions assign, unless the order of their names is the same."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`; never fails."""
        users = named(module, _USERS)
        stores = (op for op in users if op.name == STORE and not _is_initial(op))
        assigned = list(dict.fromkeys(op.attributes[_REFERENCE].value for op in stores))
        if assigned == sorted(assigned):
            return UNCHANGED
        digits = len(str(len(assigned)))
        names = {name: f"{number:0{digits}}.{name}" for number, name in enumerate(assigned)}
        for op in named(module, ["util.global"]):
            name = op.attributes[_NAME].value
            op.attributes[_NAME] = ir.StringAttr.get(names.get(name, name), op.context)
        for op in users:
            name = op.attributes[_REFERENCE].value
            new = ir.FlatSymbolRefAttr.get(names.get(name, name), op.context)
            op.attributes[_REFERENCE] = new
        return None


def _is_initial(store: Operation) -> bool:
    """True for an assignment in an initializer."""
    return str(store.parent.name) == "util.initializer"
