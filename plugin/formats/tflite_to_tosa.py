"""Read TensorFlow Lite models: as TOSA, by PyPI's ``tosa-converter-for-tflite``.

The converter is an optional extra (``pip install "subquant[tflite]"``): it carries an LLVM of its
own. It runs as a process of its own, so that a crash there is an error here, and hands over text
with locations, because its bytecode is of another MLIR version.
"""

from __future__ import annotations

import importlib.util
import sys

from ..errors import EnvironmentProblem, ParseError, Place
from ..processes import run_guarded

__all__ = ["CONVERTER", "is_tflite", "tosa_of_tflite"]

CONVERTER = "tosa-converter-for-tflite==2026.2.0"
"""What to install (also in pyproject.toml)."""

_SECONDS = 600
_CONVERT = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]\n"  # no current folder
    "from tosa_converter_for_tflite import (tflite_flatbuffer_to_tosa_mlir as convert,\n"
    "    TosaConverterDebugInfo as Debug, TosaConverterOutputFormat as Format)\n"
    "convert('-', sys.stdout.buffer, Format.Text, Debug.Enable)\n"
)


def is_tflite(data: bytes) -> bool:
    """True for a TensorFlow Lite model, by the mark of its flatbuffer."""
    return data[4:8] == b"TFL3"


def tosa_of_tflite(data: bytes, file: str = "-") -> str:
    """Convert a TensorFlow Lite model to TOSA.

    Args:
        data: the model.
        file: its name, for errors and locations.

    Returns:
        The text of an MLIR module.

    Raises:
        EnvironmentProblem: the converter is not installed.
        ParseError: it refuses the model, or crashes on it.
    """
    if importlib.util.find_spec("tosa_converter_for_tflite") is None:
        raise EnvironmentProblem(
            f"'{file}' is a TensorFlow Lite model, and the converter to TOSA is not installed; "
            f"run: pip install {CONVERTER}"
        )
    given = "model.tflite"
    command = [sys.executable, "-c", _CONVERT]
    result = run_guarded(command, {given: data}, stdin=given, seconds=_SECONDS)
    if not result.in_time:
        raise ParseError(
            f"the converter to TOSA did not finish in {_SECONDS} s on this model", Place(file)
        )
    if result.status < 0:
        raise ParseError(
            f"the converter to TOSA crashed on this model (signal {-result.status})", Place(file)
        )
    if result.status:
        raise ParseError(
            f"the converter to TOSA refuses this model: {_reason(result.stderr)}", Place(file)
        )
    # "-" is what the readers here replace by the file's name.
    return result.stdout.decode(errors="replace").replace('loc("<stdin>":0:0)', 'loc("-":0:0)')


def _reason(stderr: bytes) -> str:
    """The first error in the converter's diagnostics, else the last line of them."""
    lines = [line for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    for line in lines:
        _, found, reason = line.partition(": error: ")
        if found:
            return reason
    return lines[-1] if lines else "no message"
