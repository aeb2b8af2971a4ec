"""Other processes of tests: scripts, child processes that live, and waits for them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from subquant.compiler import mlir_client

PROGRAM = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }\n"
SPARSE = "#C = #sparse_tensor.encoding<{}>\nfunc.func private @f(tensor<4x4xf32, #C>)\n"


def opt(text: str, passes: str | None = None, **options: object) -> str:
    result = mlir_client.optimize(text.encode(), "x.mlir", passes, **options)  # type: ignore[arg-type]
    assert result.text is not None
    return result.text


def run_python(script: str, *arguments: object, **options: Any) -> str:
    """Run a script in another process, which must succeed, and return its output."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], object], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def children_of(pid: int) -> list[int]:
    shown = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in shown.stdout.split()]


def descendants_of(pid: int) -> list[int]:
    children = children_of(pid)
    return children + [each for child in children for each in descendants_of(child)]
