"""Worker program: the functions that publish a dispatch, and that the threads of a pool run.

`subquant.iree_hooks.worker_pool` describes the protocol.
"""

from __future__ import annotations

from . import llvm_text as llvm
from .control_block import CONTROL_BLOCK_WORDS
from .entry_names import WORKER

_MIN_WORKGROUPS_FOR_SMALL_CLAIMS = 32
"""Unclaimed workgroups from which on a claim takes half as many.

A suspended thread then delays few workgroups: calls of 128x4096x4096 take 3 % less time on average
with two threads.
"""
_PUBLISHER_WORDS = [
    *("range", "function", "environment", "state", "grid_x", "grid_y"),
    *("done", "failed", "busy", "owner", "claim_shift"),
]
_WORKER_WORDS = [
    *("range", "done", "failed", "parked", "single"),
    *("stop", "spin_budget", "publish", "claim_shift", "can_park", "wake_ups"),
]
_PAUSES = {
    "x86_64": 'llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()',
    "aarch64": 'llvm.inline_asm has_side_effects "yield", "" : () -> ()',
}
_FUTEX = {  # of Linux: the instruction, the number of the system call, and the registers
    "x86_64": ("syscall", 202, "={rax},{rax},{rdi},{rsi},{rdx},{r10},~{rcx},~{r11},~{memory}"),
    "aarch64": ("svc #0", 98, "={x0},{x8},{x0},{x1},{x2},{x3},~{memory}"),
}
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129
"""Operations on a futex that only this process has."""
_FIRST_PARKING_NANOSECONDS, _MAX_PARKING_NANOSECONDS = 100_000, 1_600_000
"""A worker that parks looks for work after the first time, and after twice as long, to the last.

A call that began just before the worker parked has not woken it.
"""
_WAKE_UPS_BY_WORKER = 2
"""Parked workers that a woken one wakes: 15 of them wake in four steps."""


def pause_of(triple: str) -> str:
    """Return the pause operation of a spin loop for a target triple; none for other processors."""
    return _PAUSES.get(_processor(triple), "")


def futex_of(triple: str) -> str:
    """Return the function ``@futex``: Linux's system call, which other systems must not make.

    It takes the address of a word, the operation, the expected value or the number of threads to
    wake, and the address of a time. For unknown processors it is empty.
    """
    instruction, number, registers = _FUTEX.get(_processor(triple), ("", 0, "=r,r,r,r,r,r"))
    return f"""
llvm.func internal @futex(%word: !llvm.ptr, %operation: i64, %value: i64, %time: !llvm.ptr)
    attributes {{no_inline}} {{
  %number = llvm.mlir.constant({number} : i64) : i64
  %0 = llvm.inline_asm has_side_effects "{instruction}", "{registers}"
      %number, %word, %operation, %value, %time
      : (i64, !llvm.ptr, i64, i64, !llvm.ptr) -> i64
  llvm.return
}}
"""


def _processor(triple: str) -> str:
    return triple.partition("-")[0]


_RUN = f"""
llvm.func internal @run(%control_block: !llvm.ptr, %first: i32, %end: i32) -> i32
    attributes {{no_inline}} {{
  %zero = llvm.mlir.constant(0 : i32) : i32
  %one = llvm.mlir.constant(1 : i32) : i32
  %empty = llvm.mlir.zero : {llvm.WORKGROUP_STATE}
  {llvm.addresses("function", "environment", "state", "grid_x", "grid_y")}
  {llvm.load("%f", "%function", type_="!llvm.ptr")}
  {llvm.load("%e", "%environment", type_="!llvm.ptr")}
  {llvm.load("%s", "%state", type_="!llvm.ptr")}
  {llvm.load("%a", "%grid_x", type_="i32")}
  {llvm.load("%b", "%grid_y", type_="i32")}
  %group = llvm.alloca %one x {llvm.WORKGROUP_STATE} : (i32) -> !llvm.ptr
  %group_y = llvm.getelementptr %group[0, 1] : (!llvm.ptr) -> !llvm.ptr, {llvm.WORKGROUP_STATE}
  %group_z = llvm.getelementptr %group[0, 2] : (!llvm.ptr) -> !llvm.ptr, {llvm.WORKGROUP_STATE}
  llvm.store %empty, %group : {llvm.WORKGROUP_STATE}, !llvm.ptr
  %x0 = llvm.urem %first, %a : i32
  %line = llvm.udiv %first, %a : i32
  %y0 = llvm.urem %line, %b : i32
  %z0 = llvm.udiv %line, %b : i32
  llvm.br ^next(%first, %x0, %y0, %z0, %zero : i32, i32, i32, i32, i32)
^next(%i: i32, %x: i32, %y: i32, %z: i32, %before: i32):
  %z16 = llvm.trunc %z : i32 to i16
  {llvm.store("%x", "%group", type_="i32")}
  {llvm.store("%y", "%group_y", type_="i32")}
  {llvm.store("%z16", "%group_z", type_="i16")}
  %status = llvm.call %f(%e, %s, %group) : !llvm.ptr, {llvm.WORKGROUP_TYPE}
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
"""Computes the workgroups ``[first, end)`` of a job; returns a status that is not 0, or 0."""


def _claim(word: str) -> str:
    """Return operations that unpack a word of `range`, and compute the size of a claim."""
    return f"""
  %first = llvm.trunc {word} : i64 to i32
  %high = llvm.lshr {word}, %half : i64
  %end = llvm.trunc %high : i64 to i32
  %unclaimed = llvm.sub %end, %first : i32
  {_claim_size("%unclaimed", "%share")}
  %are_left = llvm.icmp "ult" %first, %end : i32
