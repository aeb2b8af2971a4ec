"""IREE's compiler as a program by itself, with which programs get more than by ``iree-compile``.

``python session.py MODULE EXECUTABLE TEAM FLAG...`` compiles a module of these flags, which are
those of a session of IREE's.

For a CPU there are functions beside the program's (`subquant.team.unfenced_functions`). With a
``TEAM`` of threads,

* a function `TEAM` is added, which a runtime calls once with the address of a mailbox;
* where LLVM's dialect is reached, each function of a dispatch, that IREE calls for one workgroup
  after the other, becomes the work of a function around it. That one does the work, or, where
  there is a mailbox, calls what the mailbox has for it: for the first workgroup it does the work of
  all of them together with the team, and nothing for the others;
* the threads' own program is recorded with `TEAM` (`THREADS_KEY`): that of the file ``TEAM``, or,
  where that is `NEW_TEAM`, one that is compiled meanwhile. It is the same for every program of the
  same flags. Without a ``MODULE`` it is compiled, and nothing else.

**The protocol.** Who has taken `busy` publishes a job: the function, what it is called with, how
many workgroups; then a number in `open`. Everybody takes workgroups by counting `next` up
(`_take`). A thread counts itself in `active` before it looks whether a job is open, and the
publisher closes the job before it looks whether somebody is active: one of the two sees the other
(both are sequentially consistent), and no thread reads a job that is not open. A call that finds
the team busy runs its workgroups alone; `owner`, which is where IREE keeps what the dispatch is
called with, tells the calls of the publisher for the other workgroups from those of somebody else.

This file imports nothing of the package, which has another MLIR.
"""

from __future__ import annotations

import base64
import ctypes
import os
import sys
import types
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

try:
    from .unfenced_functions import add_unfenced_functions
except ImportError:  # a program by itself
    from unfenced_functions import add_unfenced_functions  # type: ignore[import-not-found, no-redef]

__all__ = [
    "MAILBOX_WORDS",
    "NEW_TEAM",
    "SLOTS",
    "TEAM",
    "THREADS",
    "THREADS_KEY",
    "threads_program",
]

TEAM = "__subquant_team"
"""The function that is given the mailbox."""
THREADS = "__subquant_threads"
"""The function that a thread of the team runs; it returns when it has waited long enough."""
THREADS_KEY = "subquant.team.1"
"""Of the threads' program, with the version of the mailbox."""

NEW_TEAM = "new"
"""In the place of a file: the threads' program is compiled with the other."""
_OF_CPU = "--iree-hal-target-device=local"
"""The flag of programs for a CPU."""

_LINE = 8
"""Words of a cache line: what one thread writes and another asks for has one of its own."""
SLOTS = {
    # What threads ask for.
    "open": 0,
    "next": _LINE,
    "last": _LINE + 1,
    "active": 2 * _LINE,
    # Of the publisher.
    "busy": 3 * _LINE,
    "owner": 3 * _LINE + 1,
    "number": 3 * _LINE + 2,
    # The job.
    "function": 4 * _LINE,
    "environment": 4 * _LINE + 1,
    "state": 4 * _LINE + 2,
    "total": 4 * _LINE + 3,
    "columns": 4 * _LINE + 4,
    "rows": 4 * _LINE + 5,
    "failed": 4 * _LINE + 6,
    "taken": 4 * _LINE + 7,
    # Set before.
    "stop": 5 * _LINE,
    "patience": 5 * _LINE + 1,
    "together": 5 * _LINE + 2,
}
"""Where things lie in the mailbox, in words of 64 bits.

``open``: the number of the job, 0 if there is none. ``next``: how many workgroups have been
taken. ``last``: how many of them from the end.
``active``: threads that may read the job. ``busy``: 1 while a dispatch is the team's. ``columns``,
``rows``: of workgroups. ``failed``: what a function returned that was not 0. ``taken``: workgroups
that threads beside the caller have done since the team began. ``stop``: 1 to have threads return.
``patience``: how often a thread asks before it returns. ``together``: the address of the function
that publishes.
"""
MAILBOX_WORDS = 61
"""Of the tensor that `TEAM` is given: an odd number, so that no other dispatch is like its own."""

