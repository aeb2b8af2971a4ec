"""LLVM dialect text: types of IREE's executable library, and loads and stores of control words."""

from __future__ import annotations

from .control_block import WORDS

STATE = "!llvm.struct<(i32, i32, i16, i16, i32, i32, i16, i8, i8, ptr, ptr, ptr)>"
"""``iree_hal_executable_dispatch_state_v0_t`` of IREE 3.13's executable_library.h.

If it changes, the worker pool reads other fields; `STATE_GRID` and `STATE_BINDINGS` go with it.
"""
STATE_GRID, STATE_BINDINGS = (4, 5, 6), 10
"""Indices in `STATE` of the numbers of workgroups along x, y and z, and of the bindings."""
WORKGROUP_STATE = "!llvm.struct<(i32, i32, i16, i16, i32, ptr, i32)>"
"""``iree_hal_executable_workgroup_state_v0_t`` of IREE 3.13: workgroup, processor, local memory.

If it changes, the worker pool gives kernels other workgroups.
"""
POINTER = "!llvm.ptr {llvm.align = 16 : i64, llvm.noalias, llvm.nonnull, llvm.noundef}"
PARAMETERS = f"%environment: {POINTER}, %state: {POINTER}, %group: {POINTER}"
WORKGROUP_TYPE = "(!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32"
PUBLISH_TYPE = "(!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32"
VARIABLE = "subquant_control_block"
"""The global of a program that has the address of the control block; 0 for no pool."""
DECLARE_VARIABLE = f"llvm.mlir.global internal @{VARIABLE}(0 : i64) : i64"


def addresses(*names: str) -> str:
    """Return operations that compute the addresses of control words, named as the words."""
    return "\n".join(
        f"%{name} = llvm.getelementptr %control_block[{index}] : (!llvm.ptr) -> !llvm.ptr, i64"
        for name, index in ((name, WORDS[name]) for name in names)
    )


def _atomic(order: str, type_: str) -> str:
    """Return the memory order and the alignment of an atomic access; nothing without an order."""
    return f" atomic {order} <alignment = {4 if type_ == 'i32' else 8}>" if order else ""


def load(result: str, address: str, order: str = "", type_: str = "i64") -> str:
    """Return a load, atomic if there is a memory order."""
    return f"{result} = llvm.load {address}{_atomic(order, type_)} : !llvm.ptr -> {type_}"


def store(value: str, address: str, order: str = "", type_: str = "i64") -> str:
    """Return a store, atomic if there is a memory order."""
    return f"llvm.store {value}, {address}{_atomic(order, type_)} : {type_}, !llvm.ptr"


def fields(
    value: str, type_: str, fields: tuple[int, int, int], names: tuple[str, str, str]
) -> str:
    """Return operations that extract three fields of 32, 32 and 16 bits, as i32."""
    x, y, z = names
    return f"""
  %{x} = llvm.extractvalue {value}[{fields[0]}] : {type_}
  %{y} = llvm.extractvalue {value}[{fields[1]}] : {type_}
  %{z}16 = llvm.extractvalue {value}[{fields[2]}] : {type_}
  %{z} = llvm.zext %{z}16 : i16 to i32
"""


LOAD_CONTROL_BLOCK = f"""
  %s = llvm.load %state : !llvm.ptr -> {STATE}
  %bindings = llvm.extractvalue %s[{STATE_BINDINGS}] : {STATE}
  %control_block = llvm.load %bindings : !llvm.ptr -> !llvm.ptr
"""
