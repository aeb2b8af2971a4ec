"""``check-integer-only``: fail if floats are computed between quantized values.

A program for a device without floating point may still take and return floats: the host computes
everything before the first quantization and after the last dequantization. This pass raises for the
first float operation between them: its operands come from integers, and integers come from its
results. Constants do not count: a quantization to blocks adds zero points that no integers of the
program become. The module is not changed.

Refused (the tanh of 2**32 storage values is computed in f32)::

    func.func @f(%q: tensor<4xi32>) -> tensor<4xi32> {
      %0 = stablehlo.convert %q : (tensor<4xi32>) -> tensor<4xf32>
      %1 = stablehlo.tanh %0 : tensor<4xf32>               // error
      %2 = stablehlo.convert %1 : (tensor<4xf32>) -> tensor<4xi32>
      ...
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...dialects.stablehlo import of_category
from ...errors import UnsupportedError
from ..base import ModulePass, TypePredicate, has_type, walk

_FLOATS = (ir.F16Type, ir.BF16Type, ir.F32Type, ir.F64Type)
_CAST_SUFFIXES = (
    *(".add", ".clamp", ".compare", ".constant", ".convert", ".divide", ".multiply"),
    *(".round_nearest_even", ".select", ".subtract"),
)
"""Names of operations that a quantization or dequantization becomes."""
_RETURNS = ("func.return", "stablehlo.return", "linalg.yield", "scf.yield", "tensor.yield")


@dataclass(frozen=True)
class CheckIntegerOnly(ModulePass):
    """Raise a located UnsupportedError for float arithmetic between quantized values."""

    def run(self, module: Operation) -> None:
        """Check `module`, in which quantized values are storage."""
        is_float = TypePredicate(lambda type_: isinstance(element_type(type_), _FLOATS))
        operations = walk(module)
        floats = [op for op in operations if has_type(op, is_float)]
        constants = _constants(operations)
        from_integers = _closure(floats, is_float, constants, forward=True)
        to_integers = _closure(floats, is_float, constants, forward=False)
        both = from_integers & to_integers
        between = [
            op
            for op in floats
            if op.name not in _RETURNS and any(v in both for v in (*op.operands, *op.results))
        ]
        if between:
            # A function is a better location than the conversions before and after it.
            functions = (op for op in between if not op.name.endswith(_CAST_SUFFIXES))
            raise UnsupportedError(
                "computes with floats between quantized values, and --integer-only allows none; "
                "use 8- or 16-bit storage, for which a function is a table, and "
                "stablehlo.uniform_quantize (per-tensor or per-axis) from one scale to another",
                next(functions, between[0]),
            )


def _constants(operations: list[Operation]) -> set[Value]:
    """Return the values that are computed from constants alone."""
    constants: set[Value] = set()
    changed = True
    while changed:
        changed = False
        for op in operations:
            if op.name == "linalg.generic":
                steps = [(sources, targets) for _, sources, targets in _edges(op)]
            elif not op.operands and not op.name.endswith((".constant", "tensor.empty")):
                continue
            else:
                steps = [(list(op.operands), list(op.results))]
            for sources, targets in steps:
                if all(value in constants for value in sources):
                    added = set(targets) - constants
                    constants |= added
                    changed = changed or bool(added)
    return constants


def _closure(
    floats: list[Operation], is_float: TypePredicate, constants: set[Value], *, forward: bool
) -> set[Value]:
    """Float values that come from integers (forward), or that integers come from."""
    edges = [edge for op in floats for edge in _edges(op)]
    reached: set[Value] = set()
    changed = True
    while changed:  # regions and calls may need another round
        changed = False
        for computes, sources, targets in edges if forward else reversed(edges):
            if not forward:
                sources, targets = targets, sources
            starts = computes and any(
                not is_float(value.type) and value not in constants for value in sources
            )
            if not starts and not any(value in reached for value in sources):
                continue
            for value in targets:
                if is_float(value.type) and value not in reached:
                    reached.add(value)
                    changed = True
    return reached


def _edges(op: Operation) -> list[tuple[bool, list[Value], list[Value]]]:
    """Steps from operands to results: True if the step converts, its sources, its targets."""
    if op.name == "linalg.generic":
        arguments = op.regions[0].blocks[0].arguments
        return [(False, [each], [own]) for each, own in zip(op.operands, arguments, strict=True)]
    parent = op.parent
    if op.name == "linalg.yield" and parent is not None and parent.name == "linalg.generic":
        results = parent.operation.results
        return [(False, [each], [own]) for each, own in zip(op.operands, results, strict=True)]
    inside = [value for region in op.regions for block in region for value in block.arguments]
    return [(_computes(op), list(op.operands), [*op.results, *inside])]


_CONVERSIONS = (
    *("arith.bitcast", "arith.cmpf", "arith.fptosi", "arith.fptoui", "arith.sitofp"),
    *("arith.uitofp", "stablehlo.bitcast_convert", "stablehlo.convert"),
    *of_category("comparison"),
)


def _computes(op: Operation) -> bool:
    """True for an operation that turns integers into floats, or floats into integers (or i1)."""
    return op.name in _CONVERSIONS or op.name.startswith("linalg.")