_STATE = "!llvm.struct<(i32, i32, i16, i16, i32, i32, i16, i8, i8, ptr, ptr, ptr)>"
"""``iree_hal_executable_dispatch_state_v0_t`` of IREE's executable_library.h."""
_COLUMNS, _ROWS, _LAYERS, _BINDINGS = 4, 5, 6, 10
_GROUP = "!llvm.struct<(i32, i32, i16, i16, i32, ptr, i32)>"
"""``iree_hal_executable_workgroup_state_v0_t``: the workgroup, processor, and local memory."""
_POINTER = "!llvm.ptr {llvm.align = 16 : i64, llvm.noalias, llvm.nonnull, llvm.noundef}"
_GIVEN = f"%environment: {_POINTER}, %state: {_POINTER}, %group: {_POINTER}"
_OF_WORK = "(!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32"
_OF_TOGETHER = "(!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32"
_WORK = "{}$work"
_VARIABLE = "subquant_mailbox"
_DECLARED_VARIABLE = f"llvm.mlir.global internal @{_VARIABLE}(0 : i64) : i64"
_PAUSES = {
    "x86_64": 'llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()',
    "aarch64": 'llvm.inline_asm has_side_effects "yield", "" : () -> ()',
}


def _slots(*names: str) -> str:
    """Operations that give the addresses of slots, by their names, from ``%mailbox``."""
    return "\n".join(
        f"%{name} = llvm.getelementptr %mailbox[{SLOTS[name]}] : (!llvm.ptr) -> !llvm.ptr, i64"
        for name in names
    )


def _load(result: str, address: str, order: str = "", type_: str = "i64") -> str:
    how = f" atomic {order} <alignment = 8>" if order else ""
    return f"{result} = llvm.load {address}{how} : !llvm.ptr -> {type_}"


def _store(value: str, address: str, order: str = "", type_: str = "i64") -> str:
    how = f" atomic {order} <alignment = 8>" if order else ""
    return f"llvm.store {value}, {address}{how} : {type_}, !llvm.ptr"


def _extents(value: str, type_: str, fields: tuple[int, int, int], names: str) -> str:
    """Operations that give three fields of a structure, of 32, 32 and 16 bits, in 64."""
    lines = []
    for name, field, bits in zip(names, fields, (32, 32, 16), strict=True):
        lines.append(f"%{name}n = llvm.extractvalue {value}[{field}] : {type_}")
        lines.append(f"%{name} = llvm.zext %{name}n : i{bits} to i64")
    return "\n".join(lines)


_MAILBOX_OF_BINDING = f"""
  %s = llvm.load %state : !llvm.ptr -> {_STATE}
  %bindings = llvm.extractvalue %s[{_BINDINGS}] : {_STATE}
  %mailbox = llvm.load %bindings : !llvm.ptr -> !llvm.ptr
"""


def _setter(name: str) -> str:
    """The function of the dispatch of `TEAM`: its first binding is the mailbox from now on."""
    return f"""
{_DECLARED_VARIABLE}
llvm.func @{name}({_GIVEN}) -> i32 {{
  {_MAILBOX_OF_BINDING}
  %variable = llvm.mlir.addressof @{_VARIABLE} : !llvm.ptr
  %address = llvm.ptrtoint %mailbox : !llvm.ptr to i64
  {_store("%address", "%variable")}
  %done = llvm.mlir.constant(0 : i32) : i32
  llvm.return %done : i32
}}
"""


def _around(name: str) -> str:
    """The function around the work of a dispatch."""
    work = _WORK.format(name)
    return f"""
{_DECLARED_VARIABLE}
llvm.func @"{work}"({_POINTER}, {_POINTER}, {_POINTER}) -> i32
llvm.func @{name}({_GIVEN}) -> i32 {{
  %variable = llvm.mlir.addressof @{_VARIABLE} : !llvm.ptr
  {_load("%address", "%variable")}
  %zero = llvm.mlir.constant(0 : i64) : i64
  %is_none = llvm.icmp "eq" %address, %zero : i64
  llvm.cond_br %is_none, ^alone, ^team
^alone:
  %0 = llvm.call @"{work}"(%environment, %state, %group) : {_OF_WORK}
  llvm.return %0 : i32
^team:
  %mailbox = llvm.inttoptr %address : i64 to !llvm.ptr
  {_slots("together")}
  {_load("%publish", "%together", type_="!llvm.ptr")}
  %work = llvm.mlir.addressof @"{work}" : !llvm.ptr
  %1 = llvm.call %publish(%mailbox, %work, %environment, %state, %group)
      : !llvm.ptr, {_OF_TOGETHER}
  llvm.return %1 : i32
}}
"""


