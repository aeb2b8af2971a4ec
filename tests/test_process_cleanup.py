"""Ends of processes at any moment: no process and no file is left behind."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from processes import PROGRAM, descendants_of, is_alive, wait_until
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.core import files
from subquant.core.files import write_atomically
from subquant.errors import CompilerError, EnvironmentProblem
from subquant.isolation import client
from subquant.isolation.command import exit_on_signals, run_supervised

SUBQUANT = str(Path(sys.executable).with_name("subquant"))

SLOW_COMPILER = """#!/bin/sh
touch "$TMPDIR/own"
sleep 1000 &
echo $$ > {0}/pids
echo $! >> {0}/pids
wait
"""
COMPILE = """
import sys, subquant.compiler.iree_driver
subquant.compiler.iree_driver.session_command = lambda: [sys.argv[1]]
from subquant.cli import main
main(sys.argv[2:])
"""


@pytest.fixture
def folder(in_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with one for temporary files in it."""
    (in_temporary_folder / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(in_temporary_folder / "temporary"))
    monkeypatch.delenv("SUBQUANT_CACHE", raising=False)
    return in_temporary_folder


def slow_compilation(
    folder: Path, *, cache: bool = False
) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start a compilation; return its process, and those of IREE's compiler, when they run."""
    compiler = folder / "slow"
    compiler.write_text(SLOW_COMPILER.format(folder))
    compiler.chmod(0o755)
    (folder / "model.mlir").write_text(PROGRAM)
    command = [sys.executable, "-c", COMPILE, str(compiler), "compile", "model.mlir"]
    environment = {**os.environ, "SUBQUANT_CACHE": str(folder / "cache")} if cache else None
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    pids = folder / "pids"
    assert wait_until(lambda: pids.is_file() and pids.read_text().count("\n") == 2)
    return process, [int(line) for line in pids.read_text().split()]


FORK = """
import os, threading, time
from subquant.isolation.command import run_supervised
command = ["/bin/sh", "-c", "echo $$ > pids; exec sleep 1000"]
threading.Thread(target=run_supervised, args=(command, {}), daemon=True).start()
while not os.path.isfile("pids") or not open("pids").read():
    time.sleep(0.01)
forked = os.fork()
if forked:
    print(forked, flush=True)
time.sleep(1000)
"""


