"""The engine of one machine: threads, each of which waits for child processes."""

from __future__ import annotations

import queue
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from ...isolation.cancellation import CancellableWork
from ...isolation.client import extra_children
from .tasks import LARGEST_WINDOW, Answer, Done, OnStep, Task, cores_of_each, done_from, perform


def run_locally(
    tasks: Iterator[Task], jobs: int, on_step: OnStep | None, bugs: list[str]
) -> Generator[Done, None, None]:
    """Run tasks in threads of this process, as `dispatch.run_tasks`; collect tracebacks in `bugs`.

    Up to `jobs` tasks are prefetched, unless they are large.
    """
    events: queue.SimpleQueue[Future[Answer] | tuple[Task, str]] = queue.SimpleQueue()
    running: dict[Future[Answer], tuple[Task, CancellableWork]] = {}

    def is_window_open() -> bool:
        if len(running) < jobs:
            return True
        size = sum(len(blob) for task, _ in running.values() for blob in task.blobs)
        return len(running) < 2 * jobs and size < LARGEST_WINDOW

    def fill() -> None:
        while is_window_open() and (task := next(tasks, None)) is not None:
            start(task)

    def start(task: Task) -> None:
        def steps(step: str, detail: str = "") -> None:
            if on_step is not None:
                events.put((task, step))

        def do(work: CancellableWork) -> Answer:
            work.cores = cores_of_each(min(jobs, len(running)))
            return perform(task, steps, work)

        work = CancellableWork()
        future = executor.submit(do, work)
        running[future] = task, work
        future.add_done_callback(events.put)

    with extra_children(jobs), ThreadPoolExecutor(jobs, "subquant") as executor:
        try:
            fill()
            while running:
                event = events.get()
                if isinstance(event, tuple):
                    if on_step is not None:
                        on_step(*event)
                    continue
                task, _ = running.pop(event)
                answer = event.result()
                fill()
                if answer.bug:
                    bugs.append(f"in the task '{task.name}':\n{answer.bug}")
                else:
                    yield done_from(task, answer)
        finally:  # also at Ctrl-C, and if the generator is closed
            executor.shutdown(wait=False, cancel_futures=True)
            for _, work in running.values():
                work.cancel()
