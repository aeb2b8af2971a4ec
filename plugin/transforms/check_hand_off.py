"""``check-hand-off``: the last step before IREE.

Fails, with the place and the reason, if a quantized type, an operation of the ``quant`` or
``subquant`` dialect, or an unranked tensor is left: IREE would refuse it with less to say, or
compile it to wrong numbers. Then turns the signatures that earlier passes recorded into the
reflection entry that the runtime reads (`subquant.signature`).

Before::

    func.func @f(%q: tensor<4xi8>) attributes {subquant.function_type = (tensor<4x!q>) -> ()}

After::

    func.func @f(%q: tensor<4xi8>) attributes {iree.reflection = {subquant.signature = "..."}}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from .._mlir import ir
from ..dialects.quant import element_type, is_quantized, parameters_of
from ..errors import UnsupportedError
from ..signature import REFLECTION_KEY, TARGET_KEY, Signature, ValueType
from .base import SIGNATURE_ATTRIBUTE, ModulePass, is_public, walk

__all__ = ["CheckHandOff"]

_REFLECTION = "iree.reflection"


@dataclass(frozen=True)
class CheckHandOff(ModulePass):
    """Raise a located UnsupportedError if IREE cannot take the module; record signatures.

    Options:
        target: what the module is compiled for, recorded for the runtime (``vulkan:generic``).
    """

    name: ClassVar[str] = "check-hand-off"

    target: str = ""

    def run(self, module: ir.Operation) -> None:
        """Check `module`."""
        for op in walk(module):
            if op.name.startswith(("quant.", "subquant.")):
                raise UnsupportedError("is left before IREE, and no pass lowered it", op)
            if op.name.startswith("shape."):
                raise UnsupportedError("is left before IREE, which has no shape dialect", op)
            for type_ in _types(op):
                if is_quantized(type_):
                    raise UnsupportedError(
                        f"has the quantized type '{type_}' before IREE; run "
                        "convert-quantized-to-storage",
                        op,
                    )
                if isinstance(type_, ir.UnrankedTensorType):
                    raise UnsupportedError(
                        f"has the unranked type '{type_}' before IREE; run lower-unranked-tensors",
                        op,
                    )
        for op in walk(module):
            if op.name == "func.func" and is_public(op) and len(op.regions[0].blocks):
                _record(op, self.target)


def _types(op: Any) -> Iterator[ir.Type]:
    for value in (*op.operands, *op.results):
        yield value.type
    for region in op.regions:
        for block in region:
            for argument in block.arguments:
                yield argument.type
    if "function_type" in op.attributes:
        type_ = op.attributes["function_type"].value
        if isinstance(type_, ir.FunctionType):
            yield from (*type_.inputs, *type_.results)


def _record(function: Any, target: str) -> None:
    compiled = function.attributes["function_type"].value
    written = compiled
    if SIGNATURE_ATTRIBUTE in function.attributes:
        written = function.attributes[SIGNATURE_ATTRIBUTE].value
        del function.attributes[SIGNATURE_ATTRIBUTE]
    signature = Signature(
        tuple(_values(written.inputs, compiled.inputs, function)),
        tuple(_values(written.results, compiled.results, function)),
    )
    entries = {}
    if _REFLECTION in function.attributes:
        entries = {entry.name: entry.attr for entry in function.attributes[_REFLECTION]}
    entries[REFLECTION_KEY] = ir.StringAttr.get(signature.to_json())
    if target:
        entries[TARGET_KEY] = ir.StringAttr.get(target)
    function.attributes[_REFLECTION] = ir.DictAttr.get(entries)


def _values(written: Any, compiled: Any, function: Any) -> Iterator[ValueType]:
    remaining = list(compiled)
    for type_ in written:
        unranked = isinstance(type_, ir.UnrankedTensorType)
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
        )
