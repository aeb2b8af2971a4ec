"""Processes that share a cache: locks, waits, and writers that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from programs import LONG
from subquant.compiler import store as store_module
from subquant.compiler.store import Store
from test_cache_store import age, names, total

HOLD = """
import os, sys
from subquant.compiler.store import Store
with Store(sys.argv[1]).reserved("key", lambda: None):
    os._exit(0)
"""


def test_a_process_that_dies_frees_its_key(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], check=True)
    assert names(tmp_path, "writing") == ["key.lock"]
    waits: list[str] = []
    with Store(tmp_path).reserved("key", lambda: waits.append("waited")):
        assert names(tmp_path, "writing") == ["key.lock"]
    assert names(tmp_path, "writing") == []
    assert not waits


def test_waits_for_a_lock_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may keep the lock of a lost machine."""
    monkeypatch.setattr(store_module, "_MAX_WAIT_SECONDS", 0.05)
    waits: list[str] = []
    store = Store(tmp_path)
    with store.reserved("key", lambda: None):
        with store.reserved("key", lambda: waits.append("waited")):
            assert waits == ["waited"]
        assert names(tmp_path, "writing") == ["key.lock"]  # of the other


def test_no_process_waits_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def fail(handle: int, operation: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    store, waits = Store(tmp_path), []
    for _ in range(2):
        with store.reserved("key", lambda: waits.append("waited")), store.reserved("key", list):
            digest = store.keep(b"1")
    pinned = store.pin(digest)
    assert pinned is not None
    assert not waits
    assert names(tmp_path, "writing") == []
    pinned.close()


WORK = """
import contextlib, json, os, random, signal, sys, time
from subquant.compiler.store import Store

folder, seconds = sys.argv[1], float(sys.argv[2])
until = time.time() + seconds

def content(key, part):
    size = [200, 5000, 20_000, 100_000][int(key[:2], 16) % 4]
    return (f"{key} {part} ".encode() * (size // 60 + 1))[:size]

def work(seed):
    draw = random.Random(seed)
    bad, done = [], {"hits": 0, "misses": 0, "removed": 0}
    store = Store(folder, limit=4 << 20, on_damage=bad.append)
    path = os.path.join(folder, f"report.{seed}")
    report = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while time.time() < until:
        number = draw.randrange(12)
        if draw.random() < 0.5:  # else one of all processes
            number += 1000 * (seed % 8 + 1)
        key = f"{(number + 1) * 0x9E3779B97F4A7C15 % 2**64:016x}" * 4
        before, data, held = len(bad), None, None
        found = store.read(key)
        if found is not None:
            data, held = store.blob(found.blobs["executable"]), store.pin(found.blobs["archive"])
        if data is not None and held is not None:
            with contextlib.closing(held):
                if data != content(key, "e") or held.path.read_bytes() != content(key, "a"):
                    bad.append(f"wrong contents of {key}")
            if found.fields != {"key": key}:
                bad.append(f"wrong record {key}")
            store.use(key, found)
            done["hits"] += 1
        else:
            done["misses"] += 1
            with store.reserved(key, list) if draw.random() < 0.5 else open(os.devnull):
                blobs = {"executable": store.keep(content(key, "e"))}
                with store.temporary() as part:
                    part.write_bytes(content(key, "a"))
                    blobs["archive"] = store.keep_file(part, move=draw.random() < 0.5)
                store.write(key, {"key": key}, blobs)
                store.evict(2 * len(content(key, "a")), {key, *blobs.values()})
        if draw.random() < 0.01:
            done["removed"] += store.prune(2 << 20)[0]
        os.write(report, (json.dumps({"bad": bad[before:], **done}) + "\\n").encode())

def start(seed):
    pid = os.fork()
    if pid == 0:
        try:
            work(seed)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid

draw, killed = random.Random(3), 0
running = [start(seed) for seed in range(8)]
while time.time() < until - 0.5:
    time.sleep(draw.uniform(0.02, 0.2))
    number = draw.randrange(8)
    os.kill(running[number], signal.SIGKILL)
    assert os.waitpid(running[number], 0)[1] == signal.SIGKILL
    killed += 1
    running[number] = start(8 * killed + number)
assert [os.waitpid(pid, 0)[1] for pid in running] == [0] * 8
print(killed)
"""


@pytest.mark.skipif(not LONG, reason="3 s; damaged entries have tests of their own")
def test_processes_that_are_killed(tmp_path: Path) -> None:
    """Eight write, read and remove the same and other entries, and are killed at any moment."""
    seconds = 60 if LONG else 3
    command = [sys.executable, "-c", WORK, str(tmp_path), str(seconds)]
    killed = int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    done = dict.fromkeys(("hits", "misses", "removed"), 0)
    for report in tmp_path.glob("report.*"):
        report_lines = [
            json.loads(line) for line in report.read_text().splitlines(True) if line[-1] == "\n"
        ]
        assert [line["bad"] for line in report_lines if line["bad"]] == []
        for name in done:
            done[name] += report_lines[-1][name] if report_lines else 0
    print(f"{seconds} s: {killed} killed, {done}")
    assert killed > 4 * seconds
    assert min(done.values()) > 20 * seconds
    store = Store(tmp_path, limit=4 << 20)
    assert all(is_whole for _, is_whole in store.verify())
    assert total(store) < 6 << 20
    left = names(tmp_path, "writing")
    assert len(left) <= 2 * killed  # a lock, and a file
    for name in left:
        age(tmp_path / "writing" / name, 90_000)
    store.prune(1 << 20)
    assert names(tmp_path, "writing") == []
    with store.reserved("key", list):
        pass
    assert names(tmp_path, "writing") == []
