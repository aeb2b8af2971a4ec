"""Worker program: the functions that publish a dispatch, and that the threads of a pool run.

`subquant.iree_hooks.worker_pool` describes the protocol.
"""

from __future__ import annotations

from . import llvm_text as llvm
from .control_block import CONTROL_BLOCK_WORDS
from .entry_names import WORKER

_MIN_WORKGROUPS_FOR_SMALL_CLAIMS = 32
"""Unclaimed workgroups, at least, of which a claim takes half as many as otherwise.

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
"""The first and the longest wait of a parked worker with a timeout; each is twice the one before.

After each it looks for work; after the longest it waits until it is woken.
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
  {llvm.load("%function_", "%function", type_="!llvm.ptr")}
  {llvm.load("%environment_", "%environment", type_="!llvm.ptr")}
  {llvm.load("%state_", "%state", type_="!llvm.ptr")}
  {llvm.load("%size_x", "%grid_x", type_="i32")}
  {llvm.load("%size_y", "%grid_y", type_="i32")}
  %group = llvm.alloca %one x {llvm.WORKGROUP_STATE} : (i32) -> !llvm.ptr
  %group_y = llvm.getelementptr %group[0, 1] : (!llvm.ptr) -> !llvm.ptr, {llvm.WORKGROUP_STATE}
  %group_z = llvm.getelementptr %group[0, 2] : (!llvm.ptr) -> !llvm.ptr, {llvm.WORKGROUP_STATE}
  llvm.store %empty, %group : {llvm.WORKGROUP_STATE}, !llvm.ptr
  %x0 = llvm.urem %first, %size_x : i32
  %row0 = llvm.udiv %first, %size_x : i32
  %y0 = llvm.urem %row0, %size_y : i32
  %z0 = llvm.udiv %row0, %size_y : i32
  llvm.br ^workgroup(%first, %x0, %y0, %z0, %zero : i32, i32, i32, i32, i32)
^workgroup(%i: i32, %x: i32, %y: i32, %z: i32, %earlier: i32):
  %z16 = llvm.trunc %z : i32 to i16
  {llvm.store("%x", "%group", type_="i32")}
  {llvm.store("%y", "%group_y", type_="i32")}
  {llvm.store("%z16", "%group_z", type_="i16")}
  %status = llvm.call %function_(%environment_, %state_, %group) : !llvm.ptr, {llvm.WORKGROUP_TYPE}
  %is_ok = llvm.icmp "eq" %status, %zero : i32
  %status_so_far = llvm.select %is_ok, %earlier, %status : i1, i32
  %x_plus_1 = llvm.add %x, %one : i32
  %ends_row = llvm.icmp "eq" %x_plus_1, %size_x : i32
  %next_x = llvm.select %ends_row, %zero, %x_plus_1 : i1, i32
  %carry_y = llvm.zext %ends_row : i1 to i32
  %y_plus = llvm.add %y, %carry_y : i32
  %ends_layer = llvm.icmp "eq" %y_plus, %size_y : i32
  %next_y = llvm.select %ends_layer, %zero, %y_plus : i1, i32
  %carry_z = llvm.zext %ends_layer : i1 to i32
  %next_z = llvm.add %z, %carry_z : i32
  %next_i = llvm.add %i, %one : i32
  %is_end = llvm.icmp "eq" %next_i, %end : i32
  llvm.cond_br %is_end, ^done,
      ^workgroup(%next_i, %next_x, %next_y, %next_z, %status_so_far : i32, i32, i32, i32, i32)
^done:
  llvm.return %status_so_far : i32
}}
"""
"""The function ``@run``, which computes the workgroups ``[first, end)`` of a job, x innermost.

