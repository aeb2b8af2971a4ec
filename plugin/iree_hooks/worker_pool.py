"""Worker pool: functions in LLVM's dialect that distribute the workgroups of a dispatch to threads.

**The protocol.** The publisher, a caller that has acquired `busy`, writes a job: the function, its
arguments, and last, with release semantics, `range`, one word with the unclaimed workgroups. A
compare-and-swap that shrinks the range claims the workgroups removed from it. The publisher claims
from the start and workers steal from the end, so that the claims of a thread are neighbors, whose
data the next dispatch finds in the cache of the same core.

* Each workgroup is claimed once: compare-and-swaps are totally ordered, and each claims from the
  range that the previous one has left. A thread that was suspended after it read the word fails to
  swap it, or claims workgroups of the current job.
* A worker reads the job after it has claimed workgroups of it: the swap acquires the publisher's
  writes. It then adds the number of computed workgroups to `done` with release semantics. The
  publisher waits until all workgroups are done, and publishes no other job before. A worker
  therefore reads the job that it has claimed, and its results are visible to the publisher.

A call that finds the pool busy computes its workgroups itself. `owner`, the address of the dispatch
state, tells the publisher's calls for later workgroups, which return at once, from calls of others.
The call for the last workgroup clears `busy`, or the first one if a workgroup has failed, since
IREE may make no further calls then.

`subquant.iree_hooks.session` inserts these functions into programs, and
`subquant.runtime.worker_threads` runs the workers.
"""

from __future__ import annotations

from . import llvm_text as llvm
from .control_block import CONTROL_BLOCK_WORDS, WORDS, encode_worker_program
from .entry_names import SET_CONTROL_BLOCK, WORKER, WORKER_PROGRAM_KEY, WORKGROUP

_MIN_WORKGROUPS_FOR_SMALL_CLAIMS = 32
"""Unclaimed workgroups from which on a claim takes half as many.

A suspended thread then delays few workgroups: calls of 128x4096x4096 take 3 % less time on average
with two threads.
"""
_PUBLISHER_WORDS = [
    *(name for name in WORDS if name not in ("single", "publish", "stop", "spin_budget"))
]
_WORKER_WORDS = [
    *("range", "done", "failed", "single", "stop", "spin_budget", "publish", "claim_shift")
]
_PAUSES = {
    "x86_64": 'llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()',
    "aarch64": 'llvm.inline_asm has_side_effects "yield", "" : () -> ()',
}


def pause_of(triple: str) -> str:
    """Return the pause operation of a spin loop for a target triple; none for other processors."""
    return _PAUSES.get(triple.partition("-")[0], "")


SET_CONTROL_BLOCK_FUNCTION = f"""
{llvm.DECLARE_VARIABLE}
llvm.func @{SET_CONTROL_BLOCK}({llvm.PARAMETERS}) -> i32 {{
  {llvm.LOAD_CONTROL_BLOCK}
  %variable = llvm.mlir.addressof @{llvm.VARIABLE} : !llvm.ptr
  %address = llvm.ptrtoint %control_block : !llvm.ptr to i64
  {llvm.store("%address", "%variable")}
  %done = llvm.mlir.constant(0 : i32) : i32
  llvm.return %done : i32
}}
"""
"""The dispatch of `SET_CONTROL_BLOCK`: its first binding becomes the control block."""
SETTER_LAYOUT = "#hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer>]>"
"""The pipeline layout of this dispatch."""


def host_setter(device: str, executable: str, binary: str, worker_program: bytes) -> str:
    """Return the function `SET_CONTROL_BLOCK` in IREE's HAL dialect, which runs its dispatch.

    `device` and `executable` are globals, `binary` is the binary with the dispatch, and
    `worker_program` is recorded in the reflection.
    """
    size = 8 * CONTROL_BLOCK_WORDS
    recorded = encode_worker_program(worker_program)
    return f"""
util.global private @{device} : !hal.device
util.global private @{executable} : !hal.executable
util.func public @{SET_CONTROL_BLOCK}(%view: !hal.buffer_view)
    attributes {{iree.abi.stub, iree.reflection = {{{WORKER_PROGRAM_KEY} = "{recorded}"}}}} {{
  %any = arith.constant -1 : i64
  %forever = arith.constant -1 : i32
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %size = arith.constant {size} : index
  %none = util.null : !hal.fence
  %device = util.global.load @{device} : !hal.device
  %executable = util.global.load @{executable} : !hal.executable
  %control_block = hal.buffer_view.buffer<%view : !hal.buffer_view> : !hal.buffer
  %commands = hal.command_buffer.create device(%device : !hal.device) mode("OneShot")
      categories("Dispatch") affinity(%any) : !hal.command_buffer
  %function = hal.executable.lookup.function target(%executable : !hal.executable)
      function({binary}::@{SET_CONTROL_BLOCK}) : i64
  hal.command_buffer.dispatch<%commands : !hal.command_buffer>
      target(%executable : !hal.executable)[%function] workgroups([%one, %one, %one])
      bindings([(%control_block : !hal.buffer)[%zero, %size]]) flags("None")
  hal.command_buffer.finalize<%commands : !hal.command_buffer>
  %done = hal.fence.create device(%device : !hal.device) flags("None") : !hal.fence
  hal.device.queue.execute<%device : !hal.device> affinity(%any) wait(%none) signal(%done)
      commands(%commands) flags("None")
  %status = hal.fence.await until([%done]) timeout_millis(%forever) flags("None") : i32
  util.status.check_ok %status, "the control block of the worker pool"
  util.return
}}
"""


