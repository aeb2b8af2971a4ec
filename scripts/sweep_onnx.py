"""Sweep of ONNX operators: node tests of the `onnx` package, compiled and run on llvm-cpu.

Each model is imported, compiled together with others, and run; its results are compared with the
expected ones of the node test. A model is *right*, *wrong*, *refused* with a message, or *crashed*.

    python scripts/sweep_onnx.py --write docs/onnx-operators.md
    python scripts/sweep_onnx.py --only "maxpool*,averagepool*" --list
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from onnx_sweep import Outcome, node_tests, outcomes  # noqa: E402
from onnx_version_cases import cases as version_cases  # noqa: E402
from onnx_versions import versions  # noqa: E402
from subquant.runtime import Device  # noqa: E402
from test_onnx_versions import check  # noqa: E402

_KINDS = ("right", "refused", "wrong", "crashed")


def summary(results: Sequence[Outcome]) -> str:
    """Return the counts of all models, and the share of right ones with fixed shapes."""
    counts = Counter(each.kind for each in results)
    fixed = Counter(each.kind for each in results if each.has_fixed_shapes)
    share = 100 * fixed["right"] / max(fixed.total(), 1)
    listed = ", ".join(f"{counts[kind]} {kind}" for kind in _KINDS)
    return (
        f"{len(results)} models: {listed}. Of the {fixed.total()} whose inputs and outputs are "
        f"tensors of fixed shapes, {share:.1f} % are right."
    )


def compared_versions() -> dict[str, Counter[int]]:
    """Compare every case of every version with ONNX Runtime; return the counts by operator."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for case in version_cases():
        for version in versions(case.operator):
            counts[case.operator][version] += check(case, version)
    return counts


def page(results: Sequence[Outcome], compared: dict[str, Counter[int]]) -> str:
    """Return the page with a table of operators."""
    rows = defaultdict(list)
    for each in results:
        for operator in each.operators:
            rows[operator].append(each)
    table_lines = [
        "# ONNX operators",
        "",
        "<!-- written by: python scripts/sweep_onnx.py --write docs/onnx-operators.md -->",
        "",
        f"The node tests of `onnx` {onnx.__version__}, compiled for llvm-cpu and compared with "
        "their expected results.",
        "An input that must be constant (the shape of Reshape) is fixed as `--input-value` does.",
        "",
        summary(results),
        "",
        "A model counts for each operator that it has: the expanded form of a function operator",
        "has many. Every version of an operator from operator set 7 on is accepted, with the",
        "meaning of that version. The column of versions has those that are compared with ONNX",
        "Runtime, or with ONNX's reference evaluator where it has no kernel, each with the number",
        "of models; all are right (`tests/test_onnx_versions.py`).",
        "",
        "| operator | versions | right | refused | wrong | first reason |",
        "|---|---|---|---|---|---|",
    ]
    for operator in sorted({*rows, *compared}):
        counts = Counter(each.kind for each in rows[operator])
        reasons = [each.message for each in rows[operator] if each.kind != "right"]
        reason = reasons[0].partition("error: ")[2].replace("|", "\\|")[:120] if reasons else ""
        models = sorted(compared.get(operator, Counter()).items())
        each_version = ", ".join(f"{version} ({count})" for version, count in models if count)
        table_lines.append(
            f"| {operator} | {each_version} | {counts['right']} | {counts['refused']} | "
            f"{counts['wrong'] + counts['crashed']} | {reason} |"
        )
    return "\n".join(table_lines) + "\n"


def main() -> None:
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", help="write the page with the table of operators")
    parser.add_argument("--json", help="write one line of JSON for each model")
    parser.add_argument("--only", default="*", help="patterns of names, with commas")
    parser.add_argument("--list", action="store_true", help="print every model that is not right")
    options = parser.parse_args()
    patterns = options.only.split(",")
    cases = {
        name: case for name, case in sorted(node_tests().items())
        if any(fnmatch.fnmatchcase(name, each) for each in patterns)
    }  # fmt: skip
    start, results = time.monotonic(), []
    for each in outcomes(cases, Device("llvm-cpu")):
        results.append(each)
        if options.list and each.kind != "right":
            print(f"{each.kind:8} {each.name}: {each.message[:300]}")
        if len(results) % 100 == 0:
            counts = dict(Counter(one.kind for one in results))
            seconds = time.monotonic() - start
            print(f"{len(results)}/{len(cases)} {seconds:.0f} s {counts}", file=sys.stderr)
    print(summary(results))
    if options.json:
        table_lines = (json.dumps(asdict(each)) + "\n" for each in results)
        Path(options.json).write_text("".join(table_lines))
    if options.write:
        Path(options.write).write_text(page(results, compared_versions()))


if __name__ == "__main__":
    main()
