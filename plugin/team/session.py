"""IREE's compiler as a program by itself, with which programs get more than by ``iree-compile``.

``python session.py PACKAGES MODULE EXECUTABLE TEAM FLAG...`` compiles a module with these flags.
``PACKAGES`` is the folder that has IREE's.

There are functions beside the program's: for a CPU those of `subquant.team.unfenced_functions`, for
Vulkan those of `subquant.team.fenced_functions`. With a ``TEAM`` of threads,

* a function `TEAM` is added, which a runtime calls once with the address of a mailbox;
* where LLVM's dialect is reached, each function of a dispatch, that IREE calls for one workgroup
  after the other, becomes the work of a function around it. That one does the work, or, where
  there is a mailbox, calls what the mailbox has for it: for the first workgroup it does the work of
  all of them together with the team, and nothing for the others;
* the threads' own program is recorded with `TEAM` (`THREADS_KEY`): that of the file ``TEAM``, or,
  where that is `NEW_TEAM`, one that is compiled meanwhile. It is the same for every program of the
  same flags. Without a ``MODULE`` it is compiled, and nothing else.

**The protocol.** Who has taken `busy` publishes a job: the function, what it is called with, and
last, by a release, `range`: one word with the workgroups that nobody has taken, from the first to
before the end. Who exchanges this word for one with fewer has taken the others: the publisher from
the start, a thread from the end, so that each has neighbours, of which the next dispatch finds in
its own cache what this one has written.

* Each workgroup is taken once: exchanges have one order, and each takes from what the one before
  has left. Nothing but the word says what is left. So a thread that was stopped after it has read
  the word fails to exchange it, or takes workgroups of the job that is there now, whatever has been
  published meanwhile.
* A thread reads the job after it has taken workgroups of it; the exchange acquires what the
  publisher has released. When they are done it adds them to `done`, by a release. The publisher
  waits until those and its own are all, and publishes no other job before: what a thread reads is
  the job's, and what it has written is there.

A call that finds the team busy does its workgroups alone. `owner`, which is where IREE keeps what
the dispatch is called with, tells the publisher's calls for the other workgroups, which return at
once, from those of somebody else. The last of them gives `busy` back, or the first, if a workgroup
has failed: IREE may make no other calls then.

This file imports nothing of the package, which has another MLIR.
"""

from __future__ import annotations

import base64
import ctypes
import os
import sys
import threading
import types
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

try:
    from .fenced_functions import add_fenced_functions
    from .unfenced_functions import add_unfenced_functions
except ImportError:  # a program by itself
    from fenced_functions import add_fenced_functions  # type: ignore[import-not-found, no-redef]
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
THREADS_KEY = "subquant.team.2"
"""Of the threads' program, with the version of the mailbox."""

NEW_TEAM = "new"
"""In the place of a file: the threads' program is compiled with the other."""
_OF_CPU = "--iree-hal-target-device=local"
"""The flag of programs for a CPU."""

_LINE = 16
"""Words between what different threads write: two cache lines, which some processors have in pairs.
"""
SLOTS = {
    # The job: written by the publisher, `range` by everybody.
    "range": 0,
    "function": 1,
    "environment": 2,
    "state": 3,
    "columns": 4,
    "rows": 5,
    # Written by threads.
    "done": _LINE,
    "failed": _LINE + 1,
    # Of the publisher.
    "busy": 2 * _LINE,
    "owner": 2 * _LINE + 1,
    "alone": 2 * _LINE + 2,
    # Set before.
    "stop": 3 * _LINE,
    "patience": 3 * _LINE + 1,
    "together": 3 * _LINE + 2,
    "shift": 3 * _LINE + 3,
}
"""Where things lie in the mailbox, in words of 64 bits.

``range``: the workgroups that are left: the first in the low 32 bits, the end in the high ones.
``columns``, ``rows``: of workgroups. ``done``: workgroups that threads beside the callers have done
since the team began. ``failed``: what a function returned in a thread that was not 0. ``busy``: 1
while a dispatch is the team's. ``alone``: not 0 while somebody does a dispatch of one workgroup,
for whose end threads wait, however long that takes. ``stop``: 1 to have threads return.
``patience``: how often a thread asks before it returns. ``together``: the address of the function
that publishes. ``shift``: of what is left, whoever takes some takes this power of two's part, or
half of it where `_MANY` are left.
"""
_MANY = 32
"""Workgroups of which a thread takes few at a time: who is kept from them by something else does
not keep the others waiting. By two threads calls of 128x4096x4096 take 3 % less time on average.
"""
MAILBOX_WORDS = 61
"""Of the tensor that `TEAM` and `THREADS` are given."""

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


