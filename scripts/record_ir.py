#!/usr/bin/env python3
"""Record the IR that every conformance program becomes, and show where it changed.

    python scripts/record_ir.py record before           before a change that should not change IR
    python scripts/record_ir.py compare before          after it
    python scripts/record_ir.py compare before --show 3 with the differences of three programs

The programs are the programs of ``subquant conformance`` (and ``--random N`` generated ones), the
models in ``examples/``, the inputs of the FileCheck tests, and the files of ``--models FOLDER``;
each goes through the pipelines in `_PIPELINES`, and a file of ``--models`` through the pipelines in
`_INSTRUCTION_SETS`. The recording is one JSON file: for each program and pipeline the text, and the
text after upstream's ``canonicalize,cse``, or the error. Two texts that then compute the same
operations, in any order, count as the same after canonicalization: they differ in what IREE folds
and orders anew first.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import hashlib
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.pipeline import compile_pipeline, parse_pipeline, run_pipeline
from subquant.compiler.reading import parse_file, parse_text
from subquant.conformance.suite import programs
from subquant.conformance.suite_random import random_programs
from subquant.dialects import create_context

_ROOT = Path(__file__).resolve().parent.parent
_ORDERED = ("cf.", "func.", "util.", "stablehlo.custom_call", "stablehlo.send", "stablehlo.recv")
_INTERPRETER = "interpreter"
_MODELS = "models/"
_HINTS = re.compile(r', subquant\.work = "\d+ \d+"|,\\22fresh\\22:true')
_PIPELINES: dict[str, CompileOptions | None] = {
    "cpu": CompileOptions(kernels="none"),
    "kernels": CompileOptions(kernels="portable", activations="int8"),
    "vulkan": CompileOptions("vulkan", kernels="none"),
    "vulkan32": CompileOptions("vulkan", vulkan_target="generic-32bit"),
    "fixed": CompileOptions(
        kernels="none",
        requantization="fixed-point",
        fixed_point_rounding="tosa-double-round",
        zero_points="inside",
    ),
    "after": CompileOptions(
        kernels="none",
        requantization="fixed-point",
        zero_points="after",
        rounding="toward-zero",
    ),
    _INTERPRETER: None,
}
_INSTRUCTION_SETS = {
    name: CompileOptions(kernels=name, activations="int8")
    for name in ("amx", "avx512vnni-amd", "avx512vnni", "avxvnni", "avx2", "neon-dotprod")
} | {"spirv": CompileOptions("vulkan", kernels="spirv", activations="int8")}
"""Pipelines for ``--models`` alone: kernels for each instruction set."""


def _sources(random: int, models: str | None) -> Iterator[tuple[str, str]]:
    """Yield the name of each program, and its text (of a file of ``--models``: its path)."""
    for program in [*programs(), *random_programs(random)]:
        yield program.name, program.text()
    for file in sorted((_ROOT / "examples").glob("*.mlir")):
        yield f"examples/{file.name}", file.read_text()
    for file in sorted((_ROOT / "tests" / "filecheck").rglob("*.mlir")):
        for number, part in enumerate(file.read_text().split("// -----")):
            yield f"filecheck/{file.parent.name}/{file.name}:{number}", part
    for file in sorted(Path(models).rglob("*.*") if models else []):
        if file.suffix in (".mlir", ".tflite", ".onnx"):
            yield f"{_MODELS}{file.relative_to(models or '')}", str(file)


def _passes(pipeline: str) -> list[Any]:
    options = (_PIPELINES | _INSTRUCTION_SETS)[pipeline]
    return parse_pipeline(_INTERPRETER) if options is None else compile_pipeline(options)


def _lowered(name: str, source: str, pipeline: str) -> dict[str, str]:
    try:
        if name.startswith(_MODELS):
            module = parse_file(Path(source), create_context())
        else:
            module = parse_text(source, create_context())
        run_pipeline(module, _passes(pipeline))
        text = _text(module)
        run_pipeline(module, parse_pipeline("canonicalize,cse"))
    except Exception as error:  # of any kind: the comparison reports a changed error
        return {"error": f"{type(error).__name__}: {error}"}
    return {"text": text, "canonical": _text(module)}


def _text(module: Any) -> str:
    """The text of a module, without what is for the runtime alone, to call it fast."""
    return _HINTS.sub("", str(module))


def _record(job: tuple[str, str]) -> tuple[str, dict[str, dict[str, str]]]:
    name, source = job
    if name.startswith(_MODELS):
        pipelines = ["kernels", "vulkan", *_INSTRUCTION_SETS]
    elif name.startswith("filecheck/"):  # partly lowered inputs crash some of upstream's passes
        pipelines = ["cpu", "vulkan"]
    else:
        pipelines = [*_PIPELINES]
    return name, {pipeline: _in_child(name, source, pipeline) for pipeline in pipelines}


def _in_child(name: str, source: str, pipeline: str) -> dict[str, str]:
    """Lower a program in a forked process: some of upstream's passes end their process."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with os.fdopen(writer, "wb") as file:
            file.write(json.dumps(_lowered(name, source, pipeline)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status):
        return {"error": f"the process ended with {os.waitstatus_to_exitcode(status)}"}
    outcome: dict[str, str] = json.loads(data)
    return outcome


def _run(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, dict[str, str]]]]:
    sources = _sources(arguments.random, arguments.models)
    jobs = [job for job in sources if re.search(arguments.filter, job[0])]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
        for number, outcome in enumerate(pool.map(_record, jobs, chunksize=8)):
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {len(jobs)}", end="", file=sys.stderr)
            yield outcome