def _take(name: str, from_: str) -> str:
    """A function that does workgroups of a job until all are taken, and returns how many it did.

    Whoever counts `next` up below the total may do one more: the publisher the next from the
    start, the others, who count `last`, the next from the end. So each has neighbours, of which
    the next dispatch finds in its own cache what this one has written.

    Args:
        name: the function's.
        from_: operations that give ``%i``, the workgroup, from ``%count``, those done, and ``%t``.
    """
    return f"""
llvm.func internal @{name}(%mailbox: !llvm.ptr) -> i64 attributes {{no_inline}} {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %few = llvm.mlir.constant(1 : i32) : i32
  %ok = llvm.mlir.constant(0 : i32) : i32
  %empty = llvm.mlir.zero : {_GROUP}
  {_slots("next", "last", "function", "environment", "state", "total", "columns", "rows", "failed")}
  {_load("%f", "%function", type_="!llvm.ptr")}
  {_load("%e", "%environment", type_="!llvm.ptr")}
  {_load("%s", "%state", type_="!llvm.ptr")}
  {_load("%t", "%total", "monotonic")}
  {_load("%cx", "%columns")}
  {_load("%cy", "%rows")}
  %group = llvm.alloca %few x {_GROUP} : (i32) -> !llvm.ptr
  %group_y = llvm.getelementptr %group[0, 1] : (!llvm.ptr) -> !llvm.ptr, {_GROUP}
  %group_z = llvm.getelementptr %group[0, 2] : (!llvm.ptr) -> !llvm.ptr, {_GROUP}
  llvm.store %empty, %group : {_GROUP}, !llvm.ptr
  llvm.br ^next(%zero : i64)
^next(%count: i64):
  %taken = llvm.atomicrmw add %next, %one acq_rel : !llvm.ptr, i64
  %is_there = llvm.icmp "ult" %taken, %t : i64
  llvm.cond_br %is_there, ^work, ^done
^work:
  {from_}
  %x = llvm.urem %i, %cx : i64
  %line = llvm.udiv %i, %cx : i64
  %y = llvm.urem %line, %cy : i64
  %z = llvm.udiv %line, %cy : i64
  %xn = llvm.trunc %x : i64 to i32
  %yn = llvm.trunc %y : i64 to i32
  %zn = llvm.trunc %z : i64 to i16
  {_store("%xn", "%group", type_="i32")}
  {_store("%yn", "%group_y", type_="i32")}
  {_store("%zn", "%group_z", type_="i16")}
  %status = llvm.call %f(%e, %s, %group) : !llvm.ptr, {_OF_WORK}
  %done = llvm.add %count, %one : i64
  %is_ok = llvm.icmp "eq" %status, %ok : i32
  llvm.cond_br %is_ok, ^next(%done : i64), ^failed
^failed:
  %what = llvm.sext %status : i32 to i64
  {_store("%what", "%failed", "monotonic")}
  llvm.br ^next(%done : i64)
^done:
  llvm.return %count : i64
}}
"""


_FROM_START = "%i = llvm.add %count, %zero : i64"
_FROM_END = """
  %before = llvm.atomicrmw add %last, %one monotonic : !llvm.ptr, i64
  %left = llvm.sub %t, %before : i64
  %i = llvm.sub %left, %one : i64
"""


