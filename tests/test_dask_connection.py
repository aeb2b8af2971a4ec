"""Connections to a Dask scheduler: addresses, silent hosts, and a missing package."""

from __future__ import annotations

import socket
import sys

import pytest

from subquant.batch.engines import dask_connection, run_tasks
from subquant.errors import EnvironmentProblem, UsageError


@pytest.mark.parametrize(
    "address", ["", "here", "host:", "host:x", "ftp://host:1", "a b:1", "::1:8"]
)
def test_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="is no address of a Dask scheduler; expected HOST:PORT"):
        list(run_tasks([], cluster=address))


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_connection, "_CONNECT_SECONDS", 0.5)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{other.getsockname()[1]}"
        for _ in range(2):
            with pytest.raises(
                EnvironmentProblem, match=f"no Dask scheduler answers at '{address}'"
            ):
                list(run_tasks([], cluster=address))
            other.listen()  # but it says nothing


def test_dask_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "subquant.batch.engines.dask_cluster")
    monkeypatch.delattr("subquant.batch.engines.dask_cluster")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(EnvironmentProblem, match=r"run: pip install 'subquant\[cluster\]'"):
        list(run_tasks([], cluster="host:8786"))
