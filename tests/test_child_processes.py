"""Life of child processes: they end with their parent, are reused, and are replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from processes import PROGRAM, SPARSE, children_of, is_alive, opt, wait_until
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.isolation import client
from subquant.isolation.client import call


@pytest.fixture(autouse=True)
def here(in_temporary_folder: Path) -> Path:
    """Reproducers go to the current folder."""
    return in_temporary_folder


LOOPS = """
import sys, threading
from subquant.compiler import mlir_client as client
chain = "affine_map<(d0, d1) -> (" + " + ".join(["d0", "d1"] * 100_000) + ")>"
text = f'"t.x"() {{a = {chain}}} : () -> ()'
def run():
    client.optimize(text.encode(), "x.mlir", None, progress=lambda step: print(step, flush=True))
thread = threading.Thread(target=run, daemon=True)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="SIGIO at a pipe's end is Linux's")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_busy_child_dies_with_its_parent(number: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", LOOPS], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"parse\n"
    (child,) = children_of(parent.pid)
    parent.send_signal(number)
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not is_alive(child))


WAITS = """
import os, time
def wait(arguments, blobs, steps):
    steps("wait")
    while not os.path.exists(arguments["file"]):
        time.sleep(0.01)
    return "waited", []
"""


def test_data_for_a_busy_child_does_not_end_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux may signal a reader of the data later, at any time: this must not end the child."""
    (here / "waiting.py").write_text(WAITS)
    monkeypatch.syspath_prepend(here)
    client.close_idle_children()
    children = []

    def write(step: str) -> None:
        (child,) = client._CHILDREN
        children.append(child)
        child._process.stdin.write(b"?")
        time.sleep(0.05)
        (here / "go on").touch()

    try:
        assert call("waiting:wait", {"file": str(here / "go on")}, steps=write)[0] == "waited"
    finally:
        for child in children:
            child.close(kill=True)
        client._POOL.idle[:] = [each for each in client._POOL.idle if each not in children]


def test_an_idle_child_dies_with_its_parent() -> None:
    code = "from subquant.isolation import client as c; c.start_child(); print(flush=True); input()"
    pipe = subprocess.PIPE
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stdin=pipe)
    assert parent.stdout is not None
    parent.stdout.readline()
    (child,) = children_of(parent.pid)
    parent.kill()
    parent.communicate()
    assert wait_until(lambda: not is_alive(child))


GROW = """
def grow(arguments, blobs, steps):
    kept.append(bytearray(b"x") * arguments["size"])
    return None, []
kept = []
"""


def test_a_large_child_ends_after_its_call(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of its parent does not count."""
    (here / "growing.py").write_text(GROW)
    monkeypatch.syspath_prepend(here)
    _ = bytearray(b"x") * (1 << 30)
    pids = []
    while client._POOL.idle:  # a new child has this process's list of folders
        client._POOL.idle.pop().close()
    for size in (1, 1, 1 << 30, 1):
        call("growing:grow", {"size": size})
        pids.append([child._process.pid for child in client._POOL.idle])
    assert pids[0] == pids[1] != []
    assert pids[2] == []
    assert len(pids[3]) == 1


def test_a_child_is_reused_and_a_killed_one_replaced() -> None:
    opt(PROGRAM)
    first = client._POOL.idle[-1]._process
    opt(PROGRAM)
    assert client._POOL.idle[-1]._process is first
    first.kill()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    assert opt(PROGRAM)


def test_threads_do_not_mix() -> None:
    wrong: list[str] = []

    def run(number: int) -> None:
        for _ in range(5):
            text = opt(PROGRAM.replace("@main", f"@f{number}"))
            if f"@f{number}(" not in text:
                wrong.append(text)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(client._POOL.idle) <= client.MAX_CHILDREN


def test_a_forked_process_has_a_child_of_its_own() -> None:
    code = f"""
import os
from subquant.compiler import mlir_client as client
def opt(): return client.optimize({PROGRAM!r}.encode(), "x", None).text
first = opt()
pid = os.fork()
assert opt() == first
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert opt() == first
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("variable", ["PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE"])
def test_the_environment_changes_nothing(variable: str, here: Path) -> None:
    for name in ("json", "signal", "subquant", "torch_mlir"):
        (here / f"{name}.py").write_text("raise SystemExit('the current folder is imported')")
    (here / "model.mlir").write_text(SPARSE)
    command = [Path(sys.executable).with_name("subquant"), "opt", "model.mlir"]
    run = subprocess.run(
        command, env={**os.environ, variable: "1"}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "crashed while it parsed the module (SIGSEGV)" in run.stderr
    assert run.stderr.count("\n") == 1


def test_options_come_through() -> None:
    options = CompileOptions(requantization="fixed-point", iree_flags=("--x",))
    assert compile_to_bytes(PROGRAM, options, emit="mlir").startswith(b"module")
