"""``check-hand-off``: the last pass before IREE, which checks the module and records signatures.

It fails with location and reason if a quantized type, an operation of the ``quant`` or ``subquant``
dialect, or an unranked tensor remains: IREE would refuse it with a worse message, or compile it to
wrong numbers. For Vulkan it also fails if a reduction remains whose loop order IREE gets wrong
(`loop_order`).

It then turns the signatures that earlier passes recorded into the reflection entry that the runtime
reads (`subquant.signature`), with the arguments that the program may write to
(`consumed_arguments`). For Vulkan it adds the longest loop that a device may end (`long_loops`).

Before::

    func.func @f(%q: tensor<4xi8>) attributes {subquant.function_type = (tensor<4x!q>) -> ()}

After::

    func.func @f(%q: tensor<4xi8>) attributes {iree.reflection = {subquant.signature = "..."}}
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core._mlir import ir
from ...dialects.quant import element_type, is_quantized, parameters_of, parts_of, shape_of
from ...errors import Remark, UnsupportedError, place_of
from ...iree_hooks.entry_names import PREPACKED_SUFFIX, SET_LOOP_LIMIT
from ...signature import (
    LAYOUTS_KEY,
    LOOPS_KEY,
    MAX_LOOP_ITERATIONS,
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
    WORK_ATTRIBUTE,
    ModulePass,
    TypePredicate,
    is_public,
    named,
    walk,
)
from .consumed_arguments import consumed_values, storing_functions
from .fresh_results import fresh_results
from .long_loops import LOOPS, iterations_of
from .loop_order import is_in_order
from .unsupported_functions import why_absent

REFLECTION_ATTRIBUTE = "iree.reflection"


@dataclass(frozen=True)
class CheckHandOff(ModulePass):
    """Raise a located UnsupportedError if IREE cannot take the module; record signatures.

    Options:
        target: target of the compilation, recorded for the runtime (``vulkan:generic``).
        functions: refuse functions that IREE does not have (`unsupported_functions`); off if flags
            for IREE replace them.
    """

    target: str = ""
    functions: bool = False

    def run(self, module: ir.Operation) -> Sequence[Remark]:
        """Check `module`."""
        is_refused = TypePredicate(lambda type_: bool(_reason_to_refuse(type_)))
        checked_names: set[str] = set()
        operations = walk(module, in_kernels=False)
        for op in operations:
            name = op.name
            if name not in checked_names:
                _check_name(name, op)
                checked_names.add(name)
            reason = why_absent(op, self.target) if self.functions else ""
            if reason:
                raise UnsupportedError(reason, op)
            for value in is_refused.values_of(op):
                raise UnsupportedError(_reason_to_refuse(value.type), op)
            if name == "func.func":
                type_ = op.attributes["function_type"].value
                for declared in (*type_.inputs, *type_.results):
                    if is_refused(declared):
                        raise UnsupportedError(_reason_to_refuse(declared), op)
        entries = {TARGET_KEY: self.target} if self.target else {}
        if self.target.startswith("vulkan"):
            _check_loops(operations)
            entries |= _long_loop(module)
        consumed, storing = consumed_values(operations), storing_functions(module)
        for op in named(module, ["func.func"]):
            symbol = op.attributes["sym_name"].value
            if PREPACKED_SUFFIX in symbol:
                _drop_signature_attributes(op)
            elif is_public(op) and len(op.regions[0].blocks) and symbol != SET_LOOP_LIMIT:
                _check_signature(op)
                arguments = op.regions[0].blocks[0].arguments
                is_consumed = [argument in consumed for argument in arguments]
                _write_reflection(op, entries, is_consumed, symbol in storing)
        return UNCHANGED  # no verifier looks at a function's reflection


_VALUES = (ir.RankedTensorType, ir.IntegerType, ir.FloatType, ir.IndexType, ir.VectorType)
_IREE_TYPES = ("!hal.", "!util.")
_LOWERED_DIALECTS = ("quant.", "subquant.", "shape.")
# Dialects of IREE, which the bindings do not register.
_IREE_DIALECTS = ("util.", "flow.", "hal.", "stream.", "iree_", "io_parameters.", "check.", "vm.")


def _check_name(name: str, op: Any) -> None:
    """Refuse an operation that no pass lowered, or that neither the bindings nor IREE know."""
    if name.startswith(_LOWERED_DIALECTS):
        dialect = name.partition(".")[0]
        reason = "IREE has no shape dialect" if dialect == "shape" else "no pass lowered it"
        raise UnsupportedError(f"is left before IREE, and {reason}", op)
    if not name.startswith(_IREE_DIALECTS) and not op.context.is_registered_operation(name):
        raise UnsupportedError(
            "is of a dialect that neither MLIR nor IREE knows, and IREE's compiler would crash on "
            "it; lower it first",
            op,
        )


def _check_signature(op: Any) -> None:
    """Refuse a public function with arguments or results that are neither tensors nor numbers."""
    type_ = op.attributes["function_type"].value
    for kind, declared in (("argument", type_.inputs), ("result", type_.results)):
        for number, each in enumerate(declared):
            if not isinstance(each, _VALUES) and not str(each).startswith(_IREE_TYPES):
                raise UnsupportedError(
                    f"has {kind} {number} of type '{each}'; expected a tensor or a number", op
                )


def _check_loops(operations: Sequence[ir.Operation]) -> None:
    """Refuse a reduction whose loop order IREE gets wrong."""
    for op in operations:
        if not is_in_order(op):
            raise UnsupportedError(
                "has loops in another order than its result has axes, which IREE computes wrongly "
                "on Vulkan; run isolate-contraction-operands before",
                op,
            )


def _reason_to_refuse(type_: ir.Type) -> str:
    """The reason why a type must not remain before IREE; empty if it may."""
    if is_quantized(type_) or any("!quant." in str(inner) for inner in parts_of(type_)):
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
        consumed: for each argument of the lowered function, True if the program may write to it.
        keeps_state: True if the function stores variables.
        fresh: for each result of the lowered function, True if it never aliases an argument.
    """
    compiled = function.attributes["function_type"].value
    written = compiled
    if SIGNATURE_ATTRIBUTE in function.attributes:
        written = function.attributes[SIGNATURE_ATTRIBUTE].value
    arguments, results = (_names(function, attribute) for attribute in NAMES_ATTRIBUTES)
    return Signature(
        tuple(_value_types(written.inputs, compiled.inputs, arguments, function, consumed)),
        tuple(_value_types(written.results, compiled.results, results, function, fresh=fresh)),
        keeps_state,
    )


