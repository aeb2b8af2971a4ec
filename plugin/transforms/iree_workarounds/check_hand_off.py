"""``check-hand-off``: the last step before IREE.

Fails, with the place and the reason, if a quantized type, an operation of the ``quant`` or
``subquant`` dialect, or an unranked tensor is left: IREE would refuse it with less to say, or
compile it to wrong numbers. For Vulkan also if a reduction is left whose loops IREE would compute
wrongly (`iree.loop_order`). Then turns the signatures that earlier passes recorded into the
reflection entry that the runtime reads (`subquant.signature`), with what the program may do to its
arguments (`iree.consumed_arguments`), and for Vulkan adds the longest loop that a device may end
(`iree.long_loops`).

Before::

    func.func @f(%q: tensor<4xi8>) attributes {subquant.function_type = (tensor<4x!q>) -> ()}

After::

    func.func @f(%q: tensor<4xi8>) attributes {iree.reflection = {subquant.signature = "..."}}
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...core._mlir import ir
from ...dialects.quant import element_type, is_quantized, parameters_of, parts_of
from ...errors import Remark, UnsupportedError, place_of
from ...signature import (
    BOUND_LOOPS,
    LAID_OUT,
    LAYOUTS_KEY,
    LOOPS_KEY,
    MOST_ITERATIONS,
    REFLECTION_KEY,
    TARGET_KEY,
    WORK_KEY,
    Signature,
    ValueType,
)
from ..base import (
    NAMES_ATTRIBUTES,
    SIGNATURE_ATTRIBUTE,
    UNCHANGED,
    ModulePass,
    TypePredicate,
    is_public,
    named,
    walk,
)
from ..contraction.estimate_work import WORK_ATTRIBUTE
from .consumed_arguments import consumed_values, storing_functions
from .fresh_results import fresh_results
from .long_loops import LOOPS, iterations_of
from .loop_order import is_in_order
from .unsupported_functions import why_absent

__all__ = ["REFLECTION_ATTRIBUTE", "CheckHandOff", "signature_of"]

REFLECTION_ATTRIBUTE = "iree.reflection"


@dataclass(frozen=True)
class CheckHandOff(ModulePass):
    """Raise a located UnsupportedError if IREE cannot take the module; record signatures.

    Options:
        target: what the module is compiled for, recorded for the runtime (``vulkan:generic``).
        functions: refuse functions that IREE does not have (`iree.absent_functions`), unless flags
            for IREE replace them.
    """

    name: ClassVar[str] = "check-hand-off"

    target: str = ""
    functions: bool = False

    def run(self, module: ir.Operation) -> Sequence[Remark]:
        """Check `module`."""
        left = TypePredicate(lambda type_: bool(_why_left(type_)))
        known: set[str] = set()
        operations = walk(module, in_kernels=False)
        for op in operations:
            name = op.name
            if name not in known:
                _check_name(name, op)
                known.add(name)
            reason = why_absent(op, self.target) if self.functions else ""
            if reason:
                raise UnsupportedError(reason, op)
            for value in left.values_of(op):
                raise UnsupportedError(_why_left(value.type), op)
            if name == "func.func":
                type_ = op.attributes["function_type"].value
                for declared in (*type_.inputs, *type_.results):
                    if left(declared):
                        raise UnsupportedError(_why_left(declared), op)
        entries = {TARGET_KEY: self.target} if self.target else {}
        if self.target.startswith("vulkan"):
            _check_loops(operations)
            entries |= _long_loop(module)
        consumed, storing = consumed_values(operations), storing_functions(module)
        for op in named(module, ["func.func"]):
            symbol = op.attributes["sym_name"].value
            if LAID_OUT in symbol:
                _forget(op)
            elif is_public(op) and len(op.regions[0].blocks) and symbol != BOUND_LOOPS:
                arguments = op.regions[0].blocks[0].arguments
                _record(
                    op,
                    entries,
                    [argument in consumed for argument in arguments],
                    op.attributes["sym_name"].value in storing,
                )
        return UNCHANGED  # a function's reflection is an attribute that no verifier knows


_LEFT_DIALECTS = ("quant.", "subquant.", "shape.")


# IREE's own dialects, whose operations the bindings hold without knowing them.
_IREE_DIALECTS = ("util.", "flow.", "hal.", "stream.", "iree_", "io_parameters.", "check.", "vm.")


def _check_name(name: str, op: Any) -> None:
    """Refuse an operation that no pass lowered, or that neither the bindings nor IREE know."""
    if name.startswith(_LEFT_DIALECTS):
        dialect = name.partition(".")[0]
        reason = "IREE has no shape dialect" if dialect == "shape" else "no pass lowered it"
        raise UnsupportedError(f"is left before IREE, and {reason}", op)
    if not name.startswith(_IREE_DIALECTS) and not op.context.is_registered_operation(name):
        raise UnsupportedError(
            "is of a dialect that neither MLIR nor IREE knows, and IREE's compiler would crash on "
            "it; lower it first",
            op,
        )


def _check_loops(operations: Sequence[ir.Operation]) -> None:
    """Refuse a reduction whose loops are in an order that IREE gets wrong."""
    for op in operations:
        if not is_in_order(op):
            raise UnsupportedError(
                "has loops in another order than its result has axes, which IREE computes wrongly "
                "on Vulkan; run isolate-contraction-operands before",
                op,
            )


def _why_left(type_: ir.Type) -> str:
    """Why a type must not be left before IREE; empty if it may."""
    if is_quantized(type_) or any("!quant." in str(part) for part in parts_of(type_)):
        return f"has the quantized type '{type_}' before IREE; run convert-quantized-to-storage"
    if isinstance(type_, ir.UnrankedMemRefType):
        return f"has the type '{type_}', which IREE does not take; expected a tensor"
    if isinstance(type_, ir.UnrankedTensorType):
        return f"has the unranked type '{type_}' before IREE; run lower-unranked-tensors"
    return ""


def signature_of(
    function: Any,
    consumed: Sequence[bool] = (),
    keeps_state: bool = False,
    fresh: Sequence[bool] = (),
) -> Signature:
    """The signature of a lowered function as the user wrote it.

    Args:
        function: the function.
        consumed: whether the program may write to an argument of the lowered function.
        keeps_state: it gives variables values.
        fresh: whether a result of the lowered function is no argument's memory.
    """
    compiled = function.attributes["function_type"].value
    written = compiled
    if SIGNATURE_ATTRIBUTE in function.attributes:
        written = function.attributes[SIGNATURE_ATTRIBUTE].value
    arguments, results = (_names(function, attribute) for attribute in NAMES_ATTRIBUTES)
    return Signature(
        tuple(_values(written.inputs, compiled.inputs, arguments, function, consumed)),
        tuple(_values(written.results, compiled.results, results, function, fresh=fresh)),
        keeps_state,
    )


def _names(function: Any, attribute: str) -> Iterator[str]:
    """The names of arguments or results, and "" for those that have none."""
    if attribute in function.attributes and isinstance(
        function.attributes[attribute], ir.ArrayAttr
    ):
        for name in function.attributes[attribute]:
            yield name.value if isinstance(name, ir.StringAttr) else ""
    yield from itertools.repeat("")


def _long_loop(module: ir.Operation) -> dict[str, str]:
    """The entry for a loop that a device may end before it is done."""
    all_iterations = [(iterations_of(op), op) for op in named(module, LOOPS)]
    # Those of unknown length are checked at run time: see bound-loops.
    found = [(each.known, op) for each, op in all_iterations if not each.unknown]
    most, longest = max(found, key=lambda pair: pair[0], default=(0, None))
    if longest is None or most <= MOST_ITERATIONS:
        return {}
    place = place_of(longest.location)
    return {LOOPS_KEY: f"{most} '{longest.name}'" + (f" at {place}" if place else "")}


def _record(
    function: Any, added: Mapping[str, str], consumed: Sequence[bool], keeps_state: bool
) -> None:
    """Write the reflection; a signature that is there, of a module that was emitted, is kept."""
    signature = signature_of(function, consumed, keeps_state, fresh_results(function))
    written = SIGNATURE_ATTRIBUTE in function.attributes
    _forget(function)
    entries = {}
    if REFLECTION_ATTRIBUTE in function.attributes:
        entries = {entry.name: entry.attr for entry in function.attributes[REFLECTION_ATTRIBUTE]}
    if written or REFLECTION_KEY not in entries:
        entries[REFLECTION_KEY] = ir.StringAttr.get(signature.to_json())
    if WORK_ATTRIBUTE in function.attributes:
        entries[WORK_KEY] = function.attributes[WORK_ATTRIBUTE]
        del function.attributes[WORK_ATTRIBUTE]
    entries |= {key: ir.StringAttr.get(text) for key, text in added.items()}
    if LAYOUTS_KEY in function.attributes:
        entries[LAYOUTS_KEY] = function.attributes[LAYOUTS_KEY]
        del function.attributes[LAYOUTS_KEY]
    function.attributes[REFLECTION_ATTRIBUTE] = ir.DictAttr.get(entries)


def _forget(function: Any) -> None:
    """Drop what says how a function was written."""
    for attribute in (SIGNATURE_ATTRIBUTE, *NAMES_ATTRIBUTES):
        if attribute in function.attributes:
            del function.attributes[attribute]


def _values(
    written: Any,
    compiled: Any,
    names: Iterator[str],
    function: Any,
    consumed: Sequence[bool] = (),
    fresh: Sequence[bool] = (),
) -> Iterator[ValueType]:
    remaining = list(compiled)
    for type_, name in zip(written, names, strict=False):
        unranked = isinstance(type_, ir.UnrankedTensorType)
        place = len(compiled) - len(remaining)
        abi = tuple(str(remaining.pop(0)) for _ in range(2 if unranked else 1))
        parameters = parameters_of(type_, function)
        element = element_type(type_)
        shape: tuple[int | None, ...] | None = ()
        if unranked:
            shape = None
        elif isinstance(type_, ir.ShapedType):
            shape = tuple(
                None if type_.is_dynamic_dim(axis) else int(extent)
                for axis, extent in enumerate(type_.shape)
            )
        yield ValueType(
            element=str(element) if parameters is None else f"i{parameters.storage.width}",
            shape=shape,
            is_scalar=not isinstance(type_, ir.ShapedType),
            parameters=parameters,
            abi=abi,
            name=name,
            is_consumed=any(consumed[place : place + len(abi)]),
            is_fresh=all(fresh[place : place + len(abi)] or (False,)),
        )
