"""Dialects: typed views of upstream's ``quant``, and ``subquant``, which is defined in Python."""

from __future__ import annotations

from ..core import _mlir
from ..core._mlir import ir
from . import subquant

__all__ = ["create_context"]


def create_context() -> ir.Context:
    """Return a context with upstream's dialects, StableHLO and ``subquant``.

    Operations of dialects that are not registered (IREE's ``util`` and ``flow``, say) are accepted
    in generic form and handed on as they are.
    """
    context = ir.Context()
    context.allow_unregistered_dialects = True
    context.emit_error_diagnostics = False
    with context:
        _mlir.stablehlo.register_dialect(context)
        _mlir.load_torch_dialects(context)
        context.load_all_available_dialects()
        subquant.load()
    return context
