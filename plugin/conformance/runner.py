"""Run cases on devices, in processes of their own, several cases in one module.

IREE's compiler takes most of the time and starts anew for each module, so cases are put together;
if such a module is refused, its halves are tried, down to the case that is to blame. A process
that ends, because MLIR's parser or a driver crashed, is an outcome of the case and not of the run.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import re
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..errors import SubquantError, UnsupportedError
from .batches import batches_of
from .cases import SYMBOL, Case, Outcome, Prepared, Status, compare, digest_of, prepare
from .oracle import ROUNDED, quantize_real, real_inputs
from .program import DTYPES, Array, Program, Quantized

if TYPE_CHECKING:  # imported when a process runs programs
    from ..compiler.options import CompileOptions
    from ..runtime.executable import Function

__all__ = ["DEVICES", "run_cases"]

DEVICES = ("llvm-cpu", "vulkan", "interpreter")
"""Where cases run: two targets of subquant, and StableHLO's reference interpreter, which runs the
float form of the suite's programs and so checks the oracle."""

BATCH_SECONDS = 900
"""After this long a process is ended, and its cases are tried one by one."""

Progress = Callable[[Outcome], None]


def run_cases(
    cases: Sequence[Case], device: str, jobs: int, progress: Progress | None = None
) -> list[Outcome]:
    """Run cases on a device.

    Args:
        cases: what to run.
        device: one of `DEVICES`, or an IREE device URI.
        jobs: how many processes to use.
        progress: called with each outcome, in the order in which they come.

    Returns:
        The outcomes, in the order of the cases. Cases that do not apply to the device have none.
    """
    outcomes: dict[str, Outcome] = {}
    for outcome in _Pool(device, max(jobs, 1)).run(batches_of(cases, device)):
        outcomes[outcome.name] = outcome
        if progress is not None:
            progress(outcome)
    return [outcomes[case.name] for case in cases if case.name in outcomes]


# -- processes ------------------------------------------------------------------------------------


@dataclass
class _Worker:
    process: multiprocessing.process.BaseProcess
    connection: Any
    log: IO[bytes]
    batch: tuple[Case, ...] = ()
    started: float = 0.0

    def close(self) -> None:
        """Close this side of what is shared with the process."""
        self.connection.close()
        self.log.close()


@dataclass
class _Pool:
    """Processes that take batches; one that ends is replaced, and its batch split."""

    device: str
    jobs: int
    workers: list[_Worker] = field(default_factory=list)

    def run(self, batches: Iterable[tuple[Case, ...]]) -> Iterable[Outcome]:
        waiting = deque(batches)
        count = min(self.jobs, len(waiting))
        try:
            self.workers = [self._start() for _ in range(count)]
            while waiting or any(worker.batch for worker in self.workers):
                for worker in self.workers:
                    if not worker.batch and waiting:
                        self._give(worker, waiting.popleft())
                for worker in self._ready():
                    yield from self._take(worker, waiting)
        finally:
            for worker in self.workers:
                worker.close()
                worker.process.terminate()
                worker.process.join()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")  # threads of drivers do not survive a fork
        ours, theirs = context.Pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - without a name, it ends with its users
        written = multiprocessing.connection.Connection(os.dup(log.fileno()), readable=False)
        process = context.Process(target=_work, args=(theirs, self.device, written), daemon=True)
        process.start()
        theirs.close()
        written.close()
        return _Worker(process, ours, log)

    def _give(self, worker: _Worker, batch: tuple[Case, ...]) -> None:
        worker.batch, worker.started = batch, time.monotonic()
        # The end of a process is noticed by `_take`.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.connection.send(batch)

    def _ready(self) -> list[_Worker]:
        busy = {worker.connection: worker for worker in self.workers if worker.batch}
        ready = multiprocessing.connection.wait(list(busy), timeout=1.0)
        late = [w for w in busy.values() if time.monotonic() - w.started > BATCH_SECONDS]
        for worker in late:
            worker.process.kill()
        return [busy[connection] for connection in ready]

    def _take(self, worker: _Worker, waiting: deque[tuple[Case, ...]]) -> Iterable[Outcome]:
        batch, worker.batch = worker.batch, ()
        try:
            outcomes: list[Outcome] = worker.connection.recv()
            return outcomes
        except (EOFError, ConnectionResetError):
            worker.process.join()
        status = worker.process.exitcode
        worker.log.seek(0)
        words = worker.log.read().decode(errors="replace").strip().splitlines()
        worker.close()
        fresh = self._start()
        worker.process, worker.connection, worker.log = fresh.process, fresh.connection, fresh.log
        if len(batch) > 1:
            waiting.extend((case,) for case in batch)
            return []
        case = batch[0]
        how = f"signal {-status}" if status and status < 0 else f"status {status}"
        message = f"the process ended ({how}): {words[0] if words else 'no message'}"
        return [Outcome(case.name, case.op, self.device, "crash", message=message)]


