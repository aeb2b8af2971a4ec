"""Entry points: ``@f$unfenced``, ``$memory``, ``$bound``, ``$record``, ``$replay``, ``$fenced``.

`subquant.runtime.entry_points` looks these names and ``@f$laid_out`` up in executables.

A public function ``@f`` of a program has variants with a suffix, which IREE's tools do not list
because of the ``$``. Executables of all versions have these strings: a new meaning needs a new
string. `tests/test_entry_names.py` holds them.
"""

from __future__ import annotations

__all__ = [
    "ALLOCATE_SUFFIX", "ASYNC_SUFFIX", "BOUND_SUFFIX", "PREPACKED_SUFFIX", "RECORD_SUFFIX",
    "REPLAY_SUFFIX", "SET_CONTROL_BLOCK", "SET_LOOP_LIMIT", "SYNC_SUFFIX", "WORKER",
    "WORKER_PROGRAM_KEY", "WORKGROUP"
]  # fmt: skip

SYNC_SUFFIX = "$unfenced"
"""Synchronous entry point: computes without fences."""
ALLOCATE_SUFFIX = "$memory"
"""Allocation entry point: takes the arguments, and returns buffers and results that view them."""
BOUND_SUFFIX = "$bound"
"""I/O binding entry point: takes the arguments and those buffers, and computes the results."""
RECORD_SUFFIX = "$record"
"""Recording entry point: takes the same, and returns a command buffer that computes the results."""
REPLAY_SUFFIX = "$replay"
"""Replay entry point: takes the command buffer of `RECORD_SUFFIX`, and executes it."""
ASYNC_SUFFIX = "$fenced"
"""Asynchronous entry point: takes a fence as last argument, and signals it at the end."""
PREPACKED_SUFFIX = "$laid_out"
"""Entry point that takes prepacked weights after the arguments.

With ``_N`` behind it: the function that prepacks argument N.
"""

WORKGROUP = "{}$work"
"""Function of a dispatch that computes one workgroup, below the function that distributes them."""
SET_CONTROL_BLOCK = "__subquant_team"
"""Function that stores the address of the control block of a worker pool."""
WORKER = "__subquant_threads"
"""Function that a thread of a worker pool runs; it returns when its spin budget is used up."""
WORKER_PROGRAM_KEY = "subquant.team.2"
"""Key of the recorded worker program; its number is the version of the control block."""
SET_LOOP_LIMIT = "__subquant_bound_loops"
"""Function that takes the number of iterations after which the device ends a loop."""
