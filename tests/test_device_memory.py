"""Memory of a device: overlaps, lazily allocated zeros, large pages, and its release."""

from __future__ import annotations

import gc
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import subquant
from device_programs import LARGE
from programs import LONG
from subquant.compiler.compilation import compile_to_bytes
from subquant.errors import ExecutionError, UsageError
from subquant.layouts import GgmlTensor
from subquant.ops import linear, trace_function
from subquant.runtime import Device
from subquant.runtime.marshalling import _MemoryRanges
from subquant.runtime.open_device import OpenDevice


def test_overlaps_of_memory_ranges() -> None:
    """The result equals a comparison of each range with each."""
    whole = np.zeros(64, np.uint8)
    generator = np.random.default_rng(0)
    for _ in range(200):
        pieces, added = _MemoryRanges(), []
        for start, length in zip(
            generator.integers(0, 50, 12), generator.integers(0, 14, 12), strict=True
        ):
            piece = whole[start : start + length]
            assert pieces.overlap(piece) == any(np.may_share_memory(piece, a) for a in added)
            if generator.integers(2):
                pieces.add(piece)
                added.append(piece)


def test_checks_of_many_donated_arrays_are_linear(cpu: Device) -> None:
    """Each array is compared with the others once, also if its memory is that of another result."""
    count = 40
    types = ", ".join(["tensor<16384xf32>"] * count)
    names = [f"%x{n}" for n in range(count)]
    maps = "\n".join(
        f"%y{n} = stablehlo.add {name}, {name} : tensor<16384xf32>" for n, name in enumerate(names)
    )
    swapped = [f"%y{n}" for n in reversed(range(count))]
    arguments = ", ".join(f"{name}: tensor<16384xf32>" for name in names)
    text = f"""func.func @main({arguments}) -> ({types}) {{
      {maps}
      return {", ".join(swapped)} : {types}
    }}"""
    main = subquant.compile(text, device=cpu).main
    arrays = [main.put(n, np.full(16384, n, np.float32)) for n in range(count)]
    for call in (1, 2):
        arrays = main.invoke(arrays, resident=True, donate=range(count))
        for n, array in enumerate(arrays):
            of = n if call == 2 else count - 1 - n
            assert (array.numpy() == of * 2**call).all()
    with pytest.raises(UsageError, match="argument 3 of 'main' is donated, and given twice"):
        main.invoke([*arrays[:-1], arrays[3]], resident=True, donate=[3])


_LAZY = """
import numpy as np
import subquant

def anonymous():
    lines = (line.split() for line in open("/proc/self/status"))
    return next(int(words[1]) * 1024 for words in lines if words[0] == "RssAnon:")

device = subquant.Device("llvm-cpu", threads=1)
device.put(np.zeros(1 << 20, np.int8))
shape, before = (64, 1 << 20), anonymous()
stored = device.put(np.broadcast_to(np.float16(0), shape))
growth = anonymous() - before
assert np.asarray(stored).shape == shape
print(growth)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what is resident")
def test_zeros_take_memory_where_they_are_written() -> None:
    run = subprocess.run([sys.executable, "-c", _LAZY], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 1 << 24  # of 1 << 27


_CONSTANTS = """
import gc
import numpy as np
import subquant

def advised():
    found, size = 0, 0
    for line in open("/proc/self/smaps"):
        if line.startswith("Size:"):
            size = int(line.split()[1]) * 1024
        elif line.startswith("VmFlags:") and "hg" in line.split():
            found += size
    return found

before = advised()
executable = subquant.load("large.vmfb", threads=1)
after = advised()
x, expected = np.load("x.npy"), np.load("expected.npy")
np.testing.assert_array_equal(executable.main(x)[0], expected)
del executable
gc.collect()
subquant.load("small.vmfb", threads=1).main(x)
print(after - before, advised() - before)
"""


@pytest.mark.skipif(not LONG, reason="3 s; a claim on memory, not on numbers")
@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no large pages")
def test_large_constants_use_large_pages(tmp_path: Path) -> None:
    """All but the last bytes are in large pages, which are freed with the executable."""
    rng = np.random.default_rng(7)
    index, columns = 4321, {"large": 1000, "small": 10}
    x = np.zeros((1, 8192), np.float32)
    x[0, index] = 1
    for name, count in columns.items():
        blocks = np.zeros((count, 256), [("d", "<f2"), ("qs", "i1", 32)])
        blocks["d"] = rng.integers(1, 9, (count, 256)) / 8
        blocks["qs"] = rng.integers(-128, 128, (count, 256, 32))
        weight = GgmlTensor(blocks.view(np.uint8).reshape(-1), "Q8_0", (count, 8192))
        module = trace_function(lambda values, weight=weight: linear(values, weight), x)
        (tmp_path / f"{name}.vmfb").write_bytes(compile_to_bytes(module))
        if name == "large":
            block = blocks[:, index // 32]
            np.save(tmp_path / "expected", block["d"] * block["qs"][:, index % 32])
    np.save(tmp_path / "x", x)
    command = [sys.executable, "-c", _CONSTANTS]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    huge_bytes, left = map(int, run.stdout.split())
    assert 8 << 20 <= huge_bytes <= 10 << 20
    assert left == 0


def test_an_array_that_does_not_fit_is_an_error(cpu: Device) -> None:
    with pytest.raises(ExecutionError, match=r"no room .* of 2,251,799,813,"):
        cpu.put(np.broadcast_to(np.float16(0), (1 << 50,)))  # beyond all addresses


def test_broadcast_arrays(cpu: Device) -> None:
    """Reused memory is overwritten."""
    for _ in range(8):
        dirty = [cpu.put(np.full((40, 1024), 7, np.float32)) for _ in range(4)]
        del dirty
        for number in (0.0, -0.0, 1.5):
            values = np.broadcast_to(np.float32(number), (40, 1024))
            copy = cpu.put(values).numpy()
            np.testing.assert_array_equal(copy.view(np.uint32), np.array(values).view(np.uint32))


# -- what threads of a device refer to last --------------------------------------------------------


class _Watched:
    def __init__(self, name: str, ended: list[str]) -> None:
        self._name, self._ended = name, ended

    def __del__(self) -> None:
        self._ended.append(self._name)


def test_a_device_closes_before_its_modules_are_freed() -> None:
    """Its threads may need the GIL to free a module, and the thread that waits for them has it."""
    device, user, ended = Device("llvm-cpu")._open("local-sync"), _Watched("user", []), []
    opened = OpenDevice.__new__(OpenDevice)
    opened.__dict__.update(device.__dict__, handle=_Watched("device", ended), _modules=[])
    opened.keep(user, _Watched("module", ended))
    del user
    assert not ended
    del opened
    gc.collect()
    assert ended == ["device", "module"]


def test_modules_live_until_the_next_are_loaded(cpu: Device) -> None:
    ended: list[str] = []
    executable = subquant.compile(LARGE, device=cpu)
    function = executable.large
    opened = function.device
    [modules] = [each for each in opened._modules if each[1][0] is executable._module]
    opened.keep(function, _Watched("used", ended))
    opened.keep(ended_soon := _Watched("user", []), _Watched("unused", ended))
    del executable, ended_soon
    assert modules in opened._modules
    assert ended == []
    opened.keep(function, object())
    assert ended == ["unused"]
    del function
    gc.collect()
    subquant.compile(LARGE, device=cpu)
    assert modules not in opened._modules
    assert ended == ["unused", "used"]