def _work(
    connection: multiprocessing.connection.Connection,
    device: str,
    log: multiprocessing.connection.Connection,
) -> None:
    """The loop of a process: batches in, outcomes out. What it prints is kept for a crash."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for standard in (1, 2):
        os.dup2(log.fileno(), standard)
    runner = _Runner(device)
    while True:
        try:
            batch = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        connection.send(runner.run_safely(batch))


def _end_with_parent() -> None:
    """End this process, which may be compiling, when the one that started it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


# -- one process ----------------------------------------------------------------------------------


class _Runner:
    def __init__(self, device: str) -> None:
        self.device = device
        self._options: CompileOptions | None = None

    def run_safely(self, batch: Sequence[Case]) -> list[Outcome]:
        """Run cases; an exception that is no error of subquant is a crash of the case it is in."""
        try:
            return self.run(batch)
        except Exception as error:
            if len(batch) > 1:
                return [outcome for case in batch for outcome in self.run_safely([case])]
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            message = f"{type(error).__name__} at {where}: {error}"
            return [Outcome(batch[0].name, batch[0].op, self.device, "crash", message=message)]

    def run(self, batch: Sequence[Case]) -> list[Outcome]:
        if self.device == "interpreter":
            return [self._timed(case, self._interpret) for case in batch]
        if batch[0].kind == "lower":
            return [self._timed(case, _lower) for case in batch]
        if batch[0].kind == "verdict":
            return [self._timed(case, _verdict) for case in batch]
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
        outcomes = []
        for number, (case, prepared) in enumerate(batch):
            outcomes.append(self._call(case, prepared, executable[f"case_{number}"]))
        share = (time.monotonic() - start) / len(batch)
        return [replace(outcome, seconds=share) for outcome in outcomes]

    def _compile(self, batch: list[tuple[Case, Prepared]]) -> bytes:
        from ..compiler.compilation import compile_to_bytes
        from ..compiler.options import CompileOptions
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
            others = [function.invoke(placed) for _ in range(2)]  # the first may write there
        except SubquantError as error:
            return _failure(case, self.device, error)
        for number, (one, *again) in enumerate(zip(first, *others, strict=True)):
            if any(other.tobytes() != one.tobytes() for other in again):
                message = f"result {number} of a further call is not that of the first"
                return Outcome(case.name, case.op, self.device, "wrong", message=message)
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


def _interpret_program(program: Program, inputs: list[Array]) -> list[Array]:
    """Run the float form on dequantized inputs, and quantize its results."""
    from .interpreter import interpret

    rounded = program.oracle in ROUNDED
    reals = interpret(program.float_text(), real_inputs(program, inputs, rounded))
    results = []
    for tensor, real in zip(program.results, reals, strict=True):
        if isinstance(tensor.element, Quantized):
            results.append(quantize_real(real, tensor.element).value)
        else:
            results.append(real.astype(DTYPES[tensor.element]))
    return results


def _judge(case: Case, device: str, results: list[Array], prepared: Prepared) -> Outcome:
    found = [compare(got, golden) for got, golden in zip(results, prepared.goldens, strict=True)]
    messages = [f"result {n}: {c.message}" for n, c in enumerate(found) if c.message]
    return Outcome(
        case.name,
        case.op,
        device,
        "wrong" if messages else "pass",
        sum(golden.value.size for golden in prepared.goldens),
        sum(comparison.near_ties for comparison in found),
        sum(comparison.other_reading for comparison in found),
        "; ".join(messages),
        digest=digest_of(results),
    )


def _failure(case: Case, device: str, error: SubquantError) -> Outcome:
    located = error.place is not None and error.place.line > 0
    status: Status = "error"
    if isinstance(error, UnsupportedError) and located:
        status = "unsupported"
    return Outcome(case.name, case.op, device, status, message=str(error).splitlines()[0])


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
        message = f"a quantized type is left: {left.group()[:120]}"
        return Outcome(case.name, case.op, device, "wrong", message=message)
    return Outcome(case.name, case.op, device, "legalized")


def _verdict(case: Case, device: str) -> Outcome:
    """Accept or refuse a text as its ``expected-error`` comments say."""
    from ..compiler.compilation import compile_to_bytes

    def outcome(status: Status, message: str = "") -> Outcome:
        return Outcome(case.name, case.op, device, status, message=message)

    try:
        compile_to_bytes(prepare(case).text, emit="mlir", reproducer=os.devnull)
    except SubquantError as error:
        first = str(error).splitlines()[0]
        line = error.place.line if error.place is not None else 0
        if not line:
            return outcome("error", f"refused without a place: {first}")
        if case.expected_errors is None:
            if isinstance(error, UnsupportedError):
                return outcome("refused", first)
            return outcome("wrong", f"refused as invalid, and it is valid: {first}")
        if line not in case.expected_errors:
            lines = ", ".join(map(str, case.expected_errors))
            return outcome("wrong", f"expected an error on line {lines}, got: {first}")
        return outcome("pass")
    if case.expected_errors is None:
        return outcome("pass")
    return outcome("wrong", "accepted, and an error is expected")