def _together(pause: str) -> str:
    """What is called for a workgroup, with the work of a dispatch, where there is a team."""
    return f"""
llvm.func internal @together(%mailbox: !llvm.ptr, %work: !llvm.ptr, %environment_: !llvm.ptr,
                             %state_: !llvm.ptr, %group: !llvm.ptr) -> i32 {{
  %one = llvm.mlir.constant(1 : i64) : i64
  %zero = llvm.mlir.constant(0 : i64) : i64
  %ok = llvm.mlir.constant(0 : i32) : i32
  %null = llvm.mlir.zero : !llvm.ptr
  {_slots(*(name for name in SLOTS if name not in ("together", "stop", "patience")))}
  %s = llvm.load %state_ : !llvm.ptr -> {_STATE}
  %g = llvm.load %group : !llvm.ptr -> {_GROUP}
  {_extents("%s", _STATE, (_COLUMNS, _ROWS, _LAYERS), "abc")}
  {_extents("%g", _GROUP, (0, 1, 2), "xyz")}
  %ab = llvm.mul %a, %b : i64
  %abc = llvm.mul %ab, %c : i64
  %zb = llvm.mul %z, %b : i64
  %zy = llvm.add %zb, %y : i64
  %zya = llvm.mul %zy, %a : i64
  %index = llvm.add %zya, %x : i64
  %is_first = llvm.icmp "eq" %index, %zero : i64
  llvm.cond_br %is_first, ^first, ^later
^first:
  %are_several = llvm.icmp "ugt" %abc, %one : i64
  llvm.cond_br %are_several, ^ask, ^alone
^ask:
  %asked = llvm.cmpxchg %busy, %zero, %one acq_rel monotonic : !llvm.ptr, i64
  %is_ours = llvm.extractvalue %asked[1] : !llvm.struct<(i64, i1)>
  llvm.cond_br %is_ours, ^publish, ^alone
^publish:
  {_store("%state_", "%owner", "monotonic", "!llvm.ptr")}
  {_store("%work", "%function", type_="!llvm.ptr")}
  {_store("%environment_", "%environment", type_="!llvm.ptr")}
  {_store("%state_", "%state", type_="!llvm.ptr")}
  {_store("%abc", "%total", "monotonic")}
  {_store("%a", "%columns")}
  {_store("%b", "%rows")}
  {_store("%zero", "%failed", "monotonic")}
  {_store("%zero", "%next", "monotonic")}
  {_store("%zero", "%last", "monotonic")}
  {_load("%before", "%number")}
  %this = llvm.add %before, %one : i64
  {_store("%this", "%number")}
  {_store("%this", "%open", "release")}
  %0 = llvm.call @take_from_start(%mailbox) : (!llvm.ptr) -> i64
  {_store("%zero", "%open", "seq_cst")}
  llvm.br ^wait
^wait:
  {_load("%there", "%active", "seq_cst")}
  %are_none = llvm.icmp "eq" %there, %zero : i64
  llvm.cond_br %are_none, ^all, ^pause
^pause:
  {pause}
  llvm.br ^wait
^all:
  {_load("%what", "%failed", "monotonic")}
  %status = llvm.trunc %what : i64 to i32
  llvm.return %status : i32
^later:
  {_load("%whose", "%owner", "monotonic", "!llvm.ptr")}
  %is_done = llvm.icmp "eq" %whose, %state_ : !llvm.ptr
  llvm.cond_br %is_done, ^done, ^alone
^done:
  %end = llvm.sub %abc, %one : i64
  %is_last = llvm.icmp "eq" %index, %end : i64
  llvm.cond_br %is_last, ^last, ^return
^last:
  {_store("%null", "%owner", "monotonic", "!llvm.ptr")}
  {_store("%zero", "%busy", "release")}
  llvm.br ^return
^return:
  llvm.return %ok : i32
^alone:
  %own = llvm.call %work(%environment_, %state_, %group) : !llvm.ptr, {_OF_WORK}
  llvm.return %own : i32
}}
"""


def _thread(name: str, pause: str) -> str:
    """The function of the dispatch of `THREADS`, for which the mailbox is the first binding."""
    return f"""
{_take("take_from_start", _FROM_START)}
{_take("take_from_end", _FROM_END)}
{_together(pause)}
llvm.func @{name}({_GIVEN}) -> i32 {{
  {_MAILBOX_OF_BINDING}
  %one = llvm.mlir.constant(1 : i64) : i64
  %zero = llvm.mlir.constant(0 : i64) : i64
  %minus = llvm.mlir.constant(-1 : i64) : i64
  %ok = llvm.mlir.constant(0 : i32) : i32
  {_slots("open", "next", "active", "total", "taken", "stop", "patience", "together")}
  %publish = llvm.mlir.addressof @together : !llvm.ptr
  {_store("%publish", "%together", type_="!llvm.ptr")}
  {_load("%most", "%patience", "monotonic")}
  llvm.br ^look(%zero, %zero : i64, i64)
^look(%asked: i64, %last: i64):
  {_load("%job", "%open", "acquire")}
  %is_same = llvm.icmp "eq" %job, %last : i64
  llvm.cond_br %is_same, ^nothing, ^other
^other:
  %is_closed = llvm.icmp "eq" %job, %zero : i64
  llvm.cond_br %is_closed, ^look(%asked, %zero : i64, i64), ^open
^open:
  {_load("%at", "%next", "monotonic")}
  {_load("%of", "%total", "monotonic")}
  %is_left = llvm.icmp "ult" %at, %of : i64
  llvm.cond_br %is_left, ^enter, ^look(%zero, %job : i64, i64)
^enter:
  %0 = llvm.atomicrmw add %active, %one seq_cst : !llvm.ptr, i64
  {_load("%now", "%open", "seq_cst")}
  %is_gone = llvm.icmp "eq" %now, %zero : i64
  llvm.cond_br %is_gone, ^leave, ^take
^take:
  %count = llvm.call @take_from_end(%mailbox) : (!llvm.ptr) -> i64
  %1 = llvm.atomicrmw add %taken, %count monotonic : !llvm.ptr, i64
  llvm.br ^leave
^leave:
  %2 = llvm.atomicrmw add %active, %minus seq_cst : !llvm.ptr, i64
  llvm.br ^look(%zero, %now : i64, i64)
^nothing:
  {_load("%ends", "%stop", "monotonic")}
  %is_end = llvm.icmp "ne" %ends, %zero : i64
  llvm.cond_br %is_end, ^return, ^count
^count:
  {pause}
  %more = llvm.add %asked, %one : i64
  %is_long = llvm.icmp "ugt" %more, %most : i64
  llvm.cond_br %is_long, ^return, ^look(%more, %job : i64, i64)
^return:
  llvm.return %ok : i32
}}
"""


