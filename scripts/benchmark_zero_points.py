#!/usr/bin/env python3
"""Time the ways to subtract zero points, on matmuls and convolutions of 8 bits.

    python scripts/benchmark_zero_points.py                  a table
    python scripts/benchmark_zero_points.py --target-cpu generic --json

Activations have a zero point, weights have none or one; weights are constants or arguments. The
time is the best of many calls, after some that warm up. Run it with nothing beside it.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import subquant

STYLES = ("after", "inside", "mixed")


@dataclass(frozen=True)
class Contraction:
    """A contraction of ``i8`` values with scales that do not matter here."""

    name: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    result: tuple[int, ...]
    operation: str


def dot(rows: int, depth: int, columns: int) -> Contraction:
    """A matmul."""
    return Contraction(
        f"matmul {rows}x{depth}x{columns}", (rows, depth), (depth, columns), (rows, columns),
        '"stablehlo.dot"(%x, %w)',
    )  # fmt: skip


def convolution(size: int, features: int, groups: int) -> Contraction:
    """A 3x3 convolution over a padded square, with as many features after it as before."""
    square = (1, size, size, features)
    return Contraction(
        f"conv {size}x{size}x{features}" + (" depthwise" if groups > 1 else ""),
        square,
        (3, 3, features // groups, features),
        square,
        "stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
        "window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, "
        f"feature_group_count = {groups} : i64}}",
    )


CASES = (dot(1, 1024, 1024), dot(128, 1024, 1024), convolution(56, 64, 1), convolution(56, 64, 64))


def program(case: Contraction, weights: np.ndarray[Any, Any] | None, zero_point: int) -> str:
    """The text, with the weights as a constant, or as an argument if there are none."""
    shapes = ["x".join(map(str, shape)) for shape in (case.left, case.right, case.result)]
    x = f"tensor<{shapes[0]}x!quant.uniform<i8:f32, 0.05:3>>"
    w = f"tensor<{shapes[1]}x!quant.uniform<i8:f32, 0.02:{zero_point}>>"
    y = f"tensor<{shapes[2]}x!quant.uniform<i8:f32, 1.7:-3>>"
    constant, argument = "", f", %w: {w}"
    if weights is not None:
        integers, argument = f"tensor<{shapes[1]}xi8>", ""
        constant = (
            f'%c = stablehlo.constant dense<"0x{weights.tobytes().hex().upper()}"> : {integers}\n'
            f'  %w = "quant.scast"(%c) : ({integers}) -> {w}\n'
        )
    return (
        f"func.func @main(%x: {x}{argument}) -> {y} {{\n  {constant}"
        f"  %r = {case.operation} : ({x}, {w}) -> {y}\n  return %r : {y}\n}}\n"
    )


def best(function: Any, arguments: list[np.ndarray[Any, Any]], calls: int) -> float:
    """The least time of a call, in microseconds."""
    for _ in range(3):
        function(*arguments)
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target-cpu", default="host")
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    rows = []
    for case in CASES:
        x = generator.integers(-128, 128, case.left).astype(np.int8)
        w = generator.integers(-128, 128, case.right).astype(np.int8)
        for zero_point in (0, 5):
            for is_constant in (True, False):
                text = program(case, w if is_constant else None, zero_point)
                arguments = [x] if is_constant else [x, w]
                row: dict[str, Any] = {
                    "case": case.name,
                    "weights": "constant" if is_constant else "argument",
                    "zero point": zero_point,
                }
                for style in STYLES:
                    executable = subquant.compile(
                        text, target_cpu=options.target_cpu, zero_points=style
                    )
                    row[style] = round(best(executable.main, arguments, options.calls))
                rows.append(row)
                if not options.json:
                    if len(rows) == 1:
                        print(f"{'case':26} {'weights':9} zero point  {'  '.join(STYLES)}  (us)")
                    times = "  ".join(f"{row[style]:{len(style)}}" for style in STYLES)
                    print(f"{case.name:26} {row['weights']:9} {zero_point:10}  {times}", flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
