#!/usr/bin/env python3
"""Run random programs, and compare their results with Python's integers.

    scripts/fuzz numbers                               200 programs of all kinds
    scripts/fuzz numbers --count 20000 --seed 7        the long run
    scripts/fuzz numbers --kinds monotone              some kinds
    scripts/fuzz numbers --replay chains:123 --seed 7  one program again

Kinds:

* ``chains``: elementwise integer operations after a contraction: shifts by all counts, narrowing
  and widening, selects, lookups, 64 bits;
* ``requantizations``: the roundings of TensorFlow Lite, TOSA and ONNX after a contraction, with
  extreme multipliers, shifts and zero points, some of them mutated;
* ``rescales``: TOSA's ``rescale`` after a contraction;
* ``monotone``: roundings for `subquant.kernels.epilogue.requant_analysis`: each proved line is
  compared with every accumulator of a range. Nothing is compiled.

Programs of the other kinds are compiled in modules of several, with kernels and without (on Vulkan
with ``--kernels spirv``), and called from several threads at once. A program with wrong results is
minimized, and saved with its numbers in ``build/fuzz/KIND-NUMBER``. Kind, seed and number determine
a program. The exit status is 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from random_programs.kinds import chains, requantizations, rescales
from random_programs.monotone import check_monotone, monotone
from random_programs.program import Program
from random_programs.steps import Constant, Operand

FAILURES = Path(__file__).resolve().parent.parent / "build/fuzz"
_PROGRAMS_PER_MODULE = 24
"""IREE's compiler takes longer to start than to compile a few programs."""
_THREADS = 4
"""Threads that call the programs of a module, each program twice."""
_MAX_REDUCTIONS = 60
"""Smaller programs that are tried for a failure."""

KINDS: dict[str, Callable[[random.Random], Any]] = {
    each.__name__: each for each in (chains, requantizations, rescales, monotone)
}


@dataclass
class Failure:
    """A program with wrong results."""

    kind: str
    number: int
    reason: str
    program: Any = field(repr=False)


def instructions_here() -> list[str]:
    """The instruction sets of this CPU's kernels."""
    from subquant.compiler.compile_options import CompileOptions
    from subquant.compiler.iree_driver import recorded_features
    from subquant.kernels.isa.registry import supported_instruction_sets

    return supported_instruction_sets(recorded_features(CompileOptions()).split(","))


def _compared(programs: dict[str, Program], kernels: str) -> dict[str, str]:
    """Compile and run programs; return the differences by program."""
    import subquant

    text = "".join(program.text(name) for name, program in programs.items())
    target = "vulkan" if kernels in ("spirv", "spirv-cpu") else "llvm-cpu"
    try:
        executable = subquant.compile(text, kernels=kernels, target=target, cache="")
    except Exception as error:  # an error is as wrong as a number
        if len(programs) == 1:
            return dict.fromkeys(programs, f"kernels {kernels}: {str(error)[-2000:]}")
        return {
            name: reason
            for name in programs
            for reason in _compared({name: programs[name]}, kernels).values()
        }

    def call(name: str) -> list[Any]:
        program, function = programs[name], executable[name]
        arguments = program.arguments()
        contraction = program.contraction
        if contraction.has_weight_argument and contraction.w.sum() % 2:  # prepacked
            arguments[1] = function.put(1, arguments[1])
        results = function(*arguments)
        return [*results] if isinstance(results, tuple | list) else [results]

    differences: dict[str, str] = {}
    names = [*programs] * 2
    with ThreadPoolExecutor(_THREADS) as pool:
        calls = [*zip(names, pool.map(call, names), strict=True)]
    for name, results in calls:
        program = programs[name]
        for index, (each, expected) in enumerate(zip(results, program.expected(), strict=True)):
            result = np.asarray(each)
            differs = result.astype(expected.dtype) != expected
            if differs.any():
                at = tuple(np.argwhere(differs)[0])
                accumulator = program.contraction.accumulators()[at]
                differences[name] = (
                    f"kernels {kernels}: result {index} at {[int(n) for n in at]} of accumulator "
                    f"{accumulator} is {result[at]}, not {expected[at]} ({int(differs.sum())} of "
                    f"{differs.size} are wrong)"
                )
    return differences


def _reductions(program: Program) -> Iterator[Program]:
    """Programs with fewer results, steps or constants."""
    elements = ["i32", *(step.element for step in program.steps)]
    if len(program.results) > 1:
        for each in program.results:
            yield replace(program, results=(each,))
    for cut in range(1, len(program.steps)):  # without the last steps
        if len(program.results) == 1 and elements[cut] != "f32":
            yield replace(program, steps=program.steps[:cut], results=(cut,))
    for index, step in enumerate(program.steps):
        for operand in step.operands:  # a step becomes its operand
            if isinstance(operand, int) and elements[operand] == step.element:
                yield _without(program, index, operand)
        numbers = {each for each in step.operands if isinstance(each, Constant)}
        for each in numbers:
            if len(each.numbers) > 1:
                uniform = replace(each, numbers=each.numbers[:1])
                operands = tuple(uniform if one == each else one for one in step.operands)
                changed = replace(step, operands=operands)
                steps = (*program.steps[:index], changed, *program.steps[index + 1 :])
                yield replace(program, steps=steps)