"""


def _claim_size(unclaimed: str, share: str) -> str:
    """Return operations that compute the size of a claim from the unclaimed workgroups."""
    return f"""
  {unclaimed}_many = llvm.mlir.constant({_MIN_WORKGROUPS_FOR_SMALL_CLAIMS} : i32) : i32
  {unclaimed}_are_many = llvm.icmp "uge" {unclaimed}, {unclaimed}_many : i32
  {unclaimed}_more = llvm.zext {unclaimed}_are_many : i1 to i32
  {unclaimed}_shift = llvm.add %shift_, {unclaimed}_more : i32
  {unclaimed}_part = llvm.lshr {unclaimed}, {unclaimed}_shift : i32
  {share} = llvm.intr.umax({unclaimed}_part, %one) : (i32, i32) -> i32
"""


def _packed_range(first: str, end: str, word: str) -> str:
    """Return operations that pack a word of `range`."""
    return f"""
  {word}_first = llvm.zext {first} : i32 to i64
  {word}_end = llvm.zext {end} : i32 to i64
  {word}_high = llvm.shl {word}_end, %half : i64
  {word} = llvm.or {word}_high, {word}_first : i64
"""


def _exchange(first: str, end: str, ordering: str) -> str:
    """Return operations that claim workgroups: ``[first, end)`` remains of the word of `range`.

    The publisher has written the dispatch itself, and claims from the front; workers claim from the
    end, and a claim acquires the writes of the publisher.
    """
    return f"""
  {_packed_range(first, end, "%rest")}
  %was = llvm.cmpxchg %range, %word, %rest {ordering} monotonic : !llvm.ptr, i64
  %now = llvm.extractvalue %was[0] : !llvm.struct<(i64, i1)>
  %is_claimed = llvm.extractvalue %was[1] : !llvm.struct<(i64, i1)>
"""


def _publish(pause: str) -> str:
    """Return the function that publishes a dispatch, and helps to compute it."""
    return f"""
