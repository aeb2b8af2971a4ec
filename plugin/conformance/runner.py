"""Runner of cases on devices, in child processes, several cases in one module.

IREE's compiler takes most of the time and starts anew for each module, so cases are put together;
if a batch is refused, its halves are tried, down to the failing case. A process that ends because
MLIR's parser or a driver crashed is an outcome of its case, not of the run.
A batch is a task of `subquant.batch.engines`, so that it may run on another machine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import re
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..batch.engines import Task, needs_of, run_tasks
from ..errors import SubquantError, UnsupportedError
from ..isolation.child import ReportStep
from ..isolation.client import ChildEnded, call
from ..isolation.limits import set_wall_time_limit
from .cases import SYMBOL, Case, Outcome, Prepared, Status, compare, digest_of, prepare
from .oracle import ROUNDED, Rounded, quantize_real, real_inputs
from .program import DTYPES, Array, Program, Quantized
from .shards import batches_of

if TYPE_CHECKING:  # imported when a process runs programs
    from ..compiler.compile_options import CompileOptions
    from ..runtime.function import Function

DEVICES = ("llvm-cpu", "vulkan", "interpreter")
"""Devices: two targets of subquant, and StableHLO's reference interpreter, which runs the float
form of the suite's programs and so checks the oracle."""

BATCH_SECONDS = 900
"""The wall time in seconds after which a process is ended; its cases are tried one by one."""

Progress = Callable[[Outcome], None]


def run_cases(
    cases: Sequence[Case],
    device: str,
    jobs: int | None,
    progress: Progress | None = None,
    *,
    cluster: str | None = None,
    machines: set[str] | None = None,
) -> list[Outcome]:
    """Run cases on a device; EnvironmentProblem if no process starts, or the cluster is unusable.

    Args:
        device: one of `DEVICES`, or an IREE device URI.
        jobs, cluster: as for `subquant.batch.engines.run_tasks`.
        progress: called with each outcome, in the order of completion.
        machines: a set to which the processors are added.

    Returns:
        The outcomes, in the order of the cases. Cases that do not apply to the device have none.
    """
    outcomes: dict[str, Outcome] = {}
    batches = {f"{n}: {batch[0].name}": batch for n, batch in enumerate(batches_of(cases, device))}
    needs = needs_of(device)
    tasks = (
        Task(name, f"{__name__}:{run_batch.__name__}", {"device": device}, [pickle.dumps(b)], needs)
        for name, b in batches.items()
    )
    with contextlib.closing(run_tasks(tasks, jobs=jobs, cluster=cluster)) as run:
        for done in run:
            batch = batches[done.task.name]
            if done.error is None:
                results = [Outcome(**fields) for fields in done.value["outcomes"]]
                if machines is not None:
                    machines.add(done.value["machine"])
            elif done.worker:  # the worker ended, several times
                results = [each.outcome(device, "crash", done.error.message) for each in batch]
            else:
                raise done.error
            for outcome in results:
                outcomes[outcome.name] = outcome
                if progress is not None:
                    progress(outcome)
    return [outcomes[case.name] for case in cases if case.name in outcomes]


# -- a task ---------------------------------------------------------------------------------------