def _names(function: Any, attribute: str) -> Iterator[str]:
    """The names of arguments or results; "" for each that has none."""
    names = function.attributes.get(attribute)
    for name in names if isinstance(names, ir.ArrayAttr) else ():
        yield name.value if isinstance(name, ir.StringAttr) else ""
    yield from itertools.repeat("")


def _long_loop(module: ir.Operation) -> dict[str, str]:
    """The reflection entry for a loop that a device may end before it is done."""
    iterations = [(iterations_of(op), op) for op in named(module, LOOPS)]
    # Loops of dynamic length are checked at run time: see bound-loops.
    static = [(count.static, op) for count, op in iterations if not count.dynamic]
    count, longest = max(static, key=lambda pair: pair[0], default=(0, None))
    if longest is None or count <= MAX_LOOP_ITERATIONS:
        return {}
    location = place_of(longest.location)
    return {LOOPS_KEY: f"{count} '{longest.name}'" + (f" at {location}" if location else "")}


def _write_reflection(
    function: Any, entries_of_module: Mapping[str, str], consumed: Sequence[bool], keeps_state: bool
) -> None:
    """Write the reflection; the signature of a module that was emitted before is not replaced."""
    signature = signature_of(function, consumed, keeps_state, fresh_results(function))
    written = SIGNATURE_ATTRIBUTE in function.attributes
    _drop_signature_attributes(function)
    entries = {}
    if REFLECTION_ATTRIBUTE in function.attributes:
        entries = {entry.name: entry.attr for entry in function.attributes[REFLECTION_ATTRIBUTE]}
    if written or REFLECTION_KEY not in entries:
        entries[REFLECTION_KEY] = ir.StringAttr.get(signature.to_json())
    if WORK_ATTRIBUTE in function.attributes:
        entries[WORK_KEY] = function.attributes[WORK_ATTRIBUTE]
        del function.attributes[WORK_ATTRIBUTE]
    entries |= {key: ir.StringAttr.get(text) for key, text in entries_of_module.items()}
    if LAYOUTS_KEY in function.attributes:
        entries[LAYOUTS_KEY] = function.attributes[LAYOUTS_KEY]
        del function.attributes[LAYOUTS_KEY]
    function.attributes[REFLECTION_ATTRIBUTE] = ir.DictAttr.get(entries)


def _drop_signature_attributes(function: Any) -> None:
    """Drop the attributes that hold how a function was written."""
    for attribute in (SIGNATURE_ATTRIBUTE, *NAMES_ATTRIBUTES):
        if attribute in function.attributes:
            del function.attributes[attribute]


def _value_types(
    written: Any,
    compiled: Any,
    names: Iterator[str],
    function: Any,
    consumed: Sequence[bool] = (),
    fresh: Sequence[bool] = (),
) -> Iterator[ValueType]:
    end = 0
    for type_, name in zip(written, names, strict=False):
        unranked = isinstance(type_, ir.UnrankedTensorType)
        start, end = end, end + (2 if unranked else 1)
        parameters = parameters_of(type_, function)
        element = element_type(type_)
        shape: tuple[int | None, ...] | None = None if unranked else ()
        if not unranked and isinstance(type_, ir.ShapedType):
            shape = tuple(shape_of(type_))
        yield ValueType(
            element=str(element) if parameters is None else f"i{parameters.storage.width}",
            shape=shape,
            is_scalar=not isinstance(type_, ir.ShapedType),
            parameters=parameters,
            abi=tuple(map(str, compiled[start:end])),
            name=name,
            is_consumed=any(consumed[start:end]),
            is_fresh=all(fresh[start:end] or (False,)),
        )