def _atomic(order: str, type_: str) -> str:
    return f" atomic {order} <alignment = {4 if type_ == 'i32' else 8}>" if order else ""


def _load(result: str, address: str, order: str = "", type_: str = "i64") -> str:
    return f"{result} = llvm.load {address}{_atomic(order, type_)} : !llvm.ptr -> {type_}"


def _store(value: str, address: str, order: str = "", type_: str = "i64") -> str:
    return f"llvm.store {value}, {address}{_atomic(order, type_)} : {type_}, !llvm.ptr"


def _extents(
    value: str, type_: str, fields: tuple[int, int, int], names: tuple[str, str, str]
) -> str:
    """Operations that give three fields of a structure, of 32, 32 and 16 bits, in 32."""
    x, y, z = names
    return f"""
  %{x} = llvm.extractvalue {value}[{fields[0]}] : {type_}
  %{y} = llvm.extractvalue {value}[{fields[1]}] : {type_}
  %{z}16 = llvm.extractvalue {value}[{fields[2]}] : {type_}
  %{z} = llvm.zext %{z}16 : i16 to i32
"""


_MAILBOX_OF_BINDING = f"""
  %s = llvm.load %state : !llvm.ptr -> {_STATE}
  %bindings = llvm.extractvalue %s[{_BINDINGS}] : {_STATE}
  %mailbox = llvm.load %bindings : !llvm.ptr -> !llvm.ptr
"""


_SETTER = f"""
{_DECLARED_VARIABLE}
llvm.func @{TEAM}({_GIVEN}) -> i32 {{
  {_MAILBOX_OF_BINDING}
  %variable = llvm.mlir.addressof @{_VARIABLE} : !llvm.ptr
  %address = llvm.ptrtoint %mailbox : !llvm.ptr to i64
  {_store("%address", "%variable")}
  %done = llvm.mlir.constant(0 : i32) : i32
  llvm.return %done : i32
}}
"""
"""The function of the dispatch of `TEAM`: its first binding is the mailbox from now on."""
_EXPORT = "hal.executable.export"
_SETTER_LAYOUT = "#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer>]>"


