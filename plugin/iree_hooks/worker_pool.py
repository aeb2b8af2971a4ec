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

**Parking.** A worker that has spun in vain parks: it waits for `wake_ups` to change (a futex). At
first it waits for short times, as a call that has just begun has not woken it. The runtime wakes
some workers, and each wakes others. No worker needs Python's lock (GIL): with 16 threads that
parked in Python, calls of 0.1 ms took 2 ms, as each worker that woke waited for the lock, and then
the caller did.

A call that finds the pool busy computes its workgroups itself. `owner`, the address of the dispatch
state, tells the publisher's calls for later workgroups, which return at once, from calls of others.
The call for the last workgroup clears `busy`, or the first one if a workgroup has failed, since
IREE may make no further calls then.

`subquant.iree_hooks.session` inserts these functions into programs, `worker_functions` has those of
the worker program, and `subquant.runtime.worker_threads` runs the workers.
"""

from __future__ import annotations

from . import llvm_text as llvm
from .control_block import CONTROL_BLOCK_WORDS, encode_worker_program
from .entry_names import SET_CONTROL_BLOCK, WORKER_PROGRAM_KEY, WORKGROUP

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
