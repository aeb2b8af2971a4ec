#!/usr/bin/env python3
"""Run the command line on damaged inputs, and report failures.

    scripts/fuzz                                1,000 inputs of all kinds
    scripts/fuzz --count 100000 --jobs 2        the long run
    scripts/fuzz --kinds text,bytecode          some kinds
    scripts/fuzz --kinds kills --count 500      compilations that are ended at any moment
    scripts/fuzz --kinds onnx_pieces,tflite_pieces,gguf_pieces,checkpoint_pieces --count 10000
                                                known files with one unknown piece added
    scripts/fuzz --kinds checkpoints --count 20000
                                                damaged folders of Hugging Face
    scripts/fuzz --replay text:123 --seed 7     one input again, with its output
    scripts/fuzz --cluster tcp://10.0.0.1:8786  on the workers of a Dask scheduler

Every input follows from its kind, the seed and its number. Failures are:

* a crash, or a traceback;
* an exit status other than 0, 1 and 2;
* a hang: more than ``--seconds``;
* an output file although the status is not 0, or none although it is;
* files left in the temporary folder;
* an exit status of 1 or 2 without an error;
* a checkpoint whose damage changes neither the model nor its tokens and that no error names, unless
  the damage is to a key that changes no result;
* a piece of a file (an attribute, a tensor, a property, a field) that changes no number and that no
  error names, though the reference runtime computes other numbers, refuses the file, or does not
  know the piece either.

Inputs are run one after another in processes that call the command line as a function, so that an
input costs its own time and not that of a start; a process that ends is a crash, and is replaced.
Failures are kept in ``build/fuzz/KIND-NUMBER``, with a file ``command`` and the output. Exit
status 1 if there is one.

On a cluster a task is a range of numbers: this script runs it there, out of an archive with all
that inputs are made from. The packages that make inputs must be the same there as here. Changed
executables (``executables``, ``signatures``) follow from the CPU too, for which they were compiled.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import tempfile
from pathlib import Path
from typing import Any

from damaged_inputs.cluster import run_on_cluster, run_range
from damaged_inputs.kinds import KINDS, inputs_of
from damaged_inputs.outcomes import Tally, keep_files
from damaged_inputs.server import Server, run_inputs, serve


def main() -> None:
    """Run inputs, and show what failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="how many inputs")
    parser.add_argument("--seed", type=int, default=0, help="of all inputs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {','.join(KINDS)}")
    parser.add_argument("--jobs", type=int, help="processes side by side  [default: 1]")
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="of a Dask scheduler, whose workers run the inputs"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=20,
        help="that an input may take; a killed one ten times as many",
    )
    parser.add_argument("--replay", metavar="KIND:NUMBER", help="run one input, and show all of it")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--results", metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cluster is not None and (arguments.jobs is not None or arguments.replay):
        parser.error("--cluster has others run the inputs: give neither --jobs nor --replay")
    kinds = arguments.kinds.split(",")
    unknown = set(kinds) - KINDS.keys()
    if unknown:
        parser.error(
            f"no kinds are named {', '.join(unknown)}; expected some of {', '.join(KINDS)}"
        )
    if arguments.serve:
        serve(arguments.seed)
        return
    with tempfile.TemporaryDirectory(prefix="subquant-fuzz-") as scratch:
        if arguments.replay:
            name, _, number = arguments.replay.partition(":")
            server = Server(arguments.seed, Path(scratch), arguments.seconds)
            outcome = server.run(name, int(number))
            server.stop()
            retained = keep_files(Path(scratch), outcome)
            print(f"{outcome}\n{retained or 'nothing wrong'}")
            raise SystemExit(outcome.failure is not None)
        if arguments.results:
            run_range(arguments, kinds, Path(scratch))
            return
        tally = Tally(arguments.seed)
        whole = True
        if arguments.cluster is None:
            _run_in_processes(arguments, kinds, Path(scratch), tally)
        else:
            whole = run_on_cluster(arguments, tally)
        if tally.statuses or whole:
            tally.show()
    raise SystemExit(bool(tally.failures) or not whole)


def _run_in_processes(arguments: Any, kinds: list[str], scratch: Path, tally: Tally) -> None:
    """Run the inputs in ``--jobs`` processes side by side."""
    jobs = arguments.jobs or 1
    inputs = inputs_of(kinds, arguments.first, arguments.count)

    def collect(share: int) -> None:
        folder = scratch / str(share)
        for outcome in run_inputs(arguments, inputs[share::jobs], folder):
            if outcome.failure is not None:
                keep_files(folder, outcome)
            tally.add(outcome)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(collect, range(jobs)))


if __name__ == "__main__":
    main()