def _host_setter(device: str, executable: str, binary: str, threads: bytes) -> str:
    """The function `TEAM`, where IREE has reached its HAL dialect: it dispatches `_SETTER`.

    Args:
        device, executable: the globals that have them.
        binary: what the executable is made of, with the function of the dispatch.
        threads: the program that is recorded.
    """
    size = 8 * MAILBOX_WORDS
    recorded = base64.b64encode(zlib.compress(threads, 9)).decode()
    return f"""
util.global private @{device} : !hal.device
util.global private @{executable} : !hal.executable
util.func public @{TEAM}(%view: !hal.buffer_view)
    attributes {{iree.abi.stub, iree.reflection = {{{THREADS_KEY} = "{recorded}"}}}} {{
  %any = arith.constant -1 : i64
  %forever = arith.constant -1 : i32
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %size = arith.constant {size} : index
  %none = util.null : !hal.fence
  %device = util.global.load @{device} : !hal.device
  %executable = util.global.load @{executable} : !hal.executable
  %mailbox = hal.buffer_view.buffer<%view : !hal.buffer_view> : !hal.buffer
  %commands = hal.command_buffer.create device(%device : !hal.device) mode("OneShot")
      categories("Dispatch") affinity(%any) : !hal.command_buffer
  %function = hal.executable.lookup.function target(%executable : !hal.executable)
      function({binary}::@{TEAM}) : i64
  hal.command_buffer.dispatch<%commands : !hal.command_buffer>
      target(%executable : !hal.executable)[%function] workgroups([%one, %one, %one])
      bindings([(%mailbox : !hal.buffer)[%zero, %size]]) flags("None")
  hal.command_buffer.finalize<%commands : !hal.command_buffer>
  %done = hal.fence.create device(%device : !hal.device) flags("None") : !hal.fence
  hal.device.queue.execute<%device : !hal.device> affinity(%any) wait(%none) signal(%done)
      commands(%commands) flags("None")
  %status = hal.fence.await until([%done]) timeout_millis(%forever) flags("None") : i32
  util.status.check_ok %status, "the team's mailbox"
  util.return
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
  %none = llvm.mlir.constant(0 : i64) : i64
  %zero = llvm.mlir.constant(0 : i32) : i32
  %one = llvm.mlir.constant(1 : i32) : i32
  %null = llvm.mlir.zero : !llvm.ptr
  %is_none = llvm.icmp "eq" %address, %none : i64
  llvm.cond_br %is_none, ^alone, ^team
^team:
  %mailbox = llvm.inttoptr %address : i64 to !llvm.ptr
  {_slots("together", "busy", "owner", "alone")}
  %s = llvm.load %state : !llvm.ptr -> {_STATE}
  %g = llvm.load %group : !llvm.ptr -> {_GROUP}
  {_extents("%s", _STATE, (_COLUMNS, _ROWS, _LAYERS), ("a", "b", "c"))}
  {_extents("%g", _GROUP, (0, 1, 2), ("x", "y", "z"))}
  %xy = llvm.or %x, %y : i32
  %xyz = llvm.or %xy, %z : i32
  %is_first = llvm.icmp "eq" %xyz, %zero : i32
  llvm.cond_br %is_first, ^first, ^later
^first:
  %ab = llvm.or %a, %b : i32
  %abc = llvm.or %ab, %c : i32
  %is_only = llvm.icmp "eq" %abc, %one : i32
  llvm.cond_br %is_only, ^only, ^together
^only:
  {_store("%state", "%alone", "monotonic", "!llvm.ptr")}
  %2 = llvm.call @"{work}"(%environment, %state, %group) : {_OF_WORK}
  {_store("%null", "%alone", "monotonic", "!llvm.ptr")}
  llvm.return %2 : i32
^together:
  {_load("%publish", "%together", type_="!llvm.ptr")}
  %work = llvm.mlir.addressof @"{work}" : !llvm.ptr
  %0 = llvm.call %publish(%mailbox, %work, %environment, %state, %group)
      : !llvm.ptr, {_OF_TOGETHER}
  llvm.return %0 : i32
^later:
  {_load("%whose", "%owner", "monotonic", "!llvm.ptr")}
  %is_done = llvm.icmp "eq" %whose, %state : !llvm.ptr
  llvm.cond_br %is_done, ^done, ^alone
^done:
  %xe = llvm.add %x, %one : i32
  %ye = llvm.add %y, %one : i32
  %ze = llvm.add %z, %one : i32
  %xl = llvm.icmp "eq" %xe, %a : i32
  %yl = llvm.icmp "eq" %ye, %b : i32
  %zl = llvm.icmp "eq" %ze, %c : i32
  %xyl = llvm.and %xl, %yl : i1
  %is_last = llvm.and %xyl, %zl : i1
  llvm.cond_br %is_last, ^last, ^return
^last:
  {_store("%null", "%owner", "monotonic", "!llvm.ptr")}
  {_store("%none", "%busy", "release")}
  llvm.br ^return
^return:
  llvm.return %zero : i32
^alone:
  %1 = llvm.call @"{work}"(%environment, %state, %group) : {_OF_WORK}
  llvm.return %1 : i32
}}
"""