It returns the last status that is not 0, or 0.
"""


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
  %locked = llvm.mlir.constant(1 : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  %null = llvm.mlir.zero : !llvm.ptr
  {llvm.addresses(*_PUBLISHER_WORDS)}
  %s = llvm.load %state_ : !llvm.ptr -> {llvm.STATE}
  {llvm.fields("%s", llvm.STATE, llvm.STATE_GRID, ("size_x", "size_y", "size_z"))}
  %wide_x = llvm.zext %size_x : i32 to i64
  %wide_y = llvm.zext %size_y : i32 to i64
  %wide_z = llvm.zext %size_z : i32 to i64
  %wide_xy = llvm.mul %wide_x, %wide_y : i64
  %workgroups = llvm.mul %wide_xy, %wide_z : i64
  %high_bits = llvm.lshr %workgroups, %half : i64
  %fits_range = llvm.icmp "eq" %high_bits, %none : i64
  llvm.cond_br %fits_range, ^acquire, ^compute_one
^acquire:
  %lock = llvm.cmpxchg %busy, %none, %locked acquire monotonic : !llvm.ptr, i64
  %is_acquired = llvm.extractvalue %lock[1] : !llvm.struct<(i64, i1)>
  llvm.cond_br %is_acquired, ^publish, ^compute_one
^publish:
  {llvm.load("%done_before", "%done", "monotonic")}
  {llvm.store("%work", "%function", type_="!llvm.ptr")}
  {llvm.store("%environment_", "%environment", type_="!llvm.ptr")}
  {llvm.store("%state_", "%state", type_="!llvm.ptr")}
  {llvm.store("%size_x", "%grid_x", type_="i32")}
  {llvm.store("%size_y", "%grid_y", type_="i32")}
  %total = llvm.trunc %workgroups : i64 to i32
  {llvm.load("%shift_", "%claim_shift", type_="i32")}
  {_claim_size("%total", "%first_claim")}
  {_packed_range("%first_claim", "%total", "%initial_range")}
  {llvm.store("%initial_range", "%range", "release")}
  {llvm.store("%state_", "%owner", "monotonic", "!llvm.ptr")}
  %first_status = llvm.call @run(%control_block, %zero, %first_claim) : (!llvm.ptr, i32, i32) -> i32
  llvm.br ^claim(%initial_range, %first_claim, %first_status : i64, i32, i32)
^claim(%word: i64, %own_count: i32, %status: i32):
  {_claim("%word")}
  llvm.cond_br %are_left, ^exchange, ^await_workers
^exchange:
  %next = llvm.add %first, %share : i32
  {_exchange("%next", "%end", "monotonic")}
  llvm.cond_br %is_claimed, ^work, ^claim(%now, %own_count, %status : i64, i32, i32)
^work:
  %new_status = llvm.call @run(%control_block, %first, %next) : (!llvm.ptr, i32, i32) -> i32
  %was_ok = llvm.icmp "eq" %status, %zero : i32
  %merged_status = llvm.select %was_ok, %new_status, %status : i1, i32
  %new_count = llvm.add %own_count, %share : i32
  llvm.br ^claim(%rest, %new_count, %merged_status : i64, i32, i32)
{_await_workers(pause)}
^compute_one:
  %0 = llvm.call %work(%environment_, %state_, %group) : !llvm.ptr, {llvm.WORKGROUP_TYPE}
  llvm.return %0 : i32
}}
"""


def _await_workers(pause: str) -> str:
    """Return the blocks of a publisher that waits for the workgroups that workers have claimed.

    It then returns the status of the job, and lets other dispatches use the pool if that is not 0.
    """
    return f"""
^await_workers:
  %worker_count = llvm.sub %total, %own_count : i32
  %wide_worker_count = llvm.zext %worker_count : i32 to i64
  %done_at_end = llvm.add %done_before, %wide_worker_count : i64
  llvm.br ^poll
^poll:
  {llvm.load("%done_now", "%done", "acquire")}
  %are_done = llvm.icmp "eq" %done_now, %done_at_end : i64
  llvm.cond_br %are_done, ^end, ^pause
^pause:
  {pause}
  llvm.br ^poll
^end:
  {llvm.load("%worker_status", "%failed", "monotonic", "i32")}
  %are_ok = llvm.icmp "eq" %status, %zero : i32
  %result = llvm.select %are_ok, %worker_status, %status : i1, i32
  %is_ok = llvm.icmp "eq" %result, %zero : i32
  llvm.cond_br %is_ok, ^return, ^failed
^failed:
  {llvm.store("%zero", "%failed", "monotonic", "i32")}
  {llvm.store("%null", "%owner", "monotonic", "!llvm.ptr")}
  {llvm.store("%none", "%busy", "release")}
  llvm.br ^return
^return:
  llvm.return %result : i32
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
  %zero_word = llvm.mlir.constant(0 : i64) : i64
  %one_word = llvm.mlir.constant(1 : i64) : i64
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
  {llvm.store("%zero_word", "%time")}
  {llvm.addresses(*_WORKER_WORDS)}
  %publish_function = llvm.mlir.addressof @publish : !llvm.ptr
  {llvm.store("%publish_function", "%publish", type_="!llvm.ptr")}
  {llvm.load("%shift_", "%claim_shift", type_="i32")}
  llvm.br ^read_range(%zero_word : i64)
^read_range(%spins_before: i64):
  {llvm.load("%seen", "%range", "monotonic")}
  llvm.br ^claim(%seen, %spins_before : i64, i64)
^claim(%word: i64, %spins: i64):
  {_claim("%word")}
  llvm.cond_br %are_left, ^exchange, ^no_work
^exchange:
  %next = llvm.sub %end, %share : i32
  {_exchange("%first", "%next", "acquire")}
  llvm.cond_br %is_claimed, ^work, ^claim(%now, %zero_word : i64, i64)
^work:
  %status = llvm.call @run(%control_block, %next, %end) : (!llvm.ptr, i32, i32) -> i32
  %is_ok = llvm.icmp "eq" %status, %zero : i32
  llvm.cond_br %is_ok, ^count, ^failed
^failed:
  {llvm.store("%status", "%failed", "monotonic", "i32")}
  llvm.br ^count
^count:
  %computed = llvm.zext %share : i32 to i64
  %0 = llvm.atomicrmw add %done, %computed release : !llvm.ptr, i64
  llvm.br ^claim(%rest, %zero_word : i64, i64)
^no_work:
  {llvm.load("%stop_now", "%stop", "monotonic")}
  %is_end = llvm.icmp "ne" %stop_now, %zero_word : i64
  llvm.cond_br %is_end, ^return, ^spin
^spin:
  {pause}
  %spins_more = llvm.add %spins, %one_word : i64
  {llvm.load("%budget", "%spin_budget", "monotonic")}
  %is_spent = llvm.icmp "ugt" %spins_more, %budget : i64
  llvm.cond_br %is_spent, ^check_single, ^read_range(%spins_more : i64)
^check_single:
  {llvm.load("%single_now", "%single", "monotonic")}
  %is_idle = llvm.icmp "eq" %single_now, %zero_word : i64
  llvm.cond_br %is_idle, ^stop_spinning, ^read_range(%zero_word : i64)
{_parking(load_can_park)}
^return:
  llvm.return %zero : i32
}}
"""


