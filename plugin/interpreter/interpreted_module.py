"""Interpreted modules: evaluation by StableHLO's reference interpreter, instead of IREE.

The passes of the pipeline ``interpreter`` lower the quantized program to StableHLO's integer and
float operations: those of the StableHLO documentation's "Evaluating quantized programs", after
subquant's own lowering. The interpreter evaluates operation by operation. It is slow, and shares
nothing with IREE: a difference between the two is a bug of one of them.

Source: StableHLO documentation, "Quantization", section on the interpreter's sequence of passes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy.typing as npt

from ..compiler.mlir_client import Source, interpretable
from ..errors import UnsupportedError, UsageError, expected_name, quoted
from ..isolation.limits import Limits
from ..numerics.element_types import Array
from ..runtime.arguments import storage_of_arguments, user_array_of_result
from ..signature import Signature, ValueType
from .interpreter_client import evaluate_in_child


class InterpretedModule:
    """A module whose public functions can be evaluated.

    Args:
        source: as for `subquant.compiler.mlir_client.input_of`.
        reproducer: the file for the source if MLIR crashes; by default ``subquant.reproducer.mlir``
            in the current folder.
        limits: limits of the child process that lowers it.

    Raises:
        SubquantError: the module is wrong, or has an operation that no pass lowers to StableHLO.
    """

    def __init__(
        self,
        source: Source,
        *,
        reproducer: str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        text, signatures = interpretable(source, reproducer=reproducer, limits=limits)
        self.functions = {
            name: InterpretedFunction(name, Signature.from_json(signature), text)
            for name, signature in signatures.items()
        }

    def __getitem__(self, name: str) -> InterpretedFunction:
        """Return a function by name; UsageError if there is none."""
        if name not in self.functions:
            raise UsageError(
                f"no function is named {quoted(name)}; {expected_name(name, self.functions)}"
            )
        return self.functions[name]


class InterpretedFunction:
    """A function of an `InterpretedModule`."""

    def __init__(self, name: str, signature: Signature, text: str) -> None:
        self.name = name
        self.signature = signature
        self._text = text

    def invoke(
        self, arguments: Sequence[npt.ArrayLike], *, quantized_io: bool = False
    ) -> list[Array]:
        """Evaluate the function; arguments and results are those of `subquant.runtime.Function`.

        Raises:
            SignatureError: an argument does not fit.
            UnsupportedError: the interpreter does not know an operation or a type, or crashes.
        """
        inputs = self.signature.inputs
        for number, type_ in enumerate(inputs):
            where = f"argument {number} of '{self.name}'"
            if type_.is_scalar or type_.shape is None:
                raise UnsupportedError(
                    f"{where} is of type {type_}, and the interpreter takes ranked tensors only"
                )
        arrays = storage_of_arguments(arguments, inputs, self.name, quantized_io=quantized_io)
        values = evaluate_in_child(
            self._text,
            self.name,
            arrays,
            [_element(type_) for type_ in inputs],
            is_dynamic=any(None in (type_.shape or ()) for type_ in inputs),
        )
        outputs = self.signature.outputs
        return [
            user_array_of_result(value, type_, quantized_io)
            for value, type_ in zip(values, outputs, strict=True)
        ]


def _element(type_: ValueType) -> str:
    if type_.parameters is not None:
        return f"i{type_.parameters.storage.width}"
    return type_.element