_RUN = f"""
llvm.func internal @run(%mailbox: !llvm.ptr, %first: i32, %end: i32) -> i32
    attributes {{no_inline}} {{
  %zero = llvm.mlir.constant(0 : i32) : i32
  %one = llvm.mlir.constant(1 : i32) : i32
  %empty = llvm.mlir.zero : {_GROUP}
  {_slots("function", "environment", "state", "columns", "rows")}
  {_load("%f", "%function", type_="!llvm.ptr")}
  {_load("%e", "%environment", type_="!llvm.ptr")}
  {_load("%s", "%state", type_="!llvm.ptr")}
  {_load("%a", "%columns", type_="i32")}
  {_load("%b", "%rows", type_="i32")}
  %group = llvm.alloca %one x {_GROUP} : (i32) -> !llvm.ptr
  %group_y = llvm.getelementptr %group[0, 1] : (!llvm.ptr) -> !llvm.ptr, {_GROUP}
  %group_z = llvm.getelementptr %group[0, 2] : (!llvm.ptr) -> !llvm.ptr, {_GROUP}
  llvm.store %empty, %group : {_GROUP}, !llvm.ptr
  %x0 = llvm.urem %first, %a : i32
  %line = llvm.udiv %first, %a : i32
  %y0 = llvm.urem %line, %b : i32
  %z0 = llvm.udiv %line, %b : i32
  llvm.br ^next(%first, %x0, %y0, %z0, %zero : i32, i32, i32, i32, i32)
^next(%i: i32, %x: i32, %y: i32, %z: i32, %before: i32):
  %z16 = llvm.trunc %z : i32 to i16
  {_store("%x", "%group", type_="i32")}
  {_store("%y", "%group_y", type_="i32")}
  {_store("%z16", "%group_z", type_="i16")}
  %status = llvm.call %f(%e, %s, %group) : !llvm.ptr, {_OF_WORK}
  %is_ok = llvm.icmp "eq" %status, %zero : i32
  %failed = llvm.select %is_ok, %before, %status : i1, i32
  %xm = llvm.add %x, %one : i32
  %is_line = llvm.icmp "eq" %xm, %a : i32
  %xn = llvm.select %is_line, %zero, %xm : i1, i32
  %down = llvm.zext %is_line : i1 to i32
  %ym = llvm.add %y, %down : i32
  %is_layer = llvm.icmp "eq" %ym, %b : i32
  %yn = llvm.select %is_layer, %zero, %ym : i1, i32
  %deeper = llvm.zext %is_layer : i1 to i32
  %zn = llvm.add %z, %deeper : i32
  %in = llvm.add %i, %one : i32
  %is_end = llvm.icmp "eq" %in, %end : i32
  llvm.cond_br %is_end, ^done, ^next(%in, %xn, %yn, %zn, %failed : i32, i32, i32, i32, i32)
^done:
  llvm.return %failed : i32
}}
"""
"""Runs the workgroups of a job from one to before another; returns what failed, or 0."""


def _parted(word: str) -> str:
    """Operations that part a word of `range`, and say how many workgroups whoever asks may take."""
    return f"""
  %first = llvm.trunc {word} : i64 to i32
  %high = llvm.lshr {word}, %half : i64
  %end = llvm.trunc %high : i64 to i32
  %left = llvm.sub %end, %first : i32
  {_shared("%left", "%share")}
  %are_left = llvm.icmp "ult" %first, %end : i32
"""


def _shared(left: str, share: str) -> str:
    """Operations that say how many of those that are left whoever asks may take."""
    return f"""
  {left}_many = llvm.mlir.constant({_MANY} : i32) : i32
  {left}_are_many = llvm.icmp "uge" {left}, {left}_many : i32
  {left}_more = llvm.zext {left}_are_many : i1 to i32
  {left}_shift = llvm.add %shift_, {left}_more : i32
  {left}_part = llvm.lshr {left}, {left}_shift : i32
  {share} = llvm.intr.umax({left}_part, %one) : (i32, i32) -> i32
"""


