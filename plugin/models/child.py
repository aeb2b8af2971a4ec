"""A model's program, written in a child process: the one that runs the model does without MLIR.

MLIR takes 60 MB, which a process does not give back.
"""

from __future__ import annotations

from typing import Any

from ..compiler.lowering import bytecode_of
from ..errors import Place
from ..isolation.child import ReportStep
from ..weights.sources import open_weights
from .configuration import Configuration
from .interface import Shape
from .module import write_module


def program(
    arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep
) -> tuple[None, list[bytes]]:
    """Write the program of the file ``path`` for ``context`` tokens, as bytecode."""
    del blobs
    steps("write the program")
    source = open_weights(arguments["path"], lists=False)
    tensors = source.theta.flatten()
    configuration = Configuration.of(source.properties, tensors, Place(arguments["path"]))
    shape = Shape.of_context(arguments["context"])
    return None, [bytecode_of(write_module(configuration, tensors, shape))]
