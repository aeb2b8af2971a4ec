"""Run-time checks of the dimensions of arguments, by the constraints of ``torch.export``.

A program with dynamic shapes is right only for arguments that agree on its symbols::

    main(%x: tensor<?x8xf32>, %y: tensor<?x8xf32>)     // both "batch", 1 to 64
    %0 = tensor.dim %x, 0
    cf.assert 1 <= %0 <= 64, "dimension 0 of argument 'x' must be 1 to 64"
    %1 = tensor.dim %y, 0
    cf.assert %0 == %1, "dimension 0 of argument 'y' must be that of argument 'x'"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from ... import emit
from ...core._mlir import Value
from ...emit import ArrayLike, linalg
from ...emit.operation import INDEX
from ...emit.torch_tensors import as_builtin
from ...emit.vectors import quotient, remainder
from ...errors import UnsupportedError

_NO_BOUND = 2**62
"""The least upper bound of a range that stands for no bound."""

_Dimension = tuple[str, Value, int, Any]
"""The name of an argument, its value, an axis, and the formula (of sympy) of its size."""


def check_dimensions(program: ExportedProgram, arguments: Mapping[str, Value]) -> None:
    """Emit checks of the dynamic dimensions of arguments at the insertion point.

    Args:
        program: a program.
        arguments: the values of its arguments by name, of the ``torch`` dialect.

    Raises:
        UnsupportedError: a size is not a linear formula of one symbol with a positive factor, or an
            operator fixes it.
    """
    symbols: dict[Any, tuple[str, ArrayLike]] = {}
    # A dimension that is a symbol binds it before a dimension that is a formula of it.
    for name, argument, axis, formula in sorted(
        _dynamic_dimensions(program, arguments), key=lambda each: not each[3].is_Symbol
    ):
        label = f"dimension {axis} of argument '{name}'"
        size = _size(argument, axis)
        symbol, *further = formula.free_symbols or [None]
        if symbol is None:
            raise UnsupportedError(
                f"{label} is dynamic, but an operator of the program fixes it to {formula}; "
                "export the module without that dimension in dynamic_shapes"
            )
        factor, offset = _linear(formula, symbol) if not further else (0, 0)
        if not factor:
            raise UnsupportedError(
                f"{label} is {formula}; expected a number of Dim, or an integer times it and plus "
                "an integer"
            )
        if symbol in symbols:
            source, bound = symbols[symbol]
            expected = f"{formula.subs(symbol, 'n')}, where n is {source}"
            expected = f"equal to {source}" if formula.is_Symbol else expected
            linalg.check((bound * factor + offset == size).value, f"{label} must be {expected}")
            continue
        number = size - offset
        if factor != 1:
            holds = remainder(number, factor) == 0
            linalg.check(holds.value, f"{label} less {offset} must be a multiple of {factor}")
            number = quotient(number, factor)
        symbols[symbol] = (label, number)
        _check_range(label, size, program.range_constraints.get(formula))


def _dynamic_dimensions(
    program: ExportedProgram, arguments: Mapping[str, Value]
) -> Iterator[_Dimension]:
    for node in program.graph.nodes:
        tensor = node.meta.get("val")
        if node.op != "placeholder" or node.name not in arguments:
            continue
        if not isinstance(tensor, torch.Tensor):
            continue
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, torch.SymInt):
                yield node.name, arguments[node.name], axis, size.node.expr


def _size(argument: Value, axis: int) -> ArrayLike:
    return emit.scalar(linalg.dim(as_builtin(argument), axis), INDEX)


def _linear(formula: Any, symbol: Any) -> tuple[int, int]:
    """Return a and b of the formula ``a * symbol + b``; a is 0 if it is another formula."""
    factor = formula.coeff(symbol, 1)
    offset = formula - factor * symbol
    if factor.is_Integer and offset.is_Integer and factor > 0:
        return int(factor), int(offset)
    return 0, 0


def _check_range(label: str, size: ArrayLike, bounds: object) -> None:
    lower, upper = getattr(bounds, "lower", 0), getattr(bounds, "upper", _NO_BOUND)
    if lower > 0:
        linalg.check((size >= int(lower)).value, f"{label} must be at least {lower}")
    if upper < _NO_BOUND:
        linalg.check((size <= int(upper)).value, f"{label} must be at most {upper}")
