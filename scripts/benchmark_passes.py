#!/usr/bin/env python3
"""Time the passes on a module of many casts, and their share of a whole compilation.

    python scripts/benchmark_passes.py                 3,000 casts of three types, a table
    python scripts/benchmark_passes.py --types different --without-iree
    python scripts/benchmark_passes.py --casts 300 --json

Each pass is timed over the module as the passes before it left it, the best of several runs. The
share is the time of all passes, parsing and writing bytecode included, over that and IREE's. Times
are CPU times, of IREE's threads together. With ``--types different`` no two pairs of casts have the
same scales, as in a network whose layers were calibrated one by one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.iree_driver import compiler_path
from subquant.compiler.lowering import bytecode_of
from subquant.compiler.pipeline import compile_pipeline, run_pipeline
from subquant.compiler.reading import parse_text
from subquant.dialects import create_context

_TYPES = (
    "!quant.uniform<i8:f32, SCALE:3>",
    "!quant.uniform<u8:f32:0, {SCALE:1,0.25:2,0.125:3,1.0:4,2.0:5,0.75:6,0.375:7,1.5:8}>",
    "!quant.uniform<i4:f32:{0:2, 1:4}, "
    "{{SCALE:1, 0.25}, {0.125:-2, 1.0}, {2.0, 0.75}, {1.5, 3.0}}>",
)


def module_text(casts: int, different: bool = False) -> str:
    """A module of casts that alternately quantize and dequantize.

    Args:
        casts: how many.
        different: each pair has a type of its own; else they have three types in turn.
    """
    count = casts // 2 if different else len(_TYPES)
    text_lines = [
        f"!q{number} = {_TYPES[number % len(_TYPES)].replace('SCALE', str(0.5 + number / 2**16))}"
        for number in range(count)
    ]
    text_lines.append("func.func @main(%x0: tensor<8x8xf32>) -> tensor<8x8xf32> {")
    for number in range(casts // 2):
        quantized = f"tensor<8x8x!q{number % count}>"
        text_lines.append(f"  %q{number} = quant.qcast %x{number} : tensor<8x8xf32> to {quantized}")
        text_lines.append(
            f"  %x{number + 1} = quant.dcast %q{number} : {quantized} to tensor<8x8xf32>"
        )
    text_lines += [f"  return %x{casts // 2} : tensor<8x8xf32>", "}"]
    return "\n".join(text_lines)


def measure(text: str, casts: int, repeat: int, with_iree: bool) -> dict[str, Any]:
    """Return the figures of the report on a module of so many casts."""
    options = CompileOptions()
    best: dict[str, float] = {}

    def keep(name: str, start: float) -> None:
        best[name] = min(best.get(name, float("inf")), time.process_time() - start)

    for _ in range(repeat):
        context = create_context()
        start = time.process_time()
        module = parse_text(text, context)
        keep("parse", start)
        for step in compile_pipeline(options):
            start = time.process_time()
            run_pipeline(module, [step])
            keep(step.name, start)
        start = time.process_time()
        bytecode = bytecode_of(module)
        keep("write bytecode", start)
    ours = sum(best.values())
    passes = [
        {"name": name, "seconds": seconds, "microseconds_per_cast": seconds / casts * 1e6}
        for name, seconds in best.items()
    ]
    report = {
        "casts": casts,
        "passes": passes,
        "seconds": ours,
        "microseconds_per_cast": ours / casts * 1e6,
    }
    if with_iree:
        iree = _iree_seconds(bytecode, options)
        report["iree_compile_seconds"] = iree
        report["share_of_compile_time"] = ours / (ours + iree)
        report["relative_to_iree_compile"] = ours / iree
    return report


def _iree_seconds(bytecode: bytes, options: CompileOptions) -> float:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "module.mlirbc")
        source.write_bytes(bytecode)
        command = [compiler_path(), str(source), "-o", str(Path(folder, "o.vmfb")), *options.flags]
        before = os.times()
        subprocess.run(command, check=True, capture_output=True)
        after = os.times()
        user = after.children_user - before.children_user
        return user + after.children_system - before.children_system


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--casts", type=int, default=3000, help="casts in the module")
    parser.add_argument("--repeat", type=int, default=3, help="runs of the passes; the best counts")
    parser.add_argument(
        "--types", choices=("three", "different"), default="three", help="what is cast to"
    )
    parser.add_argument("--without-iree", action="store_true", help="time the passes only")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    text = module_text(arguments.casts, arguments.types == "different")
    report = measure(text, arguments.casts, arguments.repeat, not arguments.without_iree)
    if arguments.json:
        print(json.dumps(report, indent=2))
        return
    print(f"{report['casts']} casts, types: {arguments.types}")
    for entry in report["passes"]:
        print(
            f"  {entry['name']:32}{entry['seconds'] * 1e3:10.1f} ms"
            f"{entry['microseconds_per_cast']:10.1f} us a cast"
        )
    print(
        f"  {'all':32}{report['seconds'] * 1e3:10.1f} ms"
        f"{report['microseconds_per_cast']:10.1f} us a cast"
    )
    if arguments.without_iree:
        return
    print(f"  {'iree-compile':32}{report['iree_compile_seconds'] * 1e3:10.1f} ms")
    print(
        f"subquant is {report['share_of_compile_time']:.1%} of the whole compilation "
        f"({report['relative_to_iree_compile']:.1%} of iree-compile)"
    )


if __name__ == "__main__":
    main()