def run_batch(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Run a batch in a child process: a function of a `subquant.batch.engines.Task`.

    If the process ends, the cases run one by one.

    Args:
        arguments: the ``device``.
        blobs: the cases, pickled; results are not pickled.

    Returns:
        The ``outcomes``, and the ``machine`` that computed them.
    """
    batch: Sequence[Case] = pickle.loads(blobs[0])
    try:
        outcomes, _ = call(_IN_CHILD, arguments, blobs, is_quiet=True)
    except ChildEnded as ended:
        if len(batch) > 1:
            outcomes = []
            for case in batch:
                one, _ = run_batch(arguments, [pickle.dumps((case,))], steps)
                outcomes += one["outcomes"]
        else:
            words = ended.output_tail.strip().splitlines()
            how = f"no more {ended.exhausted}" if ended.exhausted else ended.cause
            message = f"the process ended ({how}): {words[0] if words else 'no message'}"
            outcomes = [asdict(batch[0].outcome(arguments["device"], "crash", message))]
    return {"outcomes": outcomes, "machine": machine()}, []


def batch_in_child(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Run a batch: the part of `run_batch` in the child process."""
    set_wall_time_limit(BATCH_SECONDS)
    outcomes = _runner(arguments["device"]).run_safely(pickle.loads(blobs[0]))
    return [asdict(outcome) for outcome in outcomes], []


_IN_CHILD = f"{__name__}:{batch_in_child.__name__}"


@functools.cache
def machine() -> str:
    """Return this machine's processor, which decides what bits floats have."""
    from ..runtime.machine import describe_machine

    properties = describe_machine()
    cpu = properties["CPU"]
    return f"{cpu} ({properties['features']})" if "features" in properties else cpu


# -- one process ----------------------------------------------------------------------------------


class _Runner:
    def __init__(self, device: str) -> None:
        self.device = device
        self._options: CompileOptions | None = None

    def run_safely(self, batch: Sequence[Case]) -> list[Outcome]:
        """Run cases; an exception other than `SubquantError` is a crash of its case."""
        try:
            return self.run(batch)
        except Exception as error:
            if len(batch) > 1:
                return [outcome for case in batch for outcome in self.run_safely([case])]
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}:{frame.lineno}"
            message = f"{type(error).__name__} at {where}: {error}"
            return [batch[0].outcome(self.device, "crash", message)]

    def run(self, batch: Sequence[Case]) -> list[Outcome]:
        checks = {"lower": _lower, "verdict": _verdict}
        check = self._interpret if self.device == "interpreter" else checks.get(batch[0].kind)
        if check is not None:
            return [self._timed(case, check) for case in batch]
        return self._run([(case, prepare(case)) for case in batch])

    def _timed(self, case: Case, check: Callable[[Case, str], Outcome]) -> Outcome:
        start = time.monotonic()
        outcome = check(case, self.device)
        return replace(outcome, seconds=time.monotonic() - start)

    def _run(self, batch: list[tuple[Case, Prepared]]) -> list[Outcome]:
        from ..runtime import Device, Executable

        start = time.monotonic()
        try:
            data = self._compile(batch)
            executable = Executable(data, Device(self.device))
        except SubquantError as error:
            if len(batch) == 1:
                return [_failure(batch[0][0], self.device, error)]
            middle = len(batch) // 2
            return [*self._run(batch[:middle]), *self._run(batch[middle:])]
        outcomes = [
            self._call(case, prepared, executable[f"case_{number}"])
            for number, (case, prepared) in enumerate(batch)
        ]
        share = (time.monotonic() - start) / len(batch)
        return [replace(outcome, seconds=share) for outcome in outcomes]

    def _compile(self, batch: list[tuple[Case, Prepared]]) -> bytes:
        from ..compiler.compilation import compile_to_bytes
        from ..compiler.compile_options import CompileOptions
        from ..runtime import Device

        if self._options is None:
            device = Device(self.device)
            self._options = CompileOptions()
            if device.is_vulkan:
                self._options = CompileOptions("vulkan", vulkan_target=device.vulkan_target)
        texts = [p.text.replace(SYMBOL, f"case_{n}") for n, (_, p) in enumerate(batch)]
        return compile_to_bytes("\n".join(texts), self._options, reproducer=os.devnull)

    def _call(self, case: Case, prepared: Prepared, function: Function) -> Outcome:
        try:
            first = function.invoke(prepared.inputs)
            placed = [function.put(number, array) for number, array in enumerate(prepared.inputs)]
            repeated = [function.invoke(placed) for _ in range(2)]  # the first call may overwrite
        except SubquantError as error:
            return _failure(case, self.device, error)
        for number, (one, *further) in enumerate(zip(first, *repeated, strict=True)):
            if any(result.tobytes() != one.tobytes() for result in further):
                message = f"result {number} of a repeated call differs from the first call's"
                return case.outcome(self.device, "wrong", message)
        return _judge(case, self.device, first, prepared)

    def _interpret(self, case: Case, device: str) -> Outcome:
        from .interpreter import interpret

        prepared = prepare(case)
        try:
            if case.program is None:
                results = interpret(prepared.text.replace(SYMBOL, "main"), prepared.inputs)
            else:
                results = _interpret_program(case.program, prepared.inputs)
        except SubquantError as error:
            return _failure(case, device, error)
        return _judge(case, device, results, prepared)


