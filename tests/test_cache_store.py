"""Store of the cache: intact files with concurrent and killed writers, and a bound of the size.

The processes of `test_processes_that_are_killed` write, read and remove for 3 s, with
``SUBQUANT_LONG`` for 60.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import time
from pathlib import Path
from typing import IO

import pytest
from blake3 import blake3

from subquant.compiler import digests
from subquant.compiler import store as store_module
from subquant.compiler.store import Store

KEY, OTHER = "ab" * 32, "cd" * 32


def names(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in (folder / kind).rglob("*") if not path.is_dir())


def total(store: Store) -> int:
    return sum(each.size for kind in ("records", "blobs") for each in store.files(kind))


def age(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_blobs_are_whole(tmp_path: Path) -> None:
    messages: list[str] = []
    store = Store(tmp_path / "new", on_damage=messages.append)
    digest = blake3(b"executable").hexdigest()
    assert store.blob(digest) is None
    assert store.pin(digest) is None
    assert store.keep(b"executable") == digest
    assert store.blob(digest) == b"executable"
    (path,) = (tmp_path / "new/blobs").glob("*/*")
    assert path.name == digest
    assert not messages
    for broken in (b"executabl", b"", b"executable\0", b"Executable"):
        for read in (store.blob, store.pin):
            path.write_bytes(broken)
            assert read(digest) is None
            assert messages.pop() == f"{path} is damaged, and is removed"
            assert not path.exists()
        path.write_bytes(broken)
        assert store.keep(b"executable") == digest
        assert messages.pop()
        assert store.blob(digest) == b"executable"


def test_folders_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network file system each attempt waits for the server."""
    store = Store(tmp_path / "new")

    def keep(number: int) -> None:
        with store.reserved(KEY, lambda: None):
            store.write(KEY, {"number": number}, {"executable": store.keep(b"executable")})
        record = store.read(KEY)
        assert record is not None
        assert record.fields == {"number": number}

    keep(1)
    monkeypatch.setattr(os, "mkdir", lambda *arguments: pytest.fail(f"made {arguments[0]}"))
    keep(2)
    assert names(tmp_path / "new", "writing") == []


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        store.keep(b"executable")
    assert names(tmp_path, "writing") == names(tmp_path, "blobs") == []


def test_records_are_whole(tmp_path: Path) -> None:
    messages: list[str] = []
    store = Store(tmp_path, on_damage=messages.append)
    assert store.read(KEY) is None
    store.write(KEY, {"a": "ü\n", "b": [1]}, {"executable": OTHER})
    record = store.read(KEY)
    assert record is not None
    assert (record.fields, record.blobs) == ({"a": "ü\n", "b": [1]}, {"executable": OTHER})
    (path,) = (tmp_path / "records").glob("*/*")
    whole = path.read_bytes()
    for broken in (b"", whole[:10], whole[:-4], whole.replace(b"1", b"2"), b"x" + whole[1:]):
        path.write_bytes(broken)
        assert store.read(KEY) is None
        assert messages.pop() == f"{path} is damaged, and is removed"
        assert not path.exists()
    path.write_bytes(whole + b"\0\n")  # of an earlier version
    assert store.read(KEY) == record
    path.unlink()
    os.mkfifo(path)
    assert store.read(KEY) is None
    store.write(KEY, {}, {})
    assert path.is_file()


def test_files_are_stored_and_copied(tmp_path: Path) -> None:
    store, module_source = Store(tmp_path / "store"), tmp_path / "given"
    data = os.urandom((3 << 20) + 5)
    module_source.write_bytes(data)
    digest = store.keep_file(module_source)
    assert digest == blake3(data).hexdigest()
    assert module_source.read_bytes() == data
    with store.temporary() as part:
        part.write_bytes(data + b"2")
        second = store.keep_file(part, move=True)
        assert not part.exists()
    assert names(tmp_path / "store", "writing") == []
    for expected, name in ((data, digest), (data + b"2", second)):
        pinned = store.pin(name)
        assert pinned is not None
        with contextlib.closing(pinned):
            pinned.copy_to(tmp_path / "copy")
            assert pinned.path.read_bytes() == (tmp_path / "copy").read_bytes() == expected


def test_files_are_copied_where_the_system_cannot_do_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: int) -> int:
        raise OSError("another file system")

    monkeypatch.setattr(os, "copy_file_range", fail, raising=False)
    test_files_are_stored_and_copied(tmp_path)


