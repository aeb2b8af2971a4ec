"""``inline-resources``: write constants that are resources as dense elements.

torch-mlir and other importers write weights as ``dense_resource``, whose bytes are at the end of
the file. The bindings give no access to them, so no pass could read a weight, and no kernel
prepack it.

Before::

    %w = stablehlo.constant dense_resource<weight> : tensor<2x2xf32>
    ...
    {-# dialect_resources: { builtin: { weight: "0x040000000000803F..." } } #-}

After::

    %w = stablehlo.constant dense<[[1.0, ...], ...]> : tensor<2x2xf32>

Elements of fewer than 8 bits stay resources: MLIR does not define how they are packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, ir
from ...dialects.dense import CONSTANTS, elements_of_resource, resource_of
from ...errors import Remark
from ...numerics.element_types import I8
from ..base import UNCHANGED, ModulePass, named

_CONSTANTS = (*CONSTANTS, "tosa.const")


@dataclass(frozen=True)
class InlineResources(ModulePass):
    """Replace the resources of constants by their elements."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`.

        Raises:
            VerificationError: a resource that is missing, or of another size than its type.
        """
        changes = [_inline(op) for op in named(module, _CONSTANTS)]
        return None if any(changes) else UNCHANGED


def _inline(op: Operation) -> bool:
    """Replace the resource of a constant of integers or floats of 8 bits or more, if it is one."""
    resource = resource_of(op)
    element = None if resource is None else resource.type.element_type
    if resource is None or not isinstance(element, (ir.IntegerType, ir.FloatType)):
        return False
    if element.width < I8.bits:
        return False
    name = "values" if op.name == "tosa.const" else "value"
    op.attributes[name] = elements_of_resource(op, resource.type)
    return True