_runner = functools.cache(_Runner)


def _interpret_program(program: Program, inputs: list[Array]) -> list[Array]:
    """Run the float form on dequantized inputs, and quantize its results."""
    from .interpreter import interpret

    rounded: Rounded = "all" if program.oracle in ROUNDED else "nothing"
    reals = interpret(program.text(as_float=True), real_inputs(program, inputs, rounded))
    results = []
    for tensor, real in zip(program.results, reals, strict=True):
        if isinstance(tensor.element, Quantized):
            results.append(quantize_real(real, tensor.element).value)
        else:
            results.append(real.astype(DTYPES[tensor.element]))
    return results


def _judge(case: Case, device: str, results: list[Array], prepared: Prepared) -> Outcome:
    comparisons = [
        compare(got, golden) for got, golden in zip(results, prepared.goldens, strict=True)
    ]
    messages = [f"result {n}: {c.message}" for n, c in enumerate(comparisons) if c.message]
    return Outcome(
        case.name,
        case.op,
        device,
        "wrong" if messages else "pass",
        sum(golden.value.size for golden in prepared.goldens),
        sum(comparison.near_ties for comparison in comparisons),
        sum(comparison.other_reading for comparison in comparisons),
        "; ".join(messages),
        digest=digest_of(results),
    )


def _failure(case: Case, device: str, error: SubquantError) -> Outcome:
    is_located = error.place is not None and error.place.line > 0
    is_unsupported = isinstance(error, UnsupportedError) and is_located
    status: Status = "unsupported" if is_unsupported else "error"
    return case.outcome(device, status, str(error).splitlines()[0])


def _lower(case: Case, device: str) -> Outcome:
    """Lower a case up to the hand-off; nothing quantized may be left."""
    from ..compiler.compilation import compile_to_bytes

    text = prepare(case).text.replace(SYMBOL, "main")
    try:
        lowered = compile_to_bytes(text, emit="mlir", reproducer=os.devnull).decode()
    except SubquantError as error:
        return _failure(case, device, error)
    left = re.search(r"!quant[.<][^\n]*", re.sub(r"subquant\.function_type = [^\n]*", "", lowered))
    if left is not None:
        return case.outcome(device, "wrong", f"a quantized type is left: {left.group()[:120]}")
    return case.outcome(device, "legalized", "")


def _verdict(case: Case, device: str) -> Outcome:
    """Accept or refuse a text as its ``expected-error`` comments say."""
    from ..compiler.compilation import compile_to_bytes

    try:
        compile_to_bytes(prepare(case).text, emit="mlir", reproducer=os.devnull)
    except SubquantError as error:
        first = str(error).splitlines()[0]
        line = error.place.line if error.place is not None else 0
        if not line:
            return case.outcome(device, "error", f"refused without a place: {first}")
        if case.expected_errors is None:
            if isinstance(error, UnsupportedError):
                return case.outcome(device, "refused", first)
            message = f"refused as invalid, and it is valid: {first}"
            return case.outcome(device, "wrong", message)
        if line not in case.expected_errors:
            numbers = ", ".join(map(str, case.expected_errors))
            message = f"expected an error on line {numbers}, got: {first}"
            return case.outcome(device, "wrong", message)
        return case.outcome(device, "pass", "")
    if case.expected_errors is None:
        return case.outcome(device, "pass", "")
    return case.outcome(device, "wrong", "accepted, and an error is expected")
