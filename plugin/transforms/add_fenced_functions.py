"""``add-fenced-functions``: functions that return before the device is done (Vulkan).

A function that waits itself waits for a thread of IREE's, which can take longer than the device
does: `subquant.runtime.open_device` says why. So beside each public function there is one that
takes two fences, to wait for and to signal, and the runtime waits for the device. IREE calls this
``coarse-fences``, and its tools take what has a ``$`` in its name for nothing that a user calls.
The function without fences calls the one with them, so that other runtimes find it as before.

IREE 3.13 writes such functions on request (``--iree-execution-model=async-external``), but none
without fences beside them, and where some results are tensors and some are not it forgets those.
Functions that return no tensor, have tensors of types as ``ui32``, and those of which attributes
tell IREE what to do with arguments, are left to it. So are all of a module that has more than a
few: IREE's compiler takes 0.1 s for the two that are added to each, whatever is in them, which is
half as much again for small ones. What lays a weight out is called once, and left too.

Before::

    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { ... }

After::

    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
      %view = hal.tensor.export %x : tensor<4xf32> -> !hal.buffer_view
      %done = hal.fence.create ... : !hal.fence
      %0 = func.call @f$async(%view, %none, %done)
      hal.fence.await until([%done]) ...
      %1 = hal.tensor.import %0 : !hal.buffer_view -> tensor<4xf32>
      return %1 : tensor<4xf32>
    }
    func.func private @f$body(%x: tensor<4xf32>) -> tensor<4xf32> { ... }
    func.func @f$async(%view: !hal.buffer_view, %ready: !hal.fence, %done: !hal.fence)
        -> !hal.buffer_view attributes {iree.reflection = {iree.abi.model = "coarse-fences"}} {
      %x = hal.tensor.import wait(%ready) => %view : !hal.buffer_view -> tensor<4xf32>
      %0 = func.call @f$body(%x) : (tensor<4xf32>) -> tensor<4xf32>
      %1 = hal.tensor.barrier join(%0 : tensor<4xf32>) => %done : !hal.fence
      %2 = hal.tensor.export %1 : tensor<4xf32> -> !hal.buffer_view
      return %2 : !hal.buffer_view
    }
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .._mlir import Operation, Value, ir
from ..emit import linalg
from ..emit.operation import constant, create, index_type, is_dynamic, value
from ..errors import Remark
from ..signature import FENCED, FENCES, LAID_OUT, MODEL_KEY
from .base import UNCHANGED, ModulePass, is_public, named
from .check_hand_off import REFLECTION_ATTRIBUTE

__all__ = ["AddFencedFunctions"]

_BODY = "$body"
_LAYS_OUT = f"{LAID_OUT}_"
_MOST = 4
"""Functions of a module to which others are added."""
_APART = ("no_inline", "noinline")
"""Attributes of a function that is not written where it is called: MLIR's, and IREE's."""


@dataclass(frozen=True)
class AddFencedFunctions(ModulePass):
    """Add functions that take fences, and have those without call them."""

    name: ClassVar[str] = "add-fenced-functions"

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`."""
        taken = set(_symbols(module))
        changed = {}
        for function in named(module, ["func.func"]):
            name = function.attributes["sym_name"].value
            is_free = not taken & {name + _BODY, name + FENCED}
            if is_free and _LAYS_OUT not in name and _may_take_fences(function):
                changed[name] = function
        if not 0 < len(changed) <= _MOST:
            return UNCHANGED
        for call in named(module, ["func.call"]):
            callee = call.attributes["callee"].value
            if callee in changed:
                call.attributes["callee"] = ir.FlatSymbolRefAttr.get(callee + _BODY)
        for name, function in changed.items():
            with ir.InsertionPoint.after(function), function.location:
                _split(name, function)
        return None


def _symbols(module: Operation) -> Iterator[str]:
    for op in module.regions[0].blocks[0].operations:
        if "sym_name" in op.attributes:
            yield op.attributes["sym_name"].value


def _may_take_fences(function: Any) -> bool:
    """True for a public function with a body that returns a tensor, and is not IREE's matter."""
    if not is_public(function) or not len(function.regions[0].blocks):
        return False
    names = list(function.attributes)
    for of_values in ("arg_attrs", "res_attrs"):
        if of_values in names:
            names += [each.name for said in function.attributes[of_values] for each in said]
    if any(name.startswith("iree.abi") for name in names):
        return False
    type_ = function.attributes["function_type"].value
    if any(map(_has_sign, (*type_.inputs, *type_.results))):
        return False
    return any(map(_is_tensor, type_.results))


def _has_sign(type_: ir.Type) -> bool:
    """True for tensors of ``ui32`` and the like, which IREE exports in its own functions only."""
    if not _is_tensor(type_):
        return False
    element = type_.element_type
    return isinstance(element, ir.IntegerType) and not element.is_signless


def _is_tensor(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType)


