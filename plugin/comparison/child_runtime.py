"""Other runtimes, asked in a child process, and arrays as what is handed over."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import CompilerError, EnvironmentProblem, Place
from ..isolation.client import ChildEnded, call
from ..isolation.limits import Limits
from ..numerics.element_types import Array

__all__ = ["arrays_of", "ask", "described"]


def described(arrays: Iterable[Array]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The dtypes and shapes of arrays as JSON, and their elements."""
    whole = [np.ascontiguousarray(array) for array in arrays]
    types = [{"dtype": array.dtype.name, "shape": array.shape} for array in whole]
    return types, [array.tobytes() for array in whole]


def arrays_of(types: Sequence[dict[str, Any]], blobs: Sequence[bytes]) -> list[Array]:
    """The arrays of `described`."""
    return [
        np.frombuffer(blob, each["dtype"]).reshape(each["shape"])
        for each, blob in zip(types, blobs, strict=True)
    ]


def ask(
    runtime: str,
    function: str,
    requirement: str,
    file: str,
    arguments: Mapping[str, Any],
    blobs: Sequence[bytes],
    limits: Limits | None,
) -> tuple[Any, list[bytes]]:
    """Call a function that computes with another runtime, in a child.

    Args:
        runtime: its name, for errors.
        function: ``subquant.module:name``; a text as its value is what the runtime says where it
            refuses the model.
        requirement: what to install, which begins with the name of the package.
        file: the model's name, for errors.
        arguments, blobs: of the function.
        limits: of the child process.

    Raises:
        EnvironmentProblem: the runtime is not installed.
        CompilerError: it refuses the model, or crashed.
    """
    package = requirement.partition("==")[0].replace("-", "_")
    if importlib.util.find_spec(package) is None:
        raise EnvironmentProblem(
            f"{runtime}, to compare with, is not installed; run: pip install {requirement}"
        )
    try:
        value, found = call(function, arguments, blobs, limits=limits)
    except ChildEnded as ended:
        message = f"{runtime} crashed on the model ({ended.cause})"
        raise CompilerError(message, Place(file)) from None
    if isinstance(value, str):
        raise CompilerError(f"{runtime} refuses the model: {value}", Place(file))
    return value, found
