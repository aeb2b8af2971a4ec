"""Variables, and operators that compute other graphs.

Sources: LiteRT, ``var_handle.cc``, ``read_variable.cc``, ``assign_variable.cc``, ``call_once.cc``.
"""

from __future__ import annotations

from typing import Any

from ...numerics.element_types import AnyArray
from .call import Call, Handle, kernel

__all__: list[str] = []


@kernel("VAR_HANDLE")
def var_handle(call: Call) -> Handle:
    """A variable by its container and name, which all graphs share."""
    return Handle("/".join(filter(None, (call.options.container, call.options.shared_name))))


def _variable(call: Call) -> str:
    handle = call.input(0).value
    if not isinstance(handle, Handle):
        raise call.error(f"needs a variable, and {call.input(0).tensor} is none")
    return handle.variable


@kernel("READ_VARIABLE")
def read_variable(call: Call) -> AnyArray:
    """The value of a variable."""
    return call.graphs.read(_variable(call), call.output)


@kernel("ASSIGN_VARIABLE")
def assign_variable(call: Call) -> list[Any]:
    """Give a variable a value."""
    call.graphs.write(_variable(call), call.input(1).value)
    return []


@kernel("CALL_ONCE")
def call_once(call: Call) -> list[Any]:
    """A graph that gives variables their first values: these are computed beforehand."""
    return []