def test_a_use_sets_the_times_of_all_files(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(KEY, {}, {"executable": store.keep(b"executable")})
    record = store.read(KEY)
    assert record is not None
    paths = [*(tmp_path / "records").glob("*/*"), *(tmp_path / "blobs").glob("*/*")]
    for path in paths:
        age(path, 1000)
    store.use(KEY, record)
    for path in paths:
        assert abs(path.stat().st_mtime - time.time()) < 10


def test_the_least_recently_used_is_evicted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digests = [store.keep(bytes([number]) * 9000) for number in range(6)]  # of 12 KiB each
    order = [3, 0, 5, 1, 4, 2]
    for position, number in enumerate(order):
        age(store._path("blobs", digests[number]), 1000 - position)
    assert store.prune(72 << 10) == (0, 0)
    assert store.prune(72 << 10, age=2000) == (0, 0)
    assert store.prune(50 << 10) == (2, 24 << 10)
    assert [store.blob(digests[number]) is None for number in order] == [True] * 2 + [False] * 4
    spared = {digests[5]}
    assert store.prune(48 << 10, age=997.5, spared=spared) == (0, 0)
    assert store.prune(1, spared=spared) == (3, 36 << 10)
    assert names(tmp_path, "blobs") == [digests[5]]
    assert store.prune(age=10) == (1, 12 << 10)
    assert names(tmp_path, "blobs") == []


def test_pinned_blobs_stay(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest, other = store.keep(b"held"), store.keep(b"other")
    pinned, pinned_again = store.pin(digest), store.pin(digest)
    assert pinned is not None
    assert pinned_again is not None
    assert store.prune(0) == (1, 4096)
    assert store.blob(other) is None
    assert store.clear() == (0, 0)
    pinned.close()
    assert store.prune(0) == (0, 0)
    pinned_again.close()
    assert store.prune(0) == (1, 4096)


def test_writers_check_the_size_in_proportion_to_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each 32nd part of the limit on average: 1 MiB of 32, here in steps of 64 KiB."""
    looks = []
    monkeypatch.setattr(Store, "prune", lambda *arguments, **options: looks.append(arguments))
    monkeypatch.setattr(os, "urandom", random.Random(5).randbytes)
    store = Store(tmp_path, limit=32 << 20)
    for _ in range(4096):
        store.evict(64 << 10, ())
    assert 200 < len(looks) < 312  # 256, and 3.5 standard deviations
    looks.clear()
    store.evict(1 << 20, ())
    assert len(looks) == 1
    Store(tmp_path).evict(1 << 30, ())  # no limit
    assert len(looks) == 1


def test_files_of_killed_processes_are_removed_after_a_day(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in ("old.part", "old.lock", "new.part", "what.else"):
        (tmp_path / "writing").mkdir(exist_ok=True)
        (tmp_path / "writing" / name).write_bytes(b"1")
    for name in ("old.part", "old.lock", "what.else"):
        age(tmp_path / "writing" / name, 90_000)
    store.prune(1 << 20)
    assert names(tmp_path, "writing") == ["new.part", "what.else"]


def test_files_that_are_being_written_stay(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.reserved(KEY, lambda: None), store.temporary() as part:
        part.write_bytes(b"1")
        Store(tmp_path).clear()
        assert part.read_bytes() == b"1"
        age(tmp_path / "writing" / f"{KEY}.lock", 90_000)
        store.prune()
        assert names(tmp_path, "writing") == sorted([part.name, f"{KEY}.lock"])


def test_other_files_of_the_folder_stay(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(KEY, {}, {"executable": store.keep(b"executable")})
    unrelated = [
        "readme",
        "blobs/readme",
        "records/ab/readme",
        "blobs/ab/x",
        "writing/x",
    ]
    for name in unrelated:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
        age(tmp_path / name, 1e6)
    store.prune(0, age=0)
    store.clear()
    list(store.verify())
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == sorted(unrelated)


def test_verify(tmp_path: Path) -> None:
    messages: list[str] = []
    store = Store(tmp_path, on_damage=messages.append)
    store.write(KEY, {}, {"executable": store.keep(b"1")})
    store.write(OTHER, {}, {"executable": store.keep(b"2")})
    assert [is_whole for _, is_whole in store.verify()] == [True] * 4
    broken = [store._path("records", KEY), store._path("blobs", store.keep(b"2"))]
    for path in broken:
        path.write_bytes(b"broken")
    assert sorted(path for path, is_whole in store.verify() if not is_whole) == sorted(broken)
    assert len(messages) == 2
    assert [is_whole for _, is_whole in store.verify()] == [True] * 2


@pytest.mark.parametrize("replaced", [False, True])
def test_large_blobs_are_hashed_once(
    replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []

    def digest_of_open(file: IO[bytes]) -> str:
        hashed.append(file.fileno())
        return digests.digest_of_open(file)

    monkeypatch.setattr(store_module, "digest_of_open", digest_of_open)
    monkeypatch.setattr(digests, "MIN_BYTES_FOR_MEMO", 4)
    store = Store(tmp_path)

    def is_intact() -> bool:
        blob = store.pin(digest)
        if blob is not None:
            blob.close()
        return blob is not None

    digest = store.keep(b"weights")
    assert is_intact()
    assert is_intact()
    assert len(hashed) == 2  # it may change again, at the same time by the clock
    monkeypatch.setattr(digests, "_SETTLED_SECONDS", -1)
    assert is_intact()
    assert len(hashed) == 3
    store.write(KEY, {}, {"parameters": digest})
    record = store.read(KEY)
    assert record is not None
    store.use(KEY, record)
    assert store.keep(b"weights") == digest
    assert is_intact()
    assert len(hashed) == 3
    assert all(is_whole for _, is_whole in store.verify())
    assert len(hashed) == 4
    path = store._path("blobs", digest)
    time.sleep(0.05)  # longer than the clock of file systems stands still
    before = path.stat()
    other = tmp_path / "other" if replaced else path
    other.write_bytes(b"Weights")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    if replaced:
        other.replace(path)
    assert not is_intact()
    assert len(hashed) == 5


def test_a_large_blob_is_used_when_its_check_is_recalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "MIN_BYTES_FOR_MEMO", 4)
    monkeypatch.setattr(digests, "_SETTLED_SECONDS", -1)
    store = Store(tmp_path)
    used, unused = store.keep(b"used weights"), store.keep(b"other weights")
    for digest in (used, unused):
        age(store._path("blobs", digest), 1000)
    for _ in range(2):
        blob = store.pin(used)
        assert blob is not None
        blob.close()
    assert store.prune(age=500) == (1, 4096)
    assert names(tmp_path, "blobs") == [used]