def _host_function(name: str) -> str:
    """A function of a program, whose dispatch has the function that is put in its place.

    Its constant is a number that no other has, so that no other dispatch is the same.
    """
    type_ = f"tensor<{MAILBOX_WORDS}xi64>"
    return f"""
func.func @{name}(%mailbox: {type_}) -> {type_} {{
  %c = arith.constant dense<{int.from_bytes(name[-7:].encode(), "little")}> : {type_}
  %0 = arith.xori %mailbox, %c : {type_}
  return %0 : {type_}
}}
"""


def threads_program(recorded: str) -> bytes:
    """Return the threads' program of what is recorded under `THREADS_KEY`.

    Raises:
        ValueError: it is none.
    """
    try:
        return zlib.decompress(base64.b64decode(recorded, validate=True))
    except zlib.error as error:
        raise ValueError(str(error)) from None


# -- in the process of the compiler ---------------------------------------------------------------


_Edit = tuple[str, Callable[[Any], None]]
"""A phase of IREE's, or "" for the program as it is given, and what changes it there."""


class _Failed(Exception):
    """IREE's compiler has said what is wrong."""


def _do_without(*names: str) -> None:
    """Have modules be empty that IREE's bindings import, but need for nothing that is done here.

    With the classes of operations, which are not imported either, they take 0.25 s of CPU time,
    where a small program takes 0.35.
    """
    for name in names:
        sys.modules.setdefault(name, types.ModuleType(name))


