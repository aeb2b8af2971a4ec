"""Runtime: executables on a CPU or a Vulkan device, with arrays in and out; see README.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bound_calls import BoundCall
    from .device import Device, list_devices
    from .device_arrays import DeviceArray
    from .executable import Executable
    from .function import Function
    from .vm_modules import read_signatures

__all__ = [
    "BoundCall", "Device", "DeviceArray", "Executable", "Function", "list_devices",
    "read_signatures"
]  # fmt: skip

_MODULES = {
    "BoundCall": "bound_calls",
    "Device": "device",
    "DeviceArray": "device_arrays",
    "Executable": "executable",
    "Function": "function",
    "list_devices": "device",
    "read_signatures": "vm_modules",
}

if not TYPE_CHECKING:  # type checkers know the names from above, and no others

    def __getattr__(name: str) -> Any:
        """Import a name when it is first used: `descriptions` needs no NumPy."""
        if name in _MODULES:
            return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
