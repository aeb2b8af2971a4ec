"""Process of one peer: it prepares cases, times calls, and writes results.

    python -m benchmarks.worker PEER

Requests are lines of JSON on standard input, answers lines of JSON on standard output:

* ``{"do": "describe"}``: the peer's name and version.
* ``{"do": "prepare", "case": {...}, "arrays": FILE, "threads": N, "copies": N}``: build a case of
  `benchmarks.cases` with N copies of its weights, at different addresses.
* ``{"do": "time", "seconds": S}``: after one call that does not count, call for S seconds, each
  time with the copy after that of the last one; answers nanoseconds.
* ``{"do": "result", "file": FILE}``: call once more, and write the result as ``.npy``.
* ``{"do": "release"}``: forget the case.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import sys
import traceback
from typing import Any

import numpy as np

from subquant.runtime.timing import time_calls

from .hidden import HIDDEN
from .peers import HOST, Unsupported, target_cpu


def answer(peer: Any, state: dict[str, Any], request: dict[str, Any]) -> Any:
    """Answer one request; `state` holds the prepared case."""
    do = request["do"]
    if do == "describe":
        return peer.describe()
    if do in ("prepare", "release"):
        state.clear()
        gc.collect()
    if do == "prepare":
        case = request["case"]
        if case.get("target") == "vulkan" and not getattr(peer, "HAS_VULKAN", False):
            raise Unsupported("it computes on the CPU here")
        is_language_model = case["kind"] == "language model"
        if is_language_model and not getattr(peer, "HAS_LANGUAGE_MODELS", False):
            raise Unsupported("it reads other models")
        if case["kind"] == "module" and not getattr(peer, "HAS_MODULES", False):
            raise Unsupported("it has no such model")
        is_for_other = target_cpu(case) != HOST and HIDDEN not in os.environ
        if is_for_other and not getattr(peer, "HAS_TARGET_CPU", False):
            raise Unsupported("it chooses its instructions by this machine")
        os.environ["LP_NUM_THREADS"] = str(request["threads"])  # of Mesa's llvmpipe
        with np.load(request["arrays"]) as arrays:
            state |= {"copies": request["copies"], "numbers": itertools.count()}
            state["prepared"] = peer.prepare(
                case, dict(arrays), request["threads"], request["copies"]
            )
        return state["prepared"].notes
    if do == "time":
        prepared, copies = state["prepared"], state["copies"]
        numbers = state["numbers"]  # continues in the next slice, which may have few calls
        return time_calls(
            lambda _: prepared.call(next(numbers) % copies), seconds=request["seconds"], warm_up=1
        )
    if do == "result":
        state["prepared"].call(0)
        np.save(request["file"], state["prepared"].result())
    return None


def first_line(message: str) -> str:
    """Return the first line of a message that has ``error:``, or the first line."""
    message_lines = message.strip().splitlines() or ["no message"]
    return next((line for line in message_lines if "error:" in line), message_lines[0])


def serve(name: str) -> None:
    """Answer requests until standard input ends."""
    os.setpgrp()  # if the parent ends, the kernel continues a stopped orphan group
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries is no answer
    state: dict[str, Any] = {}
    for line in sys.stdin:
        try:
            peer = importlib.import_module(f".peers.{name}", __package__)
            reply = {"answer": answer(peer, state, json.loads(line))}
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {first_line(str(error))}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
