"""``legalize-constants``: write constants in forms that the bindings read.

No pass could read these constants, and no kernel prepack them as weights:

* resources: torch-mlir and other importers write weights as ``dense_resource``, whose bytes are at
  the end of the file. A boolean is a byte, 0 or 1;
* complex numbers, which the bindings cannot even return.

Before::

    %w = stablehlo.constant dense_resource<weight> : tensor<2x2xf32>
    %c = stablehlo.constant dense<(1.0, 2.0)> : tensor<3xcomplex<f32>>
    ...
    {-# dialect_resources: { builtin: { weight: "0x040000000000803F..." } } #-}

After::

    %w = stablehlo.constant dense<[[1.0, ...], ...]> : tensor<2x2xf32>
    %re = stablehlo.constant dense<1.0> : tensor<3xf32>
    %im = stablehlo.constant dense<2.0> : tensor<3xf32>
    %c = stablehlo.complex %re, %im : tensor<3xcomplex<f32>>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, ir
from ...dialects.dense import (
    CONSTANTS,
    array_of_dense,
    elements_attribute,
    elements_of_resource,
    resource_of,
)
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import value
from ...errors import Remark, UnsupportedError
from ...numerics.element_types import I8
from ..base import UNCHANGED, ModulePass, named

_DENSE_TEXT = re.compile(r"dense<(.*)> : tensor<", re.DOTALL)
_PAIR = re.compile(r"\(([^()]*)\)")


@dataclass(frozen=True)
class LegalizeConstants(ModulePass):
    """Replace the resources of constants by their elements, and complex constants by real ones."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`.

        Raises:
            VerificationError: a resource that is missing, or does not fit its type.
            UnsupportedError: a resource of integers of 2 to 7 bits, or of complex numbers.
        """
        changes = [_legalize(op) for op in named(module, (*CONSTANTS, "tosa.const"))]
        return None if any(changes) else UNCHANGED


def _legalize(op: Operation) -> bool:
    type_ = op.results[0].type
    if isinstance(type_, ir.RankedTensorType) and isinstance(type_.element_type, ir.ComplexType):
        _split_complex(op, type_)
        return True
    resource = resource_of(op)
    if resource is None or isinstance(resource.type.element_type, ir.IndexType):
        return False
    element = resource.type.element_type
    if isinstance(element, ir.IntegerType) and 1 < element.width < I8.bits:
        raise UnsupportedError(
            f"has a resource of type '{resource.type}', and MLIR does not define how fewer than 8 "
            "bits are packed in it; write the elements (dense<...>)",
            op,
        )
    op.attributes[elements_attribute(op)] = elements_of_resource(op, resource.type)
    return True


def _split_complex(op: Operation, type_: ir.RankedTensorType) -> None:
    """Replace a complex constant by one of real and one of imaginary parts.

    Its text is parsed again, as pairs of reals along one more axis.
    """
    element = type_.element_type.element_type
    match = _DENSE_TEXT.search(op.get_asm(print_generic_op_form=True, large_elements_limit=None))
    if match is None or not isinstance(element, ir.FloatType):
        raise UnsupportedError(
            f"has elements of type '{type_}' in a form that is not read; write the elements "
            "(dense<...>), in f32 or f64",
            op,
        )
    elements, shape = match.group(1), [int(size) for size in type_.shape]
    pairs = [2] if elements.startswith("(") else [*shape, 2]
    sizes = "x".join(map(str, pairs))
    reals = _PAIR.sub(r"[\1]", elements)
    text = f"dense<{reals}> : tensor<{sizes}x{element}>"
    numbers = array_of_dense(ir.DenseElementsAttr(ir.Attribute.parse(text, op.context)))
    numbers = np.broadcast_to(numbers, [*shape, 2])
    with ir.InsertionPoint(op), op.location:
        halves = [emit_stablehlo.constant(numbers[..., half], element) for half in (0, 1)]
        result = value("stablehlo.complex", halves, type_)
    op.results[0].replace_all_uses_with(result)
    op.erase()
