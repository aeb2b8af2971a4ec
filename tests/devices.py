"""Programs that are compiled for a device, and run there.

The fixture ``device`` of a test that is parametrized `ON_DEVICES` is the device of the fixture that
``device_name`` names.

A test's program is compiled with those of the tests around it that have the same options, as one
module (`together.Together`): those tests are called too, as far as `run` or `main_of`, which then
has only the program.
"""

from __future__ import annotations

import functools
import inspect
import sys
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from subquant import compile
from subquant.core._mlir import ir
from subquant.runtime import Device, Executable, Function
from together import Together

ON_DEVICES = pytest.mark.parametrize(
    "device_name", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]
)
ON_VULKAN = pytest.mark.parametrize("device_name", ["vulkan", "vulkan_32bit"])

_TOGETHER = 8
"""Programs that are one module."""
_AROUND = 40
"""Tests of a file on a device that are asked for theirs."""

_TESTS = Path(__file__).parent

_running: list[pytest.Item] = []
_is_asked = False


class _Asked(BaseException):
    """The first compilation of a test."""

    def __init__(self, text: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.program = text, tuple(sorted(options.items()))


_Program: TypeAlias = "tuple[str, tuple[tuple[str, Any], ...]]"
"""The text, and the options of its compilation."""


def run(text: str, device: Device, *arguments: np.ndarray) -> Any:
    """Compile a program, and return what ``main`` returns: an array, or several."""
    return main_of(text, device)(*arguments)


def main_of(text: str, device: Device | None = None, **options: Any) -> Function:
    """Return ``main`` of a program compiled as by `compile_for`, by default for the CPU."""
    requested = _Asked(text, options)
    if _is_asked:
        raise requested
    device = _cpu() if device is None else device
    texts = _texts_around(requested.program, device)
    return _together(tuple(texts), requested.program[1]).function(text, device)


def compile_for(source: str | bytes | ir.Module, device: Device, **options: Any) -> Executable:
    """Compile a program by itself for a device, with options as `CompileOptions` but the target."""
    target: Any = "vulkan" if device.is_vulkan else "llvm-cpu"
    return compile(source, target=target, device=device, **options)


@functools.cache
def _cpu() -> Device:
    return Device("llvm-cpu")


def starts(item: pytest.Item) -> None:
    """Be told of each test before it runs."""
    _running[:] = [item]


@functools.cache
def _together(texts: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> Together:
    return Together({text: text for text in texts}, **dict(options))


def _texts_around(program: _Program, device: Device) -> list[str]:
    """The programs with the same options of some tests of a file on a device: one is the test's."""
    item = _running[0]
    tests = [
        each
        for each in item.session.items
        if each.path == item.path and _device_of(each) == _device_of(item)
    ]
    start = tests.index(item) // _AROUND * _AROUND
    margin = [_program_of(each, device) for each in tests[start : start + _AROUND]]
    text, options = program
    texts = [*dict.fromkeys(each[0] for each in margin if each is not None and each[1] == options)]
    if text not in texts:
        return [text]
    position = texts.index(text) // _TOGETHER * _TOGETHER
    return texts[position : position + _TOGETHER]


_NAMES = ("cpu", "vulkan", "vulkan_32bit")
_OTHERS = frozenset(("Executable", "compile_to_bytes", "subprocess", "subquant"))
"""Body of a test that does more than to run a program."""


_DEPTH = 3
"""Functions that call one another, of which the last compiles."""


@functools.cache
def _compiles(function: Any, depth: int = _DEPTH) -> bool:
    """True if a function of a test compiles by `run` or `main_of`, or calls one that does."""
    code = function.__code__
    if depth == 0 or Path(code.co_filename).parent != _TESTS:
        return False
    actual = [function.__globals__.get(name) for name in code.co_names]
    if any(each is sys.modules[__name__] for each in actual):
        actual += [globals().get(name) for name in code.co_names]
    return any(
        each in (run, main_of) or _compiles(each, depth - 1)
        for each in actual
        if inspect.isfunction(each)
    )


def compiles(item: pytest.Item) -> bool:
    """True for a test that compiles by `run` or `main_of`."""
    test = getattr(item, "function", None)
    return inspect.isfunction(test) and _compiles(test)


@functools.cache
def _arguments_of(item: pytest.Item) -> dict[str, Any] | None:
    """Return the arguments of a test without devices; None for a test that is not collected."""
    if not compiles(item):
        return None
    test = item.function  # type: ignore[attr-defined]
    if not _OTHERS.isdisjoint(test.__code__.co_names):
        return None
    arguments = item.callspec.params if hasattr(item, "callspec") else {}
    expected = inspect.signature(test).parameters
    if any(name not in arguments and name not in (*_NAMES, "device") for name in expected):
        return None
    return {name: arguments.get(name) for name in expected}


@functools.cache
def _device_of(item: pytest.Item) -> str | None:
    """The fixture of the device that a test compiles for, "" for no fixture; None as there."""
    arguments = _arguments_of(item)
    if arguments is None:
        return None
    if "device" in arguments:
        return str(item.callspec.params["device_name"])  # type: ignore[attr-defined]
    return next((each for each in _NAMES if each in arguments), "")


@functools.cache
def _program_of(item: pytest.Item, device: Device) -> _Program | None:
    """The program of a test, if it compiles one so."""
    global _is_asked
    arguments = dict(_arguments_of(item) or {})
    arguments |= {name: device for name in (*_NAMES, "device") if name in arguments}
    _is_asked = True
    try:
        item.function(**arguments)
    except _Asked as asked:
        return asked.program
    except (Exception, pytest.skip.Exception):
        return None  # its own run reports the error
    finally:
        _is_asked = False
    return None
