"""Programs that are compiled for a device, and run there.

The fixture ``device`` of a test that is parametrized `ON_DEVICES` is the device of the fixture that
``device_name`` names.

A test's program is compiled with those of the tests around it, as one module
(`together.Together`): those tests are called too, as far as `run`, which then says only what the
program is.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
import pytest

from subquant.runtime import Device
from together import Together

ON_DEVICES = pytest.mark.parametrize(
    "device_name", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]
)

_TOGETHER = 8
"""Tests whose programs are one module, of those of a file on a device."""

_running: list[pytest.Item] = []
_is_asked = False


class _Program(BaseException):
    """What a test runs first."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


def run(text: str, device: Device, *arguments: np.ndarray) -> Any:
    """Compile a program, and return what ``main`` returns: an array, or several."""
    if _is_asked:
        raise _Program(text)
    texts = _texts_around(text, device)
    return _together(tuple(dict.fromkeys(texts))).function(text, device)(*arguments)


def starts(item: pytest.Item) -> None:
    """Be told of each test before it runs."""
    _running[:] = [item]


@functools.cache
def _together(texts: tuple[str, ...]) -> Together:
    return Together({text: text for text in texts})


def _texts_around(text: str, device: Device) -> list[str]:
    """The programs of some tests of a file on a device, one of which is that of the test."""
    item = _running[0]
    tests = [
        each
        for each in item.session.items
        if each.path == item.path and _device_of(each) == _device_of(item)
    ]
    place = tests.index(item) // _TOGETHER * _TOGETHER
    texts = [_text_of(each, device) for each in tests[place : place + _TOGETHER]]
    return [each for each in texts if each is not None] if text in texts else [text]


_NAMES = ("cpu", "vulkan", "vulkan_32bit")
_OTHERS = frozenset(("Executable", "compile_to_bytes", "subprocess", "subquant"))
"""What a test does that has more to do than to run a program."""


@functools.cache
def _arguments_of(item: pytest.Item) -> dict[str, Any] | None:
    """What a test is called with, but for devices; None for one that is not asked."""
    function = getattr(item, "function", None)
    code = getattr(function, "__code__", None)
    if code is None or "run" not in code.co_names or not _OTHERS.isdisjoint(code.co_names):
        return None
    given = item.callspec.params if hasattr(item, "callspec") else {}
    wanted = inspect.signature(function).parameters
    if any(name not in given and name not in (*_NAMES, "device") for name in wanted):
        return None
    return {name: given.get(name) for name in wanted}


@functools.cache
def _device_of(item: pytest.Item) -> str | None:
    """The name of the fixture of the device that a test runs a program on."""
    arguments = _arguments_of(item)
    if arguments is None:
        return None
    [name] = {arguments.get("device_name"), *(each for each in _NAMES if each in arguments)} - {
        None
    }
    return str(name)


@functools.cache
def _text_of(item: pytest.Item, device: Device) -> str | None:
    """The program of a test, if it runs one."""
    global _is_asked
    arguments = dict(_arguments_of(item) or {})
    arguments |= {name: device for name in (*_NAMES, "device") if name in arguments}
    _is_asked = True
    try:
        item.function(**arguments)
    except _Program as program:
        return program.text
    except (Exception, pytest.skip.Exception):
        return None  # its own run says what is wrong
    finally:
        _is_asked = False
    return None