def workgroup_wrapper(name: str) -> str:
    """Return the function that IREE calls for each workgroup of a dispatch.

    It computes the workgroup, if there is no control block. With one, the call for the first
    workgroup publishes the whole dispatch, and the calls for later ones return.
    """
    work = WORKGROUP.format(name)
    return f"""
{llvm.DECLARE_VARIABLE}
llvm.func @"{work}"({llvm.POINTER}, {llvm.POINTER}, {llvm.POINTER}) -> i32
llvm.func @{name}({llvm.PARAMETERS}) -> i32 {{
  %variable = llvm.mlir.addressof @{llvm.VARIABLE} : !llvm.ptr
  {llvm.load("%address", "%variable")}
  %none = llvm.mlir.constant(0 : i64) : i64
  %zero = llvm.mlir.constant(0 : i32) : i32
  %one = llvm.mlir.constant(1 : i32) : i32
  %null = llvm.mlir.zero : !llvm.ptr
  %is_none = llvm.icmp "eq" %address, %none : i64
  llvm.cond_br %is_none, ^alone, ^pool
^pool:
  %control_block = llvm.inttoptr %address : i64 to !llvm.ptr
  {llvm.addresses("publish", "busy", "owner", "single")}
  %s = llvm.load %state : !llvm.ptr -> {llvm.STATE}
  %g = llvm.load %group : !llvm.ptr -> {llvm.WORKGROUP_STATE}
  {llvm.fields("%s", llvm.STATE, llvm.STATE_GRID, ("a", "b", "c"))}
  {llvm.fields("%g", llvm.WORKGROUP_STATE, (0, 1, 2), ("x", "y", "z"))}
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
  {llvm.store("%state", "%single", "monotonic", "!llvm.ptr")}
  %2 = llvm.call @"{work}"(%environment, %state, %group) : {llvm.WORKGROUP_TYPE}
  {llvm.store("%null", "%single", "monotonic", "!llvm.ptr")}
  llvm.return %2 : i32
^together:
  {llvm.load("%publish_function", "%publish", type_="!llvm.ptr")}
  %work = llvm.mlir.addressof @"{work}" : !llvm.ptr
  %0 = llvm.call %publish_function(%control_block, %work, %environment, %state, %group)
      : !llvm.ptr, {llvm.PUBLISH_TYPE}
  llvm.return %0 : i32
^later:
  {llvm.load("%whose", "%owner", "monotonic", "!llvm.ptr")}
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
  {llvm.store("%null", "%owner", "monotonic", "!llvm.ptr")}
  {llvm.store("%none", "%busy", "release")}
  llvm.br ^return
^return:
  llvm.return %zero : i32
^alone:
  %1 = llvm.call @"{work}"(%environment, %state, %group) : {llvm.WORKGROUP_TYPE}
  llvm.return %1 : i32
}}
"""


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
  {_packed_range("%next", "%end", "%rest")}
  %was = llvm.cmpxchg %range, %word, %rest monotonic monotonic : !llvm.ptr, i64
  %now = llvm.extractvalue %was[0] : !llvm.struct<(i64, i1)>
  %is_claimed = llvm.extractvalue %was[1] : !llvm.struct<(i64, i1)>
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


def worker_function(name: str, pause: str) -> str:
    """Return the dispatch of `WORKER`, whose first binding is the control block."""
    return f"""
{_RUN}
{_publish(pause)}
llvm.func @{name}({llvm.PARAMETERS}) -> i32 {{
  {llvm.LOAD_CONTROL_BLOCK}
  %one = llvm.mlir.constant(1 : i32) : i32
  %zero = llvm.mlir.constant(0 : i32) : i32
  %none = llvm.mlir.constant(0 : i64) : i64
  %once = llvm.mlir.constant(1 : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  {llvm.addresses(*_WORKER_WORDS)}
  %publish_function = llvm.mlir.addressof @publish : !llvm.ptr
  {llvm.store("%publish_function", "%publish", type_="!llvm.ptr")}
  {llvm.load("%most", "%spin_budget", "monotonic")}
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
  {_packed_range("%first", "%next", "%rest")}
  %was = llvm.cmpxchg %range, %word, %rest acquire monotonic : !llvm.ptr, i64
  %now = llvm.extractvalue %was[0] : !llvm.struct<(i64, i1)>
  %is_claimed = llvm.extractvalue %was[1] : !llvm.struct<(i64, i1)>
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
  %is_long = llvm.icmp "ugt" %more, %most : i64
  llvm.cond_br %is_long, ^wait, ^look(%more : i64)
^wait:
  {llvm.load("%whose", "%single", "monotonic")}
  %is_nobody = llvm.icmp "eq" %whose, %none : i64
  llvm.cond_br %is_nobody, ^return, ^look(%none : i64)
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
