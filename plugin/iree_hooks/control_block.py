"""Control block of a worker pool: the shared memory of a program and the threads of the pool.

The words are separated by writer, so that threads do not share cache lines (false sharing).
"""

from __future__ import annotations

import base64
import zlib

_WORDS_PER_LINE_PAIR = 16
"""Words of two cache lines, which some processors load in pairs."""
_WORKERS, _PUBLISHER, _SETTINGS = (n * _WORDS_PER_LINE_PAIR for n in (1, 2, 3))
WORDS = {
    # The job: written by its publisher, `range` by all threads.
    "range": 0,
    "function": 1,
    "environment": 2,
    "state": 3,
    "grid_x": 4,
    "grid_y": 5,
    # Written by workers.
    "done": _WORKERS,
    "failed": _WORKERS + 1,
    "parked": _WORKERS + 2,
    # Written by publishers.
    "busy": _PUBLISHER,
    "owner": _PUBLISHER + 1,
    "single": _PUBLISHER + 2,
    # Written by the runtime.
    "stop": _SETTINGS,
    "spin_budget": _SETTINGS + 1,
    "publish": _SETTINGS + 2,
    "claim_shift": _SETTINGS + 3,
    "can_park": _SETTINGS + 4,
    "wake_ups": _SETTINGS + 5,
}
"""The index of each word of 64 bits.

* ``range``: the unclaimed workgroups, the first in the low 32 bits and the end in the high ones.
* ``function``, ``environment``, ``state``: the workgroup function and its arguments.
* ``grid_x``, ``grid_y``: workgroups along x and y.
* ``done``: workgroups that workers have computed since the pool started.
* ``failed``: a status that is not 0, which a workgroup returned to a worker.
* ``parked``: the number of workers that wait to be woken.
* ``busy``: 1 while a dispatch uses the pool.
* ``owner``: the state of this dispatch.
* ``single``: the state of a dispatch of one workgroup while it runs; workers spin until it ends.
* ``stop``: 1 to let workers return.
* ``spin_budget``: how often a worker looks for work before it parks or returns.
* ``publish``: the address of the function that publishes a job.
* ``claim_shift``: a claim takes the number of unclaimed workgroups shifted right by this, at least
  one (`subquant.iree_hooks.worker_functions`).
* ``can_park``: 1 to let workers park (on Linux) in place of returning.
* ``wake_ups``: the word that a parked worker waits on; the runtime increases it.
"""
CONTROL_BLOCK_WORDS = 61
"""The number of words of the tensor that the program and the workers get."""


def encode_worker_program(program: bytes) -> str:
    """Return the worker program as text that an executable records."""
    return base64.b64encode(zlib.compress(program, 9)).decode()


def decode_worker_program(text: str) -> bytes:
    """Return the worker program that an executable records.

    Raises:
        ValueError: the text is no worker program.
    """
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error as error:
        raise ValueError(str(error)) from None