def _split(name: str, function: Operation) -> None:
    """Move the body of a function to another one, which one with fences calls, and this that."""
    type_ = function.attributes["function_type"].value
    inputs, results = type_.inputs, type_.results
    body = create(
        "func.func",
        attributes={
            "sym_name": ir.StringAttr.get(name + _BODY),
            "sym_visibility": ir.StringAttr.get("private"),
            "function_type": ir.TypeAttr.get(type_),
        },
        regions=1,
    )
    for each in list(function.regions[0].blocks):
        each.append_to(body.regions[0])
    block = _fenced(name + FENCED, inputs, results)
    with ir.InsertionPoint(block):
        _call_body(name + _BODY, block.arguments, inputs, results)
    block = _block(function, inputs)
    with ir.InsertionPoint(block):
        _call_fenced(name + FENCED, block.arguments, results)


def _fenced(name: str, inputs: Iterable[ir.Type], results: Iterable[ir.Type]) -> ir.Block:
    """Make the function that takes fences."""
    given = [*map(_passed, inputs), _fence(), _fence()]
    model = {MODEL_KEY: ir.StringAttr.get(FENCES)}
    attributes = {
        "sym_name": ir.StringAttr.get(name),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get(given, [*map(_passed, results)])),
        REFLECTION_ATTRIBUTE: ir.DictAttr.get(model),
        # In what calls it, everything that IREE makes of it would be a second time.
        **dict.fromkeys(_APART, ir.UnitAttr.get()),
    }
    return _block(create("func.func", attributes=attributes, regions=1), given)


def _block(function: Operation, inputs: Sequence[ir.Type]) -> ir.Block:
    places = [ir.Location.current] * len(inputs)
    block: ir.Block = function.regions[0].blocks.append(*inputs, arg_locs=places)
    return block


def _call_body(
    name: str, given: Sequence[Value], inputs: Sequence[ir.Type], results: Sequence[ir.Type]
) -> None:
    """Call a function when a fence is reached, and have it signal another."""
    *arguments, ready, done = given
    tensors = [
        _imported(argument, type_, f"input{number}", ready) if _is_tensor(type_) else argument
        for number, (argument, type_) in enumerate(zip(arguments, inputs, strict=True))
    ]
    made = _called(name, tensors, results)
    places = [number for number, type_ in enumerate(results) if _is_tensor(type_)]
    behind = create(
        "hal.tensor.barrier",
        [*(made[number] for number in places), done],
        [results[number] for number in places],
    )
    for number, tensor in zip(places, behind.results, strict=True):
        made[number] = _exported(tensor, f"output{number}")
    create("func.return", made)


def _call_fenced(name: str, arguments: Iterable[Value], results: Sequence[ir.Type]) -> None:
    """Call a function that takes fences, and wait for it."""
    i32, i64 = (ir.IntegerType.get_signless(width) for width in (32, 64))
    no_flags = {"flags": ir.IntegerAttr.get(i64, 0)}
    device = value("hal.devices.get", [linalg.constant_index(0)], ir.Type.parse("!hal.device"))
    given = [_exported(each) if _is_tensor(each.type) else each for each in arguments]
    ready = value("util.null", [], _fence())
    done = value("hal.fence.create", [device], _fence(), no_flags)
    made = _called(name, [*given, ready, done], [*map(_passed, results)])
    forever = constant(ir.IntegerAttr.get(i32, -1))
    value("hal.fence.await", [forever, done], i32, no_flags)
    returned = [
        _imported(view, type_) if _is_tensor(type_) else view
        for view, type_ in zip(made, results, strict=True)
    ]
    create("func.return", returned)


def _called(name: str, operands: Sequence[Value], results: Sequence[ir.Type]) -> list[Value]:
    callee = {"callee": ir.FlatSymbolRefAttr.get(name)}
    return list(create("func.call", operands, results, callee).results)


def _passed(type_: ir.Type) -> ir.Type:
    """What IREE passes for a type."""
    return ir.Type.parse("!hal.buffer_view") if _is_tensor(type_) else type_


def _fence() -> ir.Type:
    return ir.Type.parse("!hal.fence")


def _imported(view: Value, type_: ir.Type, name: str = "", ready: Value | None = None) -> Value:
    """The tensor of a buffer view."""
    extents = [
        value("hal.buffer_view.dim", [view], index_type(), {"index": _axis(axis)})
        for axis in _dynamic_axes(type_)
    ]
    fences = [] if ready is None else [ready]
    attributes = {
        "target_encoding": ir.TypeAttr.get(type_),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, len(extents), len(fences), 0]),
        **_named(name),
    }
    return value("hal.tensor.import", [view, *extents, *fences], type_, attributes)


def _exported(tensor: Value, name: str = "") -> Value:
    """The buffer view of a tensor."""
    extents = [linalg.dim(tensor, axis) for axis in _dynamic_axes(tensor.type)]
    attributes = {"source_encoding": ir.TypeAttr.get(tensor.type), **_named(name)}
    return value("hal.tensor.export", [tensor, *extents], _passed(tensor.type), attributes)


def _named(name: str) -> Mapping[str, ir.Attribute]:
    """As IREE names an argument or a result, which is in its messages."""
    return {"name": ir.StringAttr.get(name)} if name else {}


def _dynamic_axes(type_: ir.Type) -> list[int]:
    return [axis for axis, extent in enumerate(type_.shape) if is_dynamic(extent)]


def _axis(number: int) -> ir.Attribute:
    return ir.IntegerAttr.get(index_type(), number)