def _joined(first: str, end: str, word: str) -> str:
    """Operations that make a word of `range`."""
    return f"""
  {word}_first = llvm.zext {first} : i32 to i64
  {word}_end = llvm.zext {end} : i32 to i64
  {word}_high = llvm.shl {word}_end, %half : i64
  {word} = llvm.or {word}_high, {word}_first : i64
"""


def _together(pause: str) -> str:
    """What is called for the first of several workgroups, where there is a team."""
    return f"""
llvm.func internal @together(%mailbox: !llvm.ptr, %work: !llvm.ptr, %environment_: !llvm.ptr,
                             %state_: !llvm.ptr, %group: !llvm.ptr) -> i32 {{
  %one = llvm.mlir.constant(1 : i32) : i32
  %zero = llvm.mlir.constant(0 : i32) : i32
  %none = llvm.mlir.constant(0 : i64) : i64
  %taken = llvm.mlir.constant(1 : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  %null = llvm.mlir.zero : !llvm.ptr
  {_slots(*(name for name in SLOTS if name not in ("alone", "together", "stop", "patience")))}
  %s = llvm.load %state_ : !llvm.ptr -> {_STATE}
  {_extents("%s", _STATE, (_COLUMNS, _ROWS, _LAYERS), ("a", "b", "c"))}
  %al = llvm.zext %a : i32 to i64
  %bl = llvm.zext %b : i32 to i64
  %cl = llvm.zext %c : i32 to i64
  %abl = llvm.mul %al, %bl : i64
  %abcl = llvm.mul %abl, %cl : i64
  %above = llvm.lshr %abcl, %half : i64
  %are_numbered = llvm.icmp "eq" %above, %none : i64
  llvm.cond_br %are_numbered, ^ask, ^alone
^ask:
  %asked = llvm.cmpxchg %busy, %none, %taken acquire monotonic : !llvm.ptr, i64
  %is_ours = llvm.extractvalue %asked[1] : !llvm.struct<(i64, i1)>
  llvm.cond_br %is_ours, ^publish, ^alone
^publish:
  {_load("%before", "%done", "monotonic")}
  {_store("%work", "%function", type_="!llvm.ptr")}
  {_store("%environment_", "%environment", type_="!llvm.ptr")}
  {_store("%state_", "%state", type_="!llvm.ptr")}
  {_store("%a", "%columns", type_="i32")}
  {_store("%b", "%rows", type_="i32")}
  %total = llvm.trunc %abcl : i64 to i32
  {_load("%shift_", "%shift", type_="i32")}
  {_shared("%total", "%own")}
  {_joined("%own", "%total", "%given")}
  {_store("%given", "%range", "release")}
  {_store("%state_", "%owner", "monotonic", "!llvm.ptr")}
  %bad0 = llvm.call @run(%mailbox, %zero, %own) : (!llvm.ptr, i32, i32) -> i32
  llvm.br ^claim(%given, %own, %bad0 : i64, i32, i32)
^claim(%word: i64, %ours: i32, %bad: i32):
  {_parted("%word")}
  llvm.cond_br %are_left, ^exchange, ^others
^exchange:
  %next = llvm.add %first, %share : i32
  {_joined("%next", "%end", "%rest")}
  %was = llvm.cmpxchg %range, %word, %rest monotonic monotonic : !llvm.ptr, i64
  %now = llvm.extractvalue %was[0] : !llvm.struct<(i64, i1)>
  %is_claimed = llvm.extractvalue %was[1] : !llvm.struct<(i64, i1)>
  llvm.cond_br %is_claimed, ^work, ^claim(%now, %ours, %bad : i64, i32, i32)
^work:
  %bad1 = llvm.call @run(%mailbox, %first, %next) : (!llvm.ptr, i32, i32) -> i32
  %was_ok = llvm.icmp "eq" %bad, %zero : i32
  %bad2 = llvm.select %was_ok, %bad1, %bad : i1, i32
  %more = llvm.add %ours, %share : i32
  llvm.br ^claim(%rest, %more, %bad2 : i64, i32, i32)
^others:
  %theirs = llvm.sub %total, %ours : i32
  %theirsl = llvm.zext %theirs : i32 to i64
  %all = llvm.add %before, %theirsl : i64
  llvm.br ^wait
^wait:
  {_load("%there", "%done", "acquire")}
  %are_done = llvm.icmp "eq" %there, %all : i64
  llvm.cond_br %are_done, ^end, ^pause
^pause:
  {pause}
  llvm.br ^wait
^end:
  {_load("%bad3", "%failed", "monotonic", "i32")}
  %are_ok = llvm.icmp "eq" %bad, %zero : i32
  %what = llvm.select %are_ok, %bad3, %bad : i1, i32
  %is_ok = llvm.icmp "eq" %what, %zero : i32
  llvm.cond_br %is_ok, ^return, ^failed
^failed:
  {_store("%zero", "%failed", "monotonic", "i32")}
  {_store("%null", "%owner", "monotonic", "!llvm.ptr")}
  {_store("%none", "%busy", "release")}
  llvm.br ^return
^return:
  llvm.return %what : i32
^alone:
  %0 = llvm.call %work(%environment_, %state_, %group) : !llvm.ptr, {_OF_WORK}
  llvm.return %0 : i32
}}
"""