def record(arguments: argparse.Namespace) -> int:
    """Write the recording."""
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    retained = {}
    for name, outcomes in _run(arguments):
        retained[name] = outcomes
    with gzip.open(folder / "ir.json.gz", "wt", compresslevel=3) as file:
        json.dump(retained, file)
    print(f"{len(retained)} programs in {folder}")
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Compare with a recording; 1 if something changed."""
    with gzip.open(Path(arguments.folder) / "ir.json.gz", "rt") as file:
        before = json.load(file)
    counts = {"same": 0, "canonical": 0, "changed": 0, "error": 0, "new": 0}
    shown = 0
    for name, outcomes in _run(arguments):
        for pipeline, now in outcomes.items():
            old = before.get(name, {}).get(pipeline)
            kind = _kind(old, now)
            counts[kind] += 1
            if kind in ("same", "new"):
                continue
            print(f"{kind}: {name} in {pipeline}")
            if shown < arguments.show and (kind != "canonical" or arguments.exact):
                shown += 1
                key = "canonical" if kind == "changed" and not arguments.exact else "text"
                texts = [t.get(key, t.get("error", "")).splitlines() for t in (old, now)]
                print("\n".join(difflib.unified_diff(*texts, "before", "now", lineterm="", n=2)))
    print(
        f"{counts['same']} the same, {counts['canonical']} the same after canonicalize and cse, "
        f"{counts['changed']} changed, {counts['error']} in their errors, {counts['new']} new"
    )
    return int(bool(counts["changed"] or counts["error"]))


def _kind(old: dict[str, str] | None, now: dict[str, str]) -> str:
    if old is None:
        return "new"
    if old == now or ("error" not in now and old.get("text") == now["text"]):
        return "same"
    if "error" in old or "error" in now:
        return "error"
    same = old["canonical"] == now["canonical"] or _meaning(old["canonical"]) == _meaning(
        now["canonical"]
    )
    return "canonical" if same else "changed"


def _meaning(text: str) -> list[str]:
    """A digest of each function, whatever the order of operations without effects is in it."""
    module = parse_text(text, create_context())
    digests: dict[Any, str] = {}

    def of_block(block: Any, position: str) -> str:
        for number, argument in enumerate(block.arguments):
            digests[argument] = f"{position}.{number}"
        anchors = []
        for wrapper in block.operations:
            op = wrapper.operation
            pieces = [op.name, *(str(result.type) for result in op.results)]
            pieces += [f"{name}={op.attributes[name]}" for name in sorted(op.attributes)]
            pieces += [digests[operand] for operand in op.operands]
            # A body is that of an operation, wherever it stands: its place is only how deep.
            regions = [
                of_block(inner, f"{position}>{r}.{b}")
                for r, region in enumerate(op.regions)
                for b, inner in enumerate(region)
            ]
            digest = hashlib.sha256("|".join(pieces + regions).encode()).hexdigest()
            for index, result in enumerate(op.results):
                digests[result] = f"{digest}:{index}"
            if not len(op.results) or op.name.startswith(_ORDERED):
                anchors.append(digest)
        return hashlib.sha256("|".join(anchors).encode()).hexdigest()

    return [of_block(block, "") for block in module.operation.regions[0]]


def main() -> int:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("record", "compare"))
    parser.add_argument("folder", help="where the recording is")
    parser.add_argument("--filter", default="", help="a regular expression of program names")
    parser.add_argument("--random", type=int, default=300, help="how many generated programs")
    parser.add_argument("--models", help="a folder of .mlir, .tflite and .onnx files")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", type=int, default=0, help="show the differences of so many")
    parser.add_argument("--exact", action="store_true", help="also of those that cse removes")
    arguments = parser.parse_args()
    return (record if arguments.command == "record" else compare)(arguments)


if __name__ == "__main__":
    sys.exit(main())