def test_a_command_ends_with_the_process_that_ran_it_after_a_fork(folder: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", FORK], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        forked = int(process.stdout.readline())
        (command,) = map(int, (folder / "pids").read_text().split())
        process.kill()
        process.wait()
        try:
            assert wait_until(lambda: not is_alive(command))
            assert is_alive(forked)
        finally:
            os.kill(forked, signal.SIGKILL)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGKILL"])
def test_a_signal_ends_the_compiler_and_removes_its_folder(name: str, folder: Path) -> None:
    process, pids = slow_compilation(folder)
    (folder_of_command,) = (folder / "temporary").iterdir()
    assert sorted(path.name for path in folder_of_command.iterdir()) == [
        ".stderr", "module.mlirbc", "own"
    ]  # fmt: skip
    process.send_signal(signal.Signals[name])
    _, errors = process.communicate(timeout=20)
    if name == "SIGINT":
        assert (process.returncode, errors.strip()) == (1, b"Aborted!")
    else:
        assert process.returncode == -signal.Signals[name]
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
    assert wait_until(lambda: not list((folder / "temporary").iterdir()))
    assert sorted(os.listdir()) == ["model.mlir", "pids", "slow", "temporary"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGKILL"])
@pytest.mark.share(4)
def test_a_signal_ends_conformance(name: str, folder: Path) -> None:
    command = [SUBQUANT, "conformance", "--device", "llvm-cpu", "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_until(lambda: any((folder / "temporary").glob("*/*")))
    group = [process.pid, *descendants_of(process.pid)]
    process.send_signal(signal.Signals[name])
    statuses = {"SIGINT": 1, "SIGKILL": -signal.SIGKILL}
    assert process.wait(20) == statuses.get(name, 128 + signal.Signals[name])
    assert wait_until(lambda: not any(is_alive(pid) for pid in group))
    assert wait_until(lambda: not list((folder / "temporary").iterdir()))


def test_a_cache_is_whole_after_a_kill(folder: Path) -> None:
    process, _ = slow_compilation(folder, cache=True)
    process.kill()
    process.communicate()
    expected = compile_to_bytes(Path("model.mlir"))
    steps: list[str] = []
    assert compile_to_bytes(Path("model.mlir"), cache="cache", progress=steps.append) == expected
    assert steps[-1] == "iree-compile"
    assert os.listdir("cache/writing") == []


def test_the_supervisor_is_terminated(folder: Path) -> None:
    process, pids = slow_compilation(folder)
    shown = subprocess.run(
        ["pgrep", "-P", str(process.pid), "-f", "slow"], capture_output=True, check=True
    )
    os.kill(int(shown.stdout), signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert errors == b"error: the supervisor of 'slow' was ended (status 1)\n"
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
    assert not list((folder / "temporary").iterdir())


def test_a_supervisor_removes_abandoned_folders(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes no target of a link, no locked folder, and no folder with another name."""
    process, pids = slow_compilation(folder)
    temporary = folder / "temporary"
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    (folder_of_command,) = temporary.iterdir()
    other = folder / "other"
    other.mkdir()
    (other / "kept").touch()
    (folder_of_command / "link").symlink_to(other)
    (temporary / f"subquant_{16 * '0'}").symlink_to(other)
    for name in (f"subquant_{15 * '1'}", "subquant_0123456789abcdeg", "another"):
        (temporary / name).mkdir()
    before = {path.name for path in temporary.iterdir()}
    run_supervised(["/bin/true"], {})
    assert {path.name for path in temporary.iterdir()} == before  # it is held
    for pid in [*descendants_of(process.pid), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
    run_supervised(["/bin/true"], {})
    assert {path.name for path in temporary.iterdir()} == before - {folder_of_command.name}
    assert os.listdir(other) == ["kept"]


def test_concurrent_folders(folder: Path) -> None:
    """A new folder is never removed, although other processes remove unlocked ones."""
    script = "\n".join([
        "import os, sys",
        "from subquant.isolation.supervisor import locked_folder",
        "for _ in range(200):",
        "    with locked_folder(sys.argv[1]) as made:",
        "        open(os.path.join(made, 'a'), 'x').close()",
        "        assert os.listdir(made) == ['a']",
    ])  # fmt: skip
    command = [sys.executable, "-c", script, str(folder / "temporary")]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert not list((folder / "temporary").iterdir())


def test_supervised_commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "cat; echo out; echo err >&2; cp $1 $2; exit 3"
    command = ["/bin/sh", "-c", script, "sh", {"file": "a"}, {"file": "b"}]
    result = run_supervised(command, {"a": b"text"}, output="b")
    assert (result.status, result.stderr, result.output) == (3, b"err\n", b"text")
    assert run_supervised(["/bin/sh", "-c", "kill -SEGV $$"], {}).status == -signal.SIGSEGV
    # A command that closes all inherited files and goes on.
    script = "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; sleep 0.2; echo done >&2"
    assert run_supervised(["/bin/bash", "-c", script], {}).stderr == b"done\n"
    with pytest.raises(EnvironmentProblem, match="'no' cannot be run: No such file"):
        run_supervised(["/no"], {})
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen.__init__", no_process)
        with pytest.raises(EnvironmentProblem, match="'true' cannot be started: Too many open"):
            run_supervised(["/bin/true"], {})
    monkeypatch.setattr("tempfile.tempdir", "/proc/none")
    with pytest.raises(EnvironmentProblem, match="'true' cannot be run: No such file or"):
        run_supervised(["/bin/true"], {})
    assert not list((folder / "temporary").iterdir())


def no_process(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_no_temporary_folder_for_a_child(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/none")
    with pytest.raises(EnvironmentProblem, match="a child process cannot be started: No such file"):
        client._Child("os")


def test_a_compiler_that_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, error, message in (
        ("/no/iree-compile", EnvironmentProblem, "'iree-compile' cannot be run: No such file"),
        ("/bin/false", CompilerError, "failed with status 1"),
    ):
        command = [path]
        monkeypatch.setattr("subquant.compiler.iree_driver.session_command", lambda c=command: c)
        with pytest.raises(error, match=message):
            compile_to_bytes(PROGRAM)


# -- threads and forks -----------------------------------------------------------------------------

DAEMONS = """
import sys, threading, time
import numpy as np
import subquant
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
program = sys.argv[2]
executable = subquant.compile(program)
x = np.ones(4, np.float32)
def run():
    bound = executable.main.bind(x)
    while True:
        if sys.argv[1] == "run":
            executable.main(x), bound()
        else:
            compile_to_bytes(program.replace("main", f"f{time.time_ns()}"), emit=sys.argv[1])
for _ in range(3):
    threading.Thread(target=run, daemon=True).start()
time.sleep(0.3)
"""


@pytest.mark.parametrize("what", ["run", "mlirbc", "vmfb"])
def test_python_ends_while_daemon_threads_work(what: str, folder: Path, cpu: object) -> None:
    command = [sys.executable, "-c", DAEMONS, what, PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "terminate" not in done.stderr
    assert wait_until(lambda: not list((folder / "temporary").iterdir()))
    assert os.listdir() == ["temporary"]


FORKS = """
import multiprocessing, os, sys
import numpy as np
import subquant
program, device = sys.argv[1:]
def load():
    return subquant.compile(program, target=device)
def call(executable):
    return executable.main(np.ones(4, np.float32)).tolist()
executable = load()
first = call(executable)
def forked(queue):
    try:
        call(executable)
    except subquant.SubquantError as error:
        queue.put(str(error))
    queue.put(call(load()))
    queue.put(call(subquant.load("model.vmfb", executable.device)))
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=forked, args=(queue,))
process.start()
print(queue.get())
assert queue.get() == queue.get() == first == call(executable)
process.join()
assert process.exitcode == 0
pid = os.fork()
if not pid:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


@pytest.mark.long
@pytest.mark.parametrize("device", ["llvm-cpu", "vulkan"])
@pytest.mark.share(2)
def test_a_forked_process(device: str, folder: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("cpu" if device == "llvm-cpu" else "vulkan")
    options = CompileOptions("vulkan") if device == "vulkan" else CompileOptions()
    Path("model.vmfb").write_bytes(compile_to_bytes(PROGRAM, options))
    command = [sys.executable, "-c", FORKS, PROGRAM, device]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert re.fullmatch(
        r"error: this was loaded in process \d+, of which this process was forked without the "
        r"threads that run it; load it again here, or start processes by multiprocessing's method "
        r"'spawn'\n",
        done.stdout,
    )


# -- files ----------------------------------------------------------------------------------------

WRITE = """
import sys
from subquant.core.files import open_atomically
with open_atomically("out") as file:
    file.write(b"half")
    file.flush()
    print(flush=True)
    input()
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name are Linux's")
def test_a_file_that_is_half_written_has_no_name(folder: Path) -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", WRITE], stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    process.stdout.readline()
    assert os.listdir() == ["temporary"]
    process.kill()
    process.communicate()
    assert os.listdir() == ["temporary"]


@pytest.mark.parametrize("unnamed", [True, False])
def test_files_are_whole(unnamed: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not unnamed:
        monkeypatch.setattr(files, "_DESCRIPTORS_FOLDER", "/no")
    Path("out").write_text("before")
    write_atomically("out", b"after")
    assert Path("out").read_bytes() == b"after"
    os.umask(mask := os.umask(0))
    assert Path("out").stat().st_mode & 0o777 == 0o666 & ~mask
    with pytest.raises(IsADirectoryError):
        write_atomically("temporary", b"after")
    with pytest.raises(FileNotFoundError):
        write_atomically("no/out", b"after")
    with pytest.raises(KeyError), files.open_atomically("out"):
        raise KeyError
    assert sorted(os.listdir()) == ["out", "temporary"]
    assert Path("out").read_bytes() == b"after"


def test_ignored_signals_stay_ignored() -> None:
    """``nohup`` ignores SIGHUP for its command."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with exit_on_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            with pytest.raises(SystemExit, match="143"):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