class _Session:
    """IREE's compiler with flags, for one program after the other."""

    def __init__(self, flags: list[str]) -> None:
        _do_without("numpy", "iree.compiler.tools")
        from iree.compiler import api, ir
        from iree.compiler._mlir_libs import _mlir
        from iree.compiler.api import ctypes_dl

        _mlir.globals.dialect_search_modules = []  # no classes of operations
        self._api, self._ir = api, ir
        self._session = api.Session()
        self._session.set_flags(*flags)
        # Of IREE's C interface, for which its Python interface has no methods.
        self._compile_from, self._compile_to = (
            getattr(ctypes_dl._dylib, f"ireeCompilerInvocationSetCompile{which}Phase")
            for which in ("From", "To")
        )
        for function in (self._compile_from, self._compile_to):
            function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_char_p], None

    def compile(self, source: Any, output: Any, edits: Iterable[_Edit]) -> None:
        """Compile a program.

        Args:
            source: the program.
            output: where it is written.
            edits: what changes the module where IREE has reached a phase, in their order.
        """
        invocation = self._session.invocation()
        invocation.enable_console_diagnostics()
        if not invocation.parse_source(source):
            raise _Failed
        reached = ""
        for phase, edit in edits:
            if phase:
                self._run(invocation, reached, phase)
                reached = phase
            module = invocation.export_module()
            edit(module)
            invocation.import_module(module)
        self._run(invocation, reached, "end")
        invocation.output_vm_bytecode(output)

    def _run(self, invocation: Any, start: str, end: str) -> None:
        """Go on from a phase, or the begin, to another."""
        if start:
            self._compile_from(invocation._inv_p, start.encode())
        self._compile_to(invocation._inv_p, end.encode())
        if not invocation.execute():
            raise _Failed

    def threads_program(self) -> bytes:
        """Compile the program of a team's threads."""
        text = _host_function(THREADS)
        output = self._api.Output.open_membuffer()
        source = self._api.Source.wrap_buffer(self._session, text.encode() + b"\0")
        self.compile(source, output, [("executable-targets", self._wrap_all)])
        return bytes(output.map_memory())

    def compile_file(
        self, given: str, made: str, threads: Future[bytes] | None, *, is_unfenced: bool
    ) -> None:
        """Compile the program of a file to another.

        Args:
            given, made: the files.
            threads: the threads' own program of a team that can run it; None for no team.
            is_unfenced: there are functions for a device that runs what is submitted at once.
        """

        def add_team(module: Any) -> None:
            self._append(module.regions[0].blocks[0], _host_function(TEAM))

        def share(module: Any) -> None:
            self._wrap_all(module)
            for function in _named(module, "util.func"):
                if threads is not None and _symbol(function) == TEAM:
                    self._record(function, threads.result())

        edits: list[_Edit] = []
        if threads is not None:
            edits = [("", add_team), ("executable-targets", share)]
        if is_unfenced:
            edits.append(("hal", lambda module: add_unfenced_functions(self._ir, module)))
        output = self._api.Output.open_file(made)
        self.compile(self._api.Source.open_file(self._session, given), output, edits)
        output.keep()

    def _record(self, function: Any, program: bytes) -> None:
        """Record the threads' program with a function."""
        ir, key = self._ir, "iree.reflection"
        text = base64.b64encode(zlib.compress(program, 9)).decode()
        entries = {}
        if key in function.attributes:
            entries = {entry.name: entry.attr for entry in function.attributes[key]}
        with function.context:
            entries[THREADS_KEY] = ir.StringAttr.get(text)
            function.attributes[key] = ir.DictAttr.get(entries)

    def _wrap_all(self, module: Any) -> None:
        """Put functions around those of all dispatches."""
        for executable in _named(module, "hal.executable"):
            for variant in _named(executable, "hal.executable.variant"):
                self._wrap(variant)

    def _wrap(self, variant: Any) -> None:
        """Put functions around those of the dispatches of one target."""
        exports = {_symbol(each): each for each in _named(variant, "hal.executable.export")}
        for module in _named(variant, "builtin.module"):
            block = module.regions[0].blocks[0]
            triple = self._ir.StringAttr(module.attributes["llvm.target_triple"]).value
            pause = _PAUSES.get(triple.partition("-")[0], "")
            for function in [*_named(module, "llvm.func")]:
                name = _symbol(function)
                if name.startswith(f"{THREADS}_dispatch"):
                    function.erase()
                    self._append(block, _thread(name, pause))
                elif name.startswith(f"{TEAM}_dispatch"):
                    function.erase()
                    self._append(block, _setter(name))
                elif name in exports and not _has_local_memory(exports[name]):
                    work = _WORK.format(name)
                    function.attributes["sym_name"] = self._ir.StringAttr.get(work, module.context)
                    function.attributes["no_inline"] = self._ir.UnitAttr.get(module.context)
                    self._append(block, _around(name))

    def _append(self, block: Any, text: str) -> None:
        """Append operations, without those that are there."""
        there = {_symbol(op) for op in _operations(block)}
        parsed = self._ir.Module.parse(text, self._session.context)
        for op in _operations(parsed.body):
            if _symbol(op) not in there:
                op.detach_from_parent()
                block.append(op)


def _operations(block: Any) -> list[Any]:
    return [op.operation for op in block.operations]


def _named(parent: Any, name: str) -> Iterator[Any]:
    """The operations of a name right inside another."""
    return (op for op in _operations(parent.regions[0].blocks[0]) if op.name == name)


def _symbol(op: Any) -> str:
    return op.attributes["sym_name"].value if "sym_name" in op.attributes else ""


def _has_local_memory(export: Any) -> bool:
    """True if workgroups use memory that IREE gives to its own threads."""
    return "workgroup_local_memory" in export.attributes


def _threads_of(flags: list[str]) -> bytes:
    return _Session(flags).threads_program()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _main(given: str, made: str, team: str, *flags: str) -> int:
    try:
        if not given:
            with open(made, "wb") as file:
                file.write(_threads_of([*flags]))
            return 0
        with ThreadPoolExecutor(1) as other:
            threads = None
            if team == NEW_TEAM:
                threads = other.submit(_threads_of, [*flags])
            elif team:
                threads = other.submit(_read, team)
            _Session([*flags]).compile_file(given, made, threads, is_unfenced=_OF_CPU in flags)
    except _Failed:
        return 1
    return 0


if __name__ == "__main__":
    status = _main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # without freeing what the process's end frees