def _thread(name: str, pause: str) -> str:
    """The function of the dispatch of `THREADS`, for which the mailbox is the first binding."""
    return f"""
{_RUN}
{_together(pause)}
llvm.func @{name}({_GIVEN}) -> i32 {{
  {_MAILBOX_OF_BINDING}
  %one = llvm.mlir.constant(1 : i32) : i32
  %zero = llvm.mlir.constant(0 : i32) : i32
  %none = llvm.mlir.constant(0 : i64) : i64
  %once = llvm.mlir.constant(1 : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  {_slots("range", "done", "failed", "alone", "stop", "patience", "together", "shift")}
  %publish = llvm.mlir.addressof @together : !llvm.ptr
  {_store("%publish", "%together", type_="!llvm.ptr")}
  {_load("%most", "%patience", "monotonic")}
  {_load("%shift_", "%shift", type_="i32")}
  llvm.br ^look(%none : i64)
^look(%asked: i64):
  {_load("%seen", "%range", "monotonic")}
  llvm.br ^claim(%seen, %asked : i64, i64)
^claim(%word: i64, %since: i64):
  {_parted("%word")}
  llvm.cond_br %are_left, ^exchange, ^nothing
^exchange:
  %next = llvm.sub %end, %share : i32
  {_joined("%first", "%next", "%rest")}
  %was = llvm.cmpxchg %range, %word, %rest acquire monotonic : !llvm.ptr, i64
  %now = llvm.extractvalue %was[0] : !llvm.struct<(i64, i1)>
  %is_claimed = llvm.extractvalue %was[1] : !llvm.struct<(i64, i1)>
  llvm.cond_br %is_claimed, ^work, ^claim(%now, %none : i64, i64)
^work:
  %status = llvm.call @run(%mailbox, %next, %end) : (!llvm.ptr, i32, i32) -> i32
  %is_ok = llvm.icmp "eq" %status, %zero : i32
  llvm.cond_br %is_ok, ^count, ^failed
^failed:
  {_store("%status", "%failed", "monotonic", "i32")}
  llvm.br ^count
^count:
  %did = llvm.zext %share : i32 to i64
  %0 = llvm.atomicrmw add %done, %did release : !llvm.ptr, i64
  llvm.br ^claim(%rest, %none : i64, i64)
^nothing:
  {_load("%ends", "%stop", "monotonic")}
  %is_end = llvm.icmp "ne" %ends, %none : i64
  llvm.cond_br %is_end, ^return, ^again
^again:
  {pause}
  %more = llvm.add %since, %once : i64
  %is_long = llvm.icmp "ugt" %more, %most : i64
  llvm.cond_br %is_long, ^wait, ^look(%more : i64)
^wait:
  {_load("%whose", "%alone", "monotonic")}
  %is_nobody = llvm.icmp "eq" %whose, %none : i64
  llvm.cond_br %is_nobody, ^return, ^look(%none : i64)
^return:
  llvm.return %zero : i32
}}
"""


