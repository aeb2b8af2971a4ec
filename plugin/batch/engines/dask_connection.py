"""Connection to a Dask scheduler."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import TypeVar

import dask
from distributed import Client

from ...errors import EnvironmentProblem, UsageError, quoted

_CONNECT_SECONDS = 10.0
"""Time limit of the connection to the scheduler."""

_ADDRESS = re.compile(r"((tcp|tls|wss?)://)?([^\s/@\[\]:]+|\[[0-9a-fA-F:.%]+\]):[0-9]{1,5}")

_T = TypeVar("_T")


@contextlib.contextmanager
def connected(address: str) -> Iterator[Client]:
    """Connect to a scheduler; UsageError for no address, EnvironmentProblem if none answers."""
    if not _ADDRESS.fullmatch(address):
        raise UsageError(
            f"{quoted(address)} is no address of a Dask scheduler; expected HOST:PORT, as "
            "'dask scheduler' shows it, such as tcp://10.0.0.1:8786"
        )

    def connect() -> Client:
        return Client(address, timeout=_CONNECT_SECONDS, set_as_default=False, name="subquant")

    try:
        client = call_within(_CONNECT_SECONDS + 1, connect)
    except (OSError, ValueError, TimeoutError) as error:
        raise EnvironmentProblem(
            f"no Dask scheduler answers at {quoted(address)} in {_CONNECT_SECONDS:.0f} s "
            f"({type(error).__name__}); start one with 'dask scheduler', see "
            "docs/guide/cluster.md"
        ) from None
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):  # the scheduler may have ended
            client.close(timeout=5)


def call_within(seconds: float, function: Callable[[], _T]) -> _T:
    """Call a function in a daemon thread, abandoned with a TimeoutError after a time limit."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([future], seconds).done:
        raise TimeoutError
    return future.result()


@contextlib.contextmanager
def without_dask_logs() -> Iterator[None]:
    """Silence the logs and warnings of Dask's client; errors are raised."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client", "tornado")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