llvm.func internal @publish(%control_block: !llvm.ptr, %work: !llvm.ptr, %environment_: !llvm.ptr,
                             %state_: !llvm.ptr, %group: !llvm.ptr) -> i32 {{
  %one = llvm.mlir.constant(1 : i32) : i32
  %zero = llvm.mlir.constant(0 : i32) : i32
  %none = llvm.mlir.constant(0 : i64) : i64
  %taken = llvm.mlir.constant(1 : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  %null = llvm.mlir.zero : !llvm.ptr
  {llvm.addresses(*_PUBLISHER_WORDS)}
  %s = llvm.load %state_ : !llvm.ptr -> {llvm.STATE}
  {llvm.fields("%s", llvm.STATE, llvm.STATE_GRID, ("a", "b", "c"))}
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
  {llvm.load("%before", "%done", "monotonic")}
  {llvm.store("%work", "%function", type_="!llvm.ptr")}
  {llvm.store("%environment_", "%environment", type_="!llvm.ptr")}
  {llvm.store("%state_", "%state", type_="!llvm.ptr")}
  {llvm.store("%a", "%grid_x", type_="i32")}
  {llvm.store("%b", "%grid_y", type_="i32")}
  %total = llvm.trunc %abcl : i64 to i32
  {llvm.load("%shift_", "%claim_shift", type_="i32")}
  {_claim_size("%total", "%own")}
  {_packed_range("%own", "%total", "%given")}
  {llvm.store("%given", "%range", "release")}
  {llvm.store("%state_", "%owner", "monotonic", "!llvm.ptr")}
  %bad0 = llvm.call @run(%control_block, %zero, %own) : (!llvm.ptr, i32, i32) -> i32
  llvm.br ^claim(%given, %own, %bad0 : i64, i32, i32)
^claim(%word: i64, %ours: i32, %bad: i32):
  {_claim("%word")}
  llvm.cond_br %are_left, ^exchange, ^others
^exchange:
  %next = llvm.add %first, %share : i32
  {_exchange("%next", "%end", "monotonic")}
  llvm.cond_br %is_claimed, ^work, ^claim(%now, %ours, %bad : i64, i32, i32)
^work:
  %bad1 = llvm.call @run(%control_block, %first, %next) : (!llvm.ptr, i32, i32) -> i32
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
  {llvm.load("%there", "%done", "acquire")}
  %are_done = llvm.icmp "eq" %there, %all : i64
  llvm.cond_br %are_done, ^end, ^pause
^pause:
  {pause}
  llvm.br ^wait
^end:
  {llvm.load("%bad3", "%failed", "monotonic", "i32")}
  %are_ok = llvm.icmp "eq" %bad, %zero : i32
  %what = llvm.select %are_ok, %bad3, %bad : i1, i32
  %is_ok = llvm.icmp "eq" %what, %zero : i32
  llvm.cond_br %is_ok, ^return, ^failed
^failed:
  {llvm.store("%zero", "%failed", "monotonic", "i32")}
  {llvm.store("%null", "%owner", "monotonic", "!llvm.ptr")}
  {llvm.store("%none", "%busy", "release")}
  llvm.br ^return
^return:
  llvm.return %what : i32
^alone:
  %0 = llvm.call %work(%environment_, %state_, %group) : !llvm.ptr, {llvm.WORKGROUP_TYPE}
  llvm.return %0 : i32
}}
"""


def worker_function(name: str, triple: str) -> str:
    """Return the dispatch of `WORKER`, whose first binding is the control block."""
    pause, time = pause_of(triple), "!llvm.struct<(i64, i64)>"
    load_can_park = llvm.load("%parks", "%can_park", "monotonic")
    if _processor(triple) not in _FUTEX:
        load_can_park = "%parks = llvm.mlir.constant(0 : i64) : i64"
    return f"""
{_RUN}
{_publish(pause)}
{futex_of(triple)}
llvm.func @{name}({llvm.PARAMETERS}) -> i32 {{
  {llvm.LOAD_CONTROL_BLOCK}
  %one = llvm.mlir.constant(1 : i32) : i32
  %zero = llvm.mlir.constant(0 : i32) : i32
  %none = llvm.mlir.constant(0 : i64) : i64
  %once = llvm.mlir.constant(1 : i64) : i64
  %minus_one = llvm.mlir.constant(-1 : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  %wait = llvm.mlir.constant({_FUTEX_WAIT} : i64) : i64
  %wake = llvm.mlir.constant({_FUTEX_WAKE} : i64) : i64
  %wake_ups_by_worker = llvm.mlir.constant({_WAKE_UPS_BY_WORKER} : i64) : i64
  %first_time = llvm.mlir.constant({_FIRST_PARKING_NANOSECONDS} : i64) : i64
  %last_time = llvm.mlir.constant({_MAX_PARKING_NANOSECONDS} : i64) : i64
  %forever = llvm.mlir.zero : !llvm.ptr
  %time = llvm.alloca %one x {time} : (i32) -> !llvm.ptr
  %nanoseconds = llvm.getelementptr %time[0, 1] : (!llvm.ptr) -> !llvm.ptr, {time}
  {llvm.store("%none", "%time")}
  {llvm.addresses(*_WORKER_WORDS)}
  %publish_function = llvm.mlir.addressof @publish : !llvm.ptr
  {llvm.store("%publish_function", "%publish", type_="!llvm.ptr")}
  {llvm.load("%shift_", "%claim_shift", type_="i32")}
  llvm.br ^look(%none : i64)
^look(%asked: i64):
  {llvm.load("%seen", "%range", "monotonic")}
  llvm.br ^claim(%seen, %asked : i64, i64)
^claim(%word: i64, %since: i64):
  {_claim("%word")}
  llvm.cond_br %are_left, ^exchange, ^nothing
^exchange:
  %next = llvm.sub %end, %share : i32
  {_exchange("%first", "%next", "acquire")}
  llvm.cond_br %is_claimed, ^work, ^claim(%now, %none : i64, i64)
^work:
  %status = llvm.call @run(%control_block, %next, %end) : (!llvm.ptr, i32, i32) -> i32
  %is_ok = llvm.icmp "eq" %status, %zero : i32
  llvm.cond_br %is_ok, ^count, ^failed
^failed:
  {llvm.store("%status", "%failed", "monotonic", "i32")}
  llvm.br ^count
^count:
  %did = llvm.zext %share : i32 to i64
  %0 = llvm.atomicrmw add %done, %did release : !llvm.ptr, i64
  llvm.br ^claim(%rest, %none : i64, i64)
^nothing:
  {llvm.load("%ends", "%stop", "monotonic")}
  %is_end = llvm.icmp "ne" %ends, %none : i64
  llvm.cond_br %is_end, ^return, ^again
^again:
  {pause}
  %more = llvm.add %since, %once : i64
  {llvm.load("%most", "%spin_budget", "monotonic")}
  %is_long = llvm.icmp "ugt" %more, %most : i64
  llvm.cond_br %is_long, ^idle, ^look(%more : i64)
^idle:
  {llvm.load("%whose", "%single", "monotonic")}
  %is_nobody = llvm.icmp "eq" %whose, %none : i64
  llvm.cond_br %is_nobody, ^leave, ^look(%none : i64)
^leave:
  {load_can_park}
  %may_park = llvm.icmp "ne" %parks, %none : i64
  llvm.cond_br %may_park, ^park, ^return
^park:
  {llvm.load("%before", "%wake_ups", "acquire")}
  %1 = llvm.atomicrmw add %parked, %once seq_cst : !llvm.ptr, i64
  llvm.br ^sleep(%first_time : i64)
^sleep(%duration: i64):
  {llvm.load("%late", "%range", "acquire")}
  %late_first = llvm.trunc %late : i64 to i32
  %late_high = llvm.lshr %late, %half : i64
  %late_end = llvm.trunc %late_high : i64 to i32
  %is_late = llvm.icmp "ult" %late_first, %late_end : i32
  llvm.cond_br %is_late, ^awake, ^ask
^ask:
  {llvm.load("%stops", "%stop", "acquire")}
  {llvm.load("%after", "%wake_ups", "acquire")}
  %is_stop = llvm.icmp "ne" %stops, %none : i64
  %is_woken = llvm.icmp "ne" %after, %before : i64
  %is_called = llvm.or %is_stop, %is_woken : i1
  llvm.cond_br %is_called, ^called, ^futex
^futex:
  {llvm.store("%duration", "%nanoseconds")}
  %is_last = llvm.icmp "ugt" %duration, %last_time : i64
  %limit = llvm.select %is_last, %forever, %time : i1, !llvm.ptr
  llvm.call @futex(%wake_ups, %wait, %before, %limit) : (!llvm.ptr, i64, i64, !llvm.ptr) -> ()
  %twice = llvm.shl %duration, %once : i64
  %later = llvm.select %is_last, %duration, %twice : i1, i64
  llvm.br ^sleep(%later : i64)
^called:
  llvm.call @futex(%wake_ups, %wake, %wake_ups_by_worker, %forever)
      : (!llvm.ptr, i64, i64, !llvm.ptr) -> ()
  llvm.br ^awake
^awake:
  %2 = llvm.atomicrmw add %parked, %minus_one seq_cst : !llvm.ptr, i64
  llvm.br ^look(%none : i64)
^return:
  llvm.return %zero : i32
}}
"""


def worker_module() -> str:
    """Return the worker program; `worker_function` replaces the function of its dispatch."""
    type_ = f"tensor<{CONTROL_BLOCK_WORDS}xi64>"
    return f"""
func.func @{WORKER}(%control_block: {type_}) -> {type_} {{
  %0 = arith.addi %control_block, %control_block : {type_}
  return %0 : {type_}
}}
"""