def _threads_function() -> str:
    """The program of the threads, whose dispatch has the function that is put in its place."""
    type_ = f"tensor<{MAILBOX_WORDS}xi64>"
    return f"""
func.func @{THREADS}(%mailbox: {type_}) -> {type_} {{
  %0 = arith.addi %mailbox, %mailbox : {type_}
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
"""A phase of IREE's, and what changes the program there."""


_IDLE_PLUGINS = (
    *("hal_target_cuda", "hal_target_metal_spirv", "hal_target_rocm", "hal_target_vmvx"),
    "input_torch",
)
_IDLE_PLUGINS_FOR_CPU = (*_IDLE_PLUGINS, "hal_target_vulkan_spirv")
"""Parts of IREE's compiler that no program here needs; for constants it needs that for CPUs.

They bring dialects, and IREE prepares each set of patterns for all operations that it knows, which
is most of what it does for a small program.
"""

_GIVEN_FLAGS: list[str] = []
_GIVES_FLAGS = threading.Lock()


class _Failed(Exception):
    """IREE's compiler has said what is wrong."""


def _do_without(*names: str) -> None:
    """Have modules be empty that IREE's bindings import, but need for nothing that is done here.

    With the classes of operations, which are not imported either, they take 0.25 s of CPU time,
    where a small program takes 0.35.
    """
    for name in names:
        sys.modules.setdefault(name, types.ModuleType(name))


def _give(flags: list[str], ctypes_dl: Any) -> None:
    """Give flags to IREE's compiler: some are those of the process, which has one set of them."""
    with _GIVES_FLAGS:
        if not _GIVEN_FLAGS:
            idle = _IDLE_PLUGINS_FOR_CPU if _OF_CPU in flags else _IDLE_PLUGINS
            _GIVEN_FLAGS[:] = ["iree-compile", *(f"--iree-plugin=-{each}" for each in idle), *flags]
            ctypes_dl._initializeGlobalCL(*_GIVEN_FLAGS)