def _without(program: Program, index: int, operand: int) -> Program:
    """A program whose step `index` is replaced by one of its operands."""

    def moved(value: Operand) -> Operand:
        if not isinstance(value, int) or value <= index:
            return value
        return operand if value == index + 1 else value - 1

    steps = [
        replace(step, operands=tuple(moved(each) for each in step.operands))
        for n, step in enumerate(program.steps)
        if n != index
    ]
    results = tuple(int(moved(each)) for each in program.results)  # type: ignore[arg-type]
    return replace(program, steps=tuple(steps), results=results)


def _minimized(program: Program, kernels: str, reason: str) -> tuple[Program, str]:
    """A smaller program that fails in the same way, and its difference."""
    is_error, reductions = _is_error(reason), _reductions(program)
    for _ in range(_MAX_REDUCTIONS):
        candidate = next(reductions, None)
        if candidate is None:
            break
        difference = _compared({"main": candidate}, kernels).get("main")
        if difference and _is_error(difference) == is_error:
            program, reason, reductions = candidate, difference, _reductions(candidate)
    return program, reason


def _is_error(reason: str) -> bool:
    return "result" not in reason.partition(":")[2][:8]


def _save(failure: Failure, seed: int) -> Path:
    folder = FAILURES / f"{failure.kind}-{failure.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    replay = f"scripts/fuzz numbers --replay {failure.kind}:{failure.number} --seed {seed}"
    (folder / "wrong").write_text(f"{failure.reason}\n{replay}\n")
    if isinstance(failure.program, Program):
        (folder / "program.mlir").write_text(failure.program.text("main"))
        for n, array in enumerate(failure.program.arguments()):
            np.save(folder / f"argument_{n}.npy", array)
        for n, array in enumerate(failure.program.expected()):
            np.save(folder / f"expected_{n}.npy", array)
    return folder


def draw_program(seed: int, kind: str, number: int) -> Any:
    """Draw the program of a kind, a seed and a number."""
    return KINDS[kind](random.Random(f"{seed} {kind} {number}"))


def run(
    seed: int, kind: str, numbers: Sequence[int], instruction_sets: Sequence[str]
) -> list[Failure]:
    """Run programs of a kind, and return minimized failures.

    Args:
        numbers: the numbers of the programs.
        instruction_sets: one of them is drawn for all programs; they also run without kernels.
    """
    programs = {f"p{number}": draw_program(seed, kind, number) for number in numbers}
    if kind == "monotone":
        checked = ((number, programs[f"p{number}"]) for number in numbers)
        reasons = ((number, case, check_monotone(case)[0]) for number, case in checked)
        return [Failure(kind, number, reason, case) for number, case, reason in reasons if reason]
    failures = []
    rng = random.Random(f"{seed} {kind} {numbers[0]} kernels")
    for kernels in (rng.choice(instruction_sets), "none"):
        for name, reason in _compared(programs, kernels).items():
            smaller, reason = _minimized(programs[name], kernels, reason)
            failures.append(Failure(kind, int(name.removeprefix("p")), reason, smaller))
    return failures


def main() -> None:
    """Run programs, and print the failures."""
    parser = argparse.ArgumentParser(
        prog="fuzz numbers", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--count", type=int, default=200, help="number of programs of each kind")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers")
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help=f"kinds of programs, of {','.join(KINDS)}"
    )
    parser.add_argument(
        "--kernels", help="instruction set of the kernels  [default: one that the CPU has]"
    )
    parser.add_argument("--replay", metavar="KIND:NUMBER", help="run one program, and print it")
    options = parser.parse_args()
    kinds = options.replay.split(":")[:1] if options.replay else options.kinds.split(",")
    unknown = set(kinds) - KINDS.keys()
    if unknown:
        parser.error(
            f"no kinds are named {', '.join(unknown)}; expected some of {', '.join(KINDS)}"
        )
    numbers = range(options.first, options.first + options.count)
    if options.replay:
        number = int(options.replay.split(":")[1])
        numbers = range(number, number + 1)
        program = draw_program(options.seed, kinds[0], number)
        print(program.text("main") if isinstance(program, Program) else program)
    instruction_sets = [options.kernels] if options.kernels else instructions_here()
    started, wrong, count = time.monotonic(), Counter[str](), 0
    for kind in kinds:
        for first in range(0, len(numbers), _PROGRAMS_PER_MODULE):
            batch = numbers[first : first + _PROGRAMS_PER_MODULE]
            count += len(batch)
            for each in run(options.seed, kind, batch, instruction_sets):
                wrong[kind] += 1
                folder = _save(each, options.seed)
                print(f"{kind}:{each.number}: {each.reason[:600]}\n  {folder}", flush=True)
    by_kind = "".join(f", {kind}: {number}" for kind, number in wrong.most_common())
    print(
        f"{count:,} programs, {wrong.total():,} wrong{by_kind} (seed {options.seed}; "
        f"{time.monotonic() - started:.0f} s)"
    )
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
