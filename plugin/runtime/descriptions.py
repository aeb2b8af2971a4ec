"""Descriptions of executables, read in a child process, without NumPy or IREE in this one."""

from __future__ import annotations

import os
from typing import Any

from ..core.files import read_input
from ..errors import InputError
from ..isolation.client import ChildEnded, call


def describe_executable(path: str | os.PathLike[str]) -> dict[str, dict[str, list[str]]]:
    """Return the types of ``inputs`` and ``outputs`` of an executable's functions, as text."""
    described: dict[str, dict[str, list[str]]] = inspect_in_child(path, "description_in_child")
    return described


def inspect_in_child(path: str | os.PathLike[str], function: str) -> Any:
    """Call a function of `vm_modules` in a child: IREE reads damaged files beyond their ends."""
    name, data = os.fspath(path), read_input(path)
    try:
        answer, _ = call(f"{__package__}.vm_modules:{function}", {"name": name}, [data])
    except ChildEnded as ended:
        raise InputError(
            f"'{name}' is damaged: IREE's runtime crashed while it read the file ({ended.cause}); "
            "compile the module again"
        ) from None
    return answer
