"""Programs of a parametrized test as functions of one module.

IREE's compiler takes longer to start than to compile a small function, so the cases of a test are
compiled together. Each still fails alone: where the module is refused, each program is compiled by
itself when it is asked for, and only the case that is to blame gets the error. Programs of cases
that the short suite leaves out are left out too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.core._mlir import ir
from subquant.errors import SubquantError
from subquant.runtime import Device, Executable, Function

requested: set[Hashable] = set()
"""Parameters of the tests that run, by `conftest.pytest_collection_modifyitems`."""


class Together:
    """Programs that are compiled as one module, when the first of them is asked for.

    Each text has the public function ``@main``. Passes can prepare the module; options are those of
    `CompileOptions`.
    """

    def __init__(
        self,
        programs: Mapping[str, str],
        prepare: Callable[[str], str | ir.Module] = str,
        **options: Any,
    ) -> None:
        self._programs = dict(programs)
        self._numbers = {name: number for number, name in enumerate(self._programs)}
        self._prepare = prepare
        self._options = options
        self._compiled: dict[tuple[tuple[str, ...], str | None], bytes | SubquantError] = {}

    def function(self, name: str, device: Device) -> Function:
        """Load one of the programs on a device, or raise the `SubquantError` of this program."""
        names = tuple(each for each in self._programs if each in requested)
        try:
            data = self._bytes(names, device) if name in names else self.executable(device)
        except SubquantError:
            data = self._bytes((name,), device)
        return Executable(data, device)[f"program_{self._numbers[name]}"]

    def executable(self, device: Device) -> bytes:
        """Compile all programs for a device, or raise the `SubquantError` of the first refused."""
        return self._bytes(tuple(self._programs), device)

    def _bytes(self, names: tuple[str, ...], device: Device) -> bytes:
        """Some programs as one module, compiled once for a kind of device."""
        target = device.vulkan_target if device.is_vulkan else None
        key = names, target
        if key not in self._compiled:
            options = dict(self._options)
            if target is not None:
                options |= {"target": "vulkan", "vulkan_target": target}
            text = "\n".join(self._renamed(each) for each in names)
            try:
                module = self._prepare(text)
                self._compiled[key] = compile_to_bytes(module, CompileOptions(**options))
            except SubquantError as error:
                self._compiled[key] = error
        result = self._compiled[key]
        if isinstance(result, SubquantError):
            raise result
        return result

    def _renamed(self, name: str) -> str:
        text, number = self._programs[name].strip(), self._numbers[name]
        aliases, start, inside = text.partition("module {\n")
        if start and not _ALIAS.sub("", aliases).strip():  # and not a module inside another text
            text = aliases + inside.removesuffix("}")
        for alias in _ALIAS.findall(text):
            text = re.sub(rf"{alias}\b", f"{alias}_{number}", text)
        for symbol in {*_SYMBOL.findall(text)} - {"main"}:
            text = re.sub(rf"@{symbol}\b", f"@{symbol}_{number}", text)
        return re.sub(r"@main\b", f"@program_{number}", text)


_ALIAS = re.compile(r"^([#!]\w+) = .*$", re.MULTILINE)
_SYMBOL = re.compile(r"func\.func (?:private |public )?@(\w+)")
