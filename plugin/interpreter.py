"""Evaluate a module with StableHLO's reference interpreter, instead of IREE.

The quantized program is written with StableHLO's integer and float operations by the passes of
`INTERPRETER_PIPELINE`, those of the StableHLO documentation's "Evaluating quantized programs" with
subquant's own lowering in front, and evaluated operation by operation. It is slow, and shares
nothing with IREE: what differs between the two is a bug of one of them.

Source: StableHLO documentation, "Quantization", section on the interpreter's sequence of passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._mlir import (
    in_context_of,
    ir,
    passmanager,
    register_upstream_passes,
    stablehlo,
    translate_errors,
)
from .compiler import read_module
from .dialects.quant import array_of_dense, dense_of_array
from .errors import SignatureError, UnsupportedError, UsageError
from .pipeline import NAMED_PIPELINES, parse_pipeline, run_pipeline
from .quantization import Array
from .runtime import array_of_argument, array_of_result
from .signature import Signature, ValueType
from .transforms.base import is_public, walk
from .transforms.check_hand_off import signature_of

__all__ = ["INTERPRETER_PIPELINE", "InterpretedFunction", "InterpretedModule"]

INTERPRETER_PIPELINE = NAMED_PIPELINES["interpreter"]
"""The passes that prepare a module, as text."""

_EVALUATED = ("func.", "stablehlo.", "chlo.", "quant.", "subquant.")
_ENTRY = "main"  # what the interpreter evaluates


class InterpretedModule:
    """A module whose public functions can be evaluated.

    Args:
        source: as for `subquant.compiler.read_module`.

    Raises:
        SubquantError: the module is wrong, or has an operation that no pass writes with
            StableHLO's operations.
    """

    def __init__(self, source: Any) -> None:
        self._module = read_module(source)
        for op in walk(self._module.operation):
            if not op.name.startswith(_EVALUATED):
                raise UnsupportedError(
                    "is not an operation that StableHLO's interpreter evaluates; it takes "
                    "functions of stablehlo, chlo, quant and subquant operations",
                    op,
                )
        run_pipeline(self._module, parse_pipeline("interpreter"))
        self.functions: dict[str, InterpretedFunction] = {}
        with in_context_of(self._module.operation):
            for op in self._module.body.operations:
                operation = op.operation
                if operation.name == "func.func" and is_public(operation):
                    name = operation.attributes["sym_name"].value
                    signature = signature_of(operation)
                    self.functions[name] = InterpretedFunction(name, signature, self._module)

    def __getitem__(self, name: str) -> InterpretedFunction:
        """Return a function by name; UsageError if there is none."""
        if name not in self.functions:
            raise UsageError(
                f"no function is named '{name}'; expected one of: {', '.join(self.functions)}"
            )
        return self.functions[name]


class InterpretedFunction:
    """A function of an `InterpretedModule`."""

    def __init__(self, name: str, signature: Signature, module: ir.Module) -> None:
        self.name = name
        self.signature = signature
        self._module = module

    def invoke(self, arguments: Sequence[Any], *, quantized_io: bool = False) -> list[Array]:
        """Evaluate the function; arguments and results are those of `subquant.runtime.Function`.

        Raises:
            SignatureError: an argument does not fit.
            UnsupportedError: the interpreter does not know an operation or a type.
        """
        inputs = self.signature.inputs
        if len(arguments) != len(inputs):
            raise SignatureError(
                f"function '{self.name}' takes {len(inputs)} arguments, got {len(arguments)}"
            )
        arrays = []
        for number, (argument, type_) in enumerate(zip(arguments, inputs, strict=True)):
            _check_interpreted(type_, f"argument {number} of '{self.name}'")
            where = f"argument {number} of '{self.name}'"
            arrays.append(array_of_argument(argument, type_, where, quantized_io))
        module = ir.Module.parse(str(self._module), self._module.context)
        with in_context_of(module.operation):
            _name_entry(module, self.name)
            elements = [_element(type_) for type_ in inputs]
            dense = [
                _dense(array, element) for array, element in zip(arrays, elements, strict=True)
            ]
            if any(None in (type_.shape or ()) for type_ in inputs):
                _refine(module, [attribute.type for attribute in dense])
            failed = "StableHLO's interpreter does not know an operation or type of the program"
            with translate_errors(UnsupportedError, failed):
                try:
                    results = stablehlo.eval_module(module, dense)
                except (RuntimeError, ValueError) as error:
                    raise UnsupportedError(f"{failed}: {error}") from None
            values = [_array(result) for result in results]
        outputs = self.signature.outputs
        return [
            array_of_result(value, type_, quantized_io)
            for value, type_ in zip(values, outputs, strict=True)
        ]


def _check_interpreted(type_: ValueType, where: str) -> None:
    if type_.is_scalar or type_.shape is None:
        raise UnsupportedError(
            f"{where} is of type {type_}, and the interpreter takes ranked tensors only"
        )


def _name_entry(module: ir.Module, name: str) -> None:
    """Give the function the name that the interpreter evaluates, and its calls too."""
    renamed = {name: _ENTRY, _ENTRY: f"{_ENTRY}_of_the_program"} if name != _ENTRY else {}
    for op in walk(module.operation):
        for attribute in ("sym_name", "callee"):
            if attribute in op.attributes and op.name in ("func.func", "func.call"):
                old = op.attributes[attribute].value
                if old in renamed:
                    kind = ir.StringAttr if attribute == "sym_name" else ir.FlatSymbolRefAttr
                    op.attributes[attribute] = kind.get(renamed[old])


def _refine(module: ir.Module, types: Sequence[ir.Type]) -> None:
    """Give a program of dynamic shapes those of its arguments."""
    register_upstream_passes()
    given = ",".join(str(type_) for type_ in types)
    text = (
        f"builtin.module(stablehlo-refine-arguments{{types={given}}},stablehlo-refine-shapes,"
        "func.func(stablehlo-canonicalize-dynamism))"
    )
    with translate_errors(UnsupportedError, "the program cannot be given static shapes"):
        passmanager.PassManager.parse(text).run(module.operation)


def _element(type_: ValueType) -> ir.Type:
    if type_.parameters is not None:
        return ir.IntegerType.get_signless(type_.parameters.storage.width)
    return ir.Type.parse(type_.element)


def _dense(array: Array, element: ir.Type) -> ir.Attribute:
    if isinstance(element, ir.IntegerType) and element.width == 1:
        type_ = ir.RankedTensorType.get(list(array.shape), element)
        bits = [ir.BoolAttr.get(bool(bit)) for bit in array.reshape(-1)]
        return ir.DenseElementsAttr.get(bits, type_)
    return dense_of_array(np.asarray(array), element)


def _array(attribute: ir.Attribute) -> Array:
    type_ = attribute.type
    if str(type_.element_type) == "i1":
        return np.asarray(np.array(attribute), np.bool_).reshape(list(type_.shape))
    return array_of_dense(attribute).reshape(list(type_.shape))
