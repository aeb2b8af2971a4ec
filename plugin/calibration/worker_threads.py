"""Threads that calibrate: a pool, whose threads compute NumPy's products each on its own.

NumPy releases the interpreter's lock in products and in functions of whole arrays. OpenBLAS splits
each product among threads of its own, which wait for each other by spinning: two of them beside two
threads of the pool take longer than one thread alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..errors import UsageError
from ..isolation.limits import available_cores

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_PREFIXES = ("scipy_openblas", "openblas")
_SUFFIXES = ("64_", "_64", "")
"""Parts of the names of OpenBLAS's functions in NumPy's wheels and in packages of systems."""


class WorkerThreads:
    """Pool of threads; a context manager, in which products use one thread each.

    Args:
        count: threads, by default one for each core that the process may use.

    Raises:
        UsageError: the count is less than 1.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = available_cores() if count is None else count
        if self.count < 1:
            raise UsageError(f"the number of threads must be 1 or more, got {self.count}")

    def __enter__(self) -> WorkerThreads:
        self._exits = contextlib.ExitStack()
        self._exits.enter_context(_one_thread_for_products())
        self._pool = ThreadPoolExecutor(self.count)
        self._exits.callback(self._pool.shutdown, cancel_futures=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def map(self, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """Return the results of a function for all items, in their order."""
        return list(self._pool.map(function, items))


@contextlib.contextmanager
def _one_thread_for_products() -> Iterator[None]:
    """Let OpenBLAS use one thread for each product in the block; other libraries keep theirs."""
    libraries = [ctypes.CDLL(path) for path in _loaded_libraries("openblas")]
    functions = [
        (getattr(library, f"{prefix}_get{name}"), getattr(library, f"{prefix}_set{name}"))
        for library in libraries
        for prefix in _PREFIXES
        for name in (f"_num_threads{suffix}" for suffix in _SUFFIXES)
        if hasattr(library, f"{prefix}_set{name}")
    ]
    counts = [count() for count, _ in functions]
    for _, set_count in functions:
        set_count(1)
    try:
        yield
    finally:
        for (_, set_count), count in zip(functions, counts, strict=True):
            set_count(count)


def _loaded_libraries(part_of_name: str) -> set[str]:
    """Return the paths of this process's shared libraries with a part of a name; Linux only."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in file}
    except OSError:
        return set()
    return {path for path in paths if part_of_name in path and os.path.isfile(path)}
