"""Runs of ``subquant compile`` over several models: the models, the call and its outputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from click.testing import Result

from command_line import call
from onnx_models import model, node
from subquant.batch.manifest import NAME

PROGRAM = """func.func @main(%x: tensor<{n}xf32>) -> tensor<{n}xf32> {{
  %y = arith.addf %x, %x : tensor<{n}xf32>
  return %y : tensor<{n}xf32>
}}
"""
BAD = 'func.func @main() {\n  "foo.bar"() : () -> ()\n  return\n}\n'
BY_PASSES = ("--emit", "mlirbc")  # without IREE, which takes longer


def write(*paths: str, text: str | None = None) -> None:
    """Write a program to each path, each another one."""
    for number, path in enumerate(paths, 1):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(PROGRAM.format(n=number) if text is None else text)


def invoke(*arguments: str, stdin: bytes | None = None) -> Result:
    return call("compile", *arguments, stdin=stdin)


def files(folder: str = "out") -> dict[str, bytes]:
    """The outputs of a folder, by their paths in it."""
    actual = {path.relative_to(folder).as_posix(): path for path in Path(folder).rglob("*")}
    return {name: path.read_bytes() for name, path in actual.items()
            if path.is_file() and name != NAME}  # fmt: skip


def statuses(*arguments: str) -> dict[str, str]:
    """Return the report's entry of each model."""
    result = invoke(*arguments, "--json", "report.json")
    assert result.exit_code in (0, 1), result.output
    report = json.loads(Path("report.json").read_text())
    return {each["name"]: each["status"] for each in report["results"]}


def write_onnx(path: str, *, external: str | None = None) -> None:
    """A model that adds a weight, of a file of its own if that has a name."""
    weights = {"w": np.arange(8, dtype=np.float32)}
    types = ({"x": ("FLOAT", [8])}, {"y": ("FLOAT", [8])})
    proto = model([node("Add", ["x", "w"], ["y"])], *types, weights)
    if external is None:
        Path(path).write_bytes(proto.SerializeToString())
    else:
        onnx.save(proto, path, save_as_external_data=True, location=external, size_threshold=0)
