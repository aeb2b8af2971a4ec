"""Bodies of kernels, which are kept out of the module while IREE compiles the program around them.

A kernel is complete: IREE only numbers its bindings and packs its other arguments. The passes up to
`PUT_BACK_PHASE` walk, match and number all operations of a module many times, though, and kernels
have most of them. A kernel therefore calls a function that is declared only, and whose body waits
elsewhere::

    func.func @kernel(%0: !stream.binding, %1: index) {      func.func private @__body_0(
      %2 = stream.binding.subspan %0[%c0] : ... -> memref<4xi8>    memref<4xi8>, index)
      func.call @__body_0(%2, %1)

Return:
    }

Before IREE lowers executables the body replaces the call, so that the code for a CPU is the same,
byte for byte (`docs/performance/compile-time.md` has the times).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .hal_operations import child_operations

PUT_BACK_PHASE = "executable-sources"
"""The phase of IREE after which the bodies replace their calls."""
_MODULES = ("builtin.module", "hal.executable.variant")
_FUNCTION, _CALL = "func.func", "func.call"


class KernelBodies:
    """The bodies of the kernels of one module; `ir` is IREE's bindings."""

    def __init__(self, ir: Any) -> None:
        self._ir = ir
        self._bodies: dict[str, Any] = {}

    def take(self, module: Any) -> None:
        """Take the bodies out of a module, and leave calls, before IREE compiles the module."""
        for function in [*_kernels(module, "stream.executable")]:
            name = f"__body_{len(self._bodies)}"
            if self._is_separable(function):
                self._bodies[name] = self._take(function, name)

    def put_back(self, module: Any) -> None:
        """Replace the calls by the bodies, and erase the declarations, after `PUT_BACK_PHASE`."""
        for function in [*_kernels(module, "hal.executable")]:
            if function.attributes["sym_name"].value in self._bodies:
                function.erase()
                continue
            for call in child_operations(function):
                name = call.attributes["callee"].value if call.name == _CALL else ""
                if name in self._bodies:
                    self._put_back(call, self._bodies[name])

    def _is_separable(self, function: Any) -> bool:
        """True for one block, whose operations of IREE's stream dialect are not in regions."""
        if [*function.regions[0].blocks][1:] or not child_operations(function):
            return False
        direct: list[str] = [op.name for op in child_operations(function)]
        all_names: list[str] = []

        def visit(op: Any) -> Any:
            all_names.append(op.name)
            return self._ir.WalkResult.ADVANCE

        function.walk(visit, self._ir.WalkOrder.PRE_ORDER)
        counts = [sum(map(_is_of_stream, names)) for names in (direct, all_names)]
        return counts[0] == counts[1]

    def _take(self, function: Any, name: str) -> Any:
        """Return a module with the body of a function as another function, which it calls."""
        ir, block = self._ir, function.regions[0].blocks[0]
        *operations, terminator = child_operations(function)
        remaining = self._needed([op for op in operations if _is_of_stream(op.name)])
        values = [each for each in block.arguments if "stream.binding" not in str(each.type)]
        values += [result for op in operations if op in remaining for result in op.results]
        with function.context, function.location:
            type_ = ir.FunctionType.get([value.type for value in values], [])
            attributes = {
                "sym_name": ir.StringAttr.get(name),
                "sym_visibility": ir.StringAttr.get("private"),
                "function_type": ir.TypeAttr.get(type_),
            }
            body = ir.Module.create()
            with ir.InsertionPoint(body.body):
                holder = ir.Operation.create(_FUNCTION, attributes=attributes, regions=1)
            inner = holder.regions[0].blocks.append(*type_.inputs)
            for op in operations:
                if op not in remaining:
                    op.detach_from_parent()
                    inner.append(op)
            for value, argument in zip(values, inner.arguments, strict=True):
                for user, number in [
                    (use.owner.operation, use.operand_number) for use in value.uses
                ]:
                    if user not in remaining:
                        user.operands[number] = argument
            with ir.InsertionPoint(terminator):
                callee = {"callee": ir.FlatSymbolRefAttr.get(name)}
                ir.Operation.create(_CALL, operands=values, attributes=callee)
            with ir.InsertionPoint(function.parent.regions[0].blocks[0]):
                ir.Operation.create(_FUNCTION, attributes=attributes, regions=1)
        return body

    def _needed(self, operations: list[Any]) -> set[Any]:
        """Return operations of a block and those that compute their operands."""
        needed: set[Any] = set()
        while operations:
            op = operations.pop()
            if op not in needed:
                needed.add(op)
                owners = [operand.owner for operand in op.operands]
                operations += [o.operation for o in owners if not isinstance(o, self._ir.Block)]
        return needed

    def _put_back(self, call: Any, body: Any) -> None:
        """Replace a call by the operations of the body, which is left empty."""
        [holder] = child_operations(body.operation)
        for argument, operand in zip(
            holder.regions[0].blocks[0].arguments, call.operands, strict=True
        ):
            argument.replace_all_uses_with(operand)
        position = self._ir.InsertionPoint(call)
        for op in child_operations(holder):
            op.detach_from_parent()
            position.insert(op)
        call.erase()


def _kernels(module: Any, executable: str) -> Iterator[Any]:
    """Yield the functions of the executables of a module."""
    for op in child_operations(module):
        if op.name == executable or op.name in _MODULES:
            yield from _kernels(op, executable)
        elif op.name == _FUNCTION and module.parent is not None:
            yield op


def _is_of_stream(name: str) -> bool:
    return name.startswith("stream.")
