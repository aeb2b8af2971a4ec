"""Calls of other runtimes in a child process, with arrays as JSON and bytes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import CompilerError, EnvironmentProblem, Place
from ..isolation.client import ChildEnded, call
from ..isolation.limits import Limits
from ..numerics.element_types import Array


def encode_arrays(arrays: Iterable[Array]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the dtypes and shapes of arrays as JSON, and their elements."""
    contiguous = [np.ascontiguousarray(array) for array in arrays]
    types = [{"dtype": array.dtype.name, "shape": array.shape} for array in contiguous]
    return types, [array.tobytes() for array in contiguous]


def decode_arrays(types: Sequence[dict[str, Any]], blobs: Sequence[bytes]) -> list[Array]:
    """Return the arrays that `encode_arrays` encoded."""
    return [
        np.frombuffer(blob, each["dtype"]).reshape(each["shape"])
        for each, blob in zip(types, blobs, strict=True)
    ]


def call_runtime(
    runtime: str,
    function: str,
    requirement: str,
    file: str,
    arguments: Mapping[str, Any],
    blobs: Sequence[bytes],
    limits: Limits | None,
) -> tuple[Any, list[bytes]]:
    """Call a function that computes with another runtime, in a child process.

    Args:
        runtime, file: the names of the runtime and of the model, for errors.
        function: ``subquant.module:name``; it returns a text if the runtime refuses the model.
        requirement: the package to install.
        arguments, blobs: arguments of the function.
        limits: limits of the child process.

    Raises:
        EnvironmentProblem: the runtime is not installed.
        CompilerError: the runtime refuses the model, or crashed.
    """
    package = requirement.partition("==")[0].replace("-", "_")
    if importlib.util.find_spec(package) is None:
        raise EnvironmentProblem(
            f"{runtime}, to compare with, is not installed; run: pip install {requirement}"
        )
    try:
        value, results = call(function, arguments, blobs, limits=limits)
    except ChildEnded as ended:
        message = f"{runtime} crashed on the model ({ended.cause})"
        raise CompilerError(message, Place(file)) from None
    if isinstance(value, str):
        raise CompilerError(f"{runtime} refuses the model: {value}", Place(file))
    return value, results
