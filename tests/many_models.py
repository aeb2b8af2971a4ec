"""Models of all kinds for runs over many.

Programs of the conformance suite, as text and as bytecode, and operators of TensorFlow Lite and
ONNX, some with their data in files beside them.
"""

from __future__ import annotations

import io
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import onnx

from subquant.compiler.reading import parse_text
from subquant.conformance.suite import programs
from subquant.dialects import create_context
from test_onnx_operators import CASES as ONNX_CASES
from tflite_cases import CASES as TFLITE_CASES
from tflite_cases import one_case

_STRIDE = 37
"""Coprime to the number of programs: neighbours in the suite are alike."""


def write_models(folder: Path, count: int) -> list[str]:
    """Write models, half of them text, and return their paths from the folder on, sorted.

    One in fifty has an error. Some have the same name in another folder.
    """
    actual = []
    for number, kind in enumerate(islice(cycle(("mlir", "tflite", "mlir", "onnx", "mlir", "mlirbc",
                                                "mlir", "mlirbc")), count)):  # fmt: skip
        path = folder / kind / f"{number % 3}" / f"model{number // 3}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, number)
        actual.append(path.relative_to(folder).as_posix())
    return sorted(actual)


def _write(path: Path, number: int) -> None:
    rng = np.random.default_rng(number)
    kind = path.suffix
    if kind == ".tflite":
        path.write_bytes(one_case([*TFLITE_CASES.values()][number % len(TFLITE_CASES)], rng))
    elif kind == ".onnx":
        proto = [*ONNX_CASES.values()][number % len(ONNX_CASES)](rng)
        data = f"{path.stem}.data"
        onnx.save(proto, path, save_as_external_data=number % 2 == 1, location=data,
                  size_threshold=16)  # fmt: skip
    else:
        every = [program for program in programs() if program.runs]
        text = every[number * _STRIDE % len(every)].text("main")
        if number % 50 == 4:
            text = text.replace("return ", "retrun ")
        if kind == ".mlir":
            path.write_text(text)
            return
        buffer = io.BytesIO()
        with create_context() as context:
            parse_text(text, context).operation.write_bytecode(buffer)
        path.write_bytes(buffer.getvalue())
