"""Times of real model files of PyPI packages, beside their own runtimes, as a page.

    python scripts/real_files.py --write docs/real-files.md          the page of an Intel processor
    python scripts/real_files.py --write docs/real-files-epyc.md
    python scripts/real_files.py --only magika nudenet

The files and arguments are those of `tests/test_real_onnx.py`, `tests/test_real_tflite.py` and
`tests/test_real_language_model.py`, which compare the results. Each program runs with one thread;
ONNX Runtime with its optimizations, LiteRT with XNNPACK, and llama.cpp if the environment variable
SUBQUANT_LLAMA names the folder that `scripts/bench` builds it in. A time is the least of repeated
calls, in turn of subquant and its peer. Both take their arguments in the same way: beside ONNX
Runtime's `run`, arrays of NumPy in each call; beside LiteRT's `invoke`, memory that they were
written to before (`Function.bind`). The run ends where results differ by more than the tests allow.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

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


def least_milliseconds(*calls: Callable[[], object]) -> list[float]:
    """Return the least time of each call, repeated in turn, after one that is not counted."""
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + _SECONDS * len(calls)
    while time.perf_counter() < end or len(times[0]) < _MIN_CALLS:
        for call, own in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            own.append((time.perf_counter() - start) * 1e3)
    return [min(each) for each in times]


def check(name: str, results: Sequence[object], expected: Sequence[Any], tolerance: float) -> None:
    """Compare results with those of the peer, relative to the greatest magnitude of each."""
    for result, target in zip(results, expected, strict=True):
        actual = np.asarray(result, np.float64)
        atol = tolerance * max(float(np.abs(target).max(initial=0)), 1e-2)
        np.testing.assert_allclose(actual, target, rtol=0, atol=atol, err_msg=name)


def onnx_rows(device: Device, only: Sequence[str]) -> Iterator[Row]:
    """Measure the ONNX files whose name or path has one of some texts; all for none."""
    for name, file in onnx_files.FILES.items():
        if only and not any(text in (name, file.path) or text in file.path for text in only):
            continue
        data = file_in_package(file.package, file.path)
        feeds = onnx_files.feeds_of(file, data)
        start = time.perf_counter()
        executable = onnx_files.compiled(file, data, device)
        seconds = time.perf_counter() - start
        arguments = onnx_files.arguments_of(file, feeds)
        session = onnx_files.session_of(data, is_optimized=True)
        expected = onnx_files.session_of(data).run(None, feeds)
        main = executable.main
        check(name, main.invoke(arguments), expected, file.tolerance)
        own, peer = least_milliseconds(
            lambda f=main, a=arguments: f(*a),
            lambda s=session, f=feeds: s.run(None, f),
        )
        yield Row(file.package, Path(file.path).name, seconds, own, peer)


def tflite_rows(device: Device, only: Sequence[str]) -> Iterator[Row]:
    """Measure the TensorFlow Lite files whose path has one of some texts; all for none."""
    from ai_edge_litert.interpreter import Interpreter

    for package, name, extents, tolerance in tflite_files.MODELS:
        if only and not any(text in f"{name}.tflite" for text in only):
            continue
        data = file_in_package(package[0], f"{package[1]}{name}.tflite")
        options = CompileOptions(dims=tuple(f"{key}={n}" for key, n in extents.items()))
        start = time.perf_counter()
        function = Executable(compile_to_bytes(data, options), device).main
        seconds = time.perf_counter() - start
        peer, reference = (
            Interpreter(model_content=data, num_threads=1),
            tflite_files.interpreter(data),
        )
        rng = np.random.default_rng(0)
        for each in (peer, reference):
            for details, input_ in zip(
                each.get_input_details(), function.signature.inputs, strict=True
            ):
                each.resize_tensor_input(details["index"], input_.shape)
            each.allocate_tensors()
        inputs = [tflite_files.drawn(rng, details) for details in peer.get_input_details()]
        for each in (peer, reference):
            for details, array in zip(each.get_input_details(), inputs, strict=True):
                each.set_tensor(details["index"], array)
        reference.invoke()
        expected = [reference.get_tensor(d["index"]) for d in reference.get_output_details()]
        check(name, function.invoke(inputs), expected, tolerance)
        times = least_milliseconds(function.bind(*inputs), peer.invoke)
        yield Row(package[0], f"{Path(name).name}.tflite", seconds, *times)


def language_model_rows(device: Device, only: Sequence[str]) -> Iterator[Row]:
    """Measure a prompt and a token of the GGUF file, if llama.cpp is here and `only` is empty."""
    if "SUBQUANT_LLAMA" not in os.environ or only:
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
            yield Row(language_model.PACKAGE, name, seconds, *least_milliseconds(own, peer))


def page(rows: list[Row], path: str) -> str:
    """Return the page that is written to a path."""
    ratios = [row.peer / row.own for row in rows]
    files = {(row.package, row.name.partition(":")[0]) for row in rows}
    sentences = []
    if any(row.package == language_model.PACKAGE for row in rows):
        sentences = [
            "The language model is compared with NumPy in 64 bits, and timed beside llama.cpp."
        ]
    table = [
        f"# Real files on {_processor()}",
        "",
        f"<!-- written by: python scripts/real_files.py --write {path} -->",
        "",
        f"{len(files)} model files of packages on PyPI, none of them made for subquant. The long",
        "suite (`scripts/test --long`) fetches each one and compares its results with those of its",
        f"own runtime: ONNX Runtime {version('onnxruntime')}, LiteRT {version('ai-edge-litert')}.",
        *sentences,
        "",
        f"The times are those of one call with one thread on {_processor()}; the runtimes optimize",
        "the files as they do by default. A call of an ONNX file takes and returns NumPy arrays;",
        "a call of a TensorFlow Lite file reads arguments that were stored before. Calls of both",
        "runtimes alternate, so that each may find its weights displaced from the L2 cache. A",
        "ratio above 1 means that subquant is faster; the median is "
        f"{statistics.median(ratios):.2f}.",
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
    parser.add_argument("--only", nargs="+", default=[], help="parts of the paths of the files")
    options = parser.parse_args()
    device = Device("llvm-cpu", threads=1)
    rows: list[Row] = []
    for make in (onnx_rows, tflite_rows, language_model_rows):
        for row in make(device, options.only):
            print(f"{row.name}: {row.compilation:.1f} s, {row.own:.4f} and {row.peer:.4f} ms")
            rows.append(row)
    if options.write:
        Path(options.write).write_text(page(rows, options.write))


if __name__ == "__main__":
    main()