class _Session:
    """IREE's compiler with flags, for one program after the other."""

    def __init__(self, flags: list[str]) -> None:
        _do_without("numpy", "iree.compiler.tools")
        from iree.compiler import api, ir
        from iree.compiler._mlir_libs import _mlir
        from iree.compiler.api import ctypes_dl

        _mlir.globals.dialect_search_modules = []  # no classes of operations
        self._api, self._ir = api, ir
        is_for_cpu = _OF_CPU in flags
        self._add_functions = add_unfenced_functions if is_for_cpu else add_fenced_functions
        _give(flags, ctypes_dl)
        self._session = api.Session()
        # Of IREE's C interface, for which its Python interface has no methods.
        self._compile_from, self._compile_to = (
            getattr(ctypes_dl._dylib, f"ireeCompilerInvocationSetCompile{which}Phase")
            for which in ("From", "To")
        )
        for function in (self._compile_from, self._compile_to):
            function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_char_p], None

    def register_targets(self) -> None:
        """Have LLVM know its targets, before a session of another thread has it learn them.

        IREE adds those of GPUs to LLVM's list where the first passes with executables begin. Two
        threads that do so at once tie it to a ring, in which they then look for a CPU's forever.
        """
        invocation = self._session.invocation()
        invocation.parse_source(self._api.Source.wrap_buffer(self._session, b"module {}\0"))
        self._run(invocation, "executable-sources", "executable-configurations")

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
        text = _threads_function()
        output = self._api.Output.open_membuffer()
        source = self._api.Source.wrap_buffer(self._session, text.encode() + b"\0")
        self.compile(source, output, [("executable-targets", self._wrap_all)])
        return bytes(output.map_memory())

    def compile_file(self, given: str, made: str, threads: Future[bytes] | None) -> None:
        """Compile the program of a file to another.

        Args:
            given, made: the files.
            threads: the threads' own program of a team that can run it; None for no team.
        """

        def share(module: Any) -> None:
            self._wrap_all(module)
            self._add_setter(module)

        def add_functions(module: Any) -> None:
            self._add_functions(self._ir, module)
            if threads is not None:
                self._add_host_setter(module, threads)

        edits: list[_Edit] = [("executable-targets", share)] if threads is not None else []
        edits.append(("hal", add_functions))
        output = self._api.Output.open_file(made)
        self.compile(self._api.Source.open_file(self._session, given), output, edits)
        output.keep()

    def _add_setter(self, module: Any) -> None:
        """Add the dispatch of `TEAM` to those of an executable; IREE joins all executables."""
        ir = self._ir
        for executable in _named(module, "hal.executable"):
            for variant in _named(executable, "hal.executable.variant"):
                for inside in _named(variant, "builtin.module"):
                    self._append(inside.regions[0].blocks[0], _SETTER)
                    ordinal = len([*_named(variant, _EXPORT)])
                    with module.context, inside.location, ir.InsertionPoint(inside):
                        attributes = {
                            "sym_name": ir.StringAttr.get(TEAM),
                            "ordinal": ir.IntegerAttr.get(ir.IndexType.get(), ordinal),
                            "layout": ir.Attribute.parse(_SETTER_LAYOUT),
                        }
                        ir.Operation.create(_EXPORT, attributes=attributes, regions=2)
                        # What nothing refers to is left out.
                        path = "::".join(f"@{_symbol(each)}" for each in (executable, variant))
                        known = next(_named(module, "util.global"))
                        known.attributes[TEAM] = ir.Attribute.parse(f"{path}::@{TEAM}")
                    return

    def _add_host_setter(self, module: Any, threads: Future[bytes]) -> None:
        """Add `TEAM`, with the threads' own program, if there is one executable."""
        binaries = [
            f"@{_symbol(executable)}::@{_symbol(binary)}"
            for executable in _named(module, "hal.executable")
            for binary in _named(executable, "hal.executable.binary")
        ]
        kept = {
            str(each.attributes["type"].value): _symbol(each)
            for each in _named(module, "util.global")
        }
        if len(binaries) == 1:
            device, executable = kept["!hal.device"], kept["!hal.executable"]
            text = _host_setter(device, executable, binaries[0], threads.result())
            self._append(module.regions[0].blocks[0], text)

    def _wrap_all(self, module: Any) -> None:
        """Put functions around those of all dispatches."""
        for executable in _named(module, "hal.executable"):
            for variant in _named(executable, "hal.executable.variant"):
                self._wrap(variant)

    def _wrap(self, variant: Any) -> None:
        """Put functions around those of the dispatches of one target."""
        exports = {_symbol(each): each for each in _named(variant, _EXPORT)}
        for module in _named(variant, "builtin.module"):
            block = module.regions[0].blocks[0]
            triple = self._ir.StringAttr(module.attributes["llvm.target_triple"]).value
            pause = _PAUSES.get(triple.partition("-")[0], "")
            for function in [*_named(module, "llvm.func")]:
                name = _symbol(function)
                if name.startswith(f"{THREADS}_dispatch"):
                    function.erase()
                    self._append(block, _thread(name, pause))
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
        session = _Session([*flags])
        with ThreadPoolExecutor(1) as other:
            threads = None
            if team == NEW_TEAM:
                session.register_targets()
                threads = other.submit(_threads_of, [*flags])
            elif team:
                threads = other.submit(_read, team)
            session.compile_file(given, made, threads)
    except _Failed:
        return 1
    return 0


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    status = _main(*sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # without freeing what the process's end frees
