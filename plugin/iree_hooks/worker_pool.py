"""How a program and the threads of a team share the workgroups of a dispatch, in LLVM's dialect.

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

`subquant.iree_hooks.session` puts these functions into programs; like that file this one imports
nothing of the package.
"""

from __future__ import annotations

import base64
import zlib

__all__ = [
    "MAILBOX_WORDS",
    "SETTER",
    "SETTER_LAYOUT",
    "SLOTS",
    "TEAM",
    "THREADS",
    "THREADS_KEY",
    "WORK",
    "around",
    "host_setter",
    "pause_of",
    "thread",
    "threads_function",
    "threads_program",
]

TEAM = "__subquant_team"
"""The function that is given the mailbox."""
THREADS = "__subquant_threads"
"""The function that a thread of the team runs; it returns when it has waited long enough."""
THREADS_KEY = "subquant.team.2"
"""Of the threads' program, with the version of the mailbox."""

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
WORK = "{}$work"
"""The name of the function of a dispatch that has another around it."""
_VARIABLE = "subquant_mailbox"
_DECLARED_VARIABLE = f"llvm.mlir.global internal @{_VARIABLE}(0 : i64) : i64"
_PAUSES = {
    "x86_64": 'llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()',
    "aarch64": 'llvm.inline_asm has_side_effects "yield", "" : () -> ()',
}


def pause_of(triple: str) -> str:
    """What a thread does between two looks, by its target's triple; nothing where that is new."""
    return _PAUSES.get(triple.partition("-")[0], "")


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


SETTER = f"""
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
SETTER_LAYOUT = "#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer>]>"
"""Of the bindings of that dispatch."""


def host_setter(device: str, executable: str, binary: str, threads: bytes) -> str:
    """The function `TEAM`, where IREE has reached its HAL dialect: it dispatches `SETTER`.

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


def around(name: str) -> str:
    """The function around the work of a dispatch."""
    work = WORK.format(name)
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


def thread(name: str, pause: str) -> str:
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


def threads_function() -> str:
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