def _parking(load_can_park: str) -> str:
    """Return the blocks of a worker that has spun in vain: it parks until it is woken, or returns.

    Before each wait it looks for work once more, as a call may have begun just before it parked.
    """
    return f"""
^stop_spinning:
  {load_can_park}
  %may_park = llvm.icmp "ne" %parks, %zero_word : i64
  llvm.cond_br %may_park, ^park, ^return
^park:
  {llvm.load("%wake_ups_before", "%wake_ups", "acquire")}
  %1 = llvm.atomicrmw add %parked, %one_word seq_cst : !llvm.ptr, i64
  llvm.br ^parked(%first_time : i64)
^parked(%duration: i64):
  {llvm.load("%range_now", "%range", "acquire")}
  %first_now = llvm.trunc %range_now : i64 to i32
  %high_now = llvm.lshr %range_now, %half : i64
  %end_now = llvm.trunc %high_now : i64 to i32
  %has_work = llvm.icmp "ult" %first_now, %end_now : i32
  llvm.cond_br %has_work, ^unpark, ^check_wake_ups
^check_wake_ups:
  {llvm.load("%stop_parked", "%stop", "acquire")}
  {llvm.load("%wake_ups_now", "%wake_ups", "acquire")}
  %is_stop = llvm.icmp "ne" %stop_parked, %zero_word : i64
  %is_woken = llvm.icmp "ne" %wake_ups_now, %wake_ups_before : i64
  %must_wake = llvm.or %is_stop, %is_woken : i1
  llvm.cond_br %must_wake, ^wake_others, ^wait
^wait:
  {llvm.store("%duration", "%nanoseconds")}
  %is_longest = llvm.icmp "ugt" %duration, %last_time : i64
  %limit = llvm.select %is_longest, %forever, %time : i1, !llvm.ptr
  llvm.call @futex(%wake_ups, %wait, %wake_ups_before, %limit)
      : (!llvm.ptr, i64, i64, !llvm.ptr) -> ()
  %twice = llvm.shl %duration, %one_word : i64
  %next_duration = llvm.select %is_longest, %duration, %twice : i1, i64
  llvm.br ^parked(%next_duration : i64)
^wake_others:
  llvm.call @futex(%wake_ups, %wake, %wake_ups_by_worker, %forever)
      : (!llvm.ptr, i64, i64, !llvm.ptr) -> ()
  llvm.br ^unpark
^unpark:
  %2 = llvm.atomicrmw add %parked, %minus_one seq_cst : !llvm.ptr, i64
  llvm.br ^read_range(%zero_word : i64)
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
