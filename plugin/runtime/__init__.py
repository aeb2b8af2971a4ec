"""Run what was compiled, with arrays in and out.

`executable` runs with IREE on a `device` what `vm_modules` loads: `marshalling` hands arguments and
results over to an `open_device`, where they stay as `device_arrays` on request. `interpreter`
evaluates a module with StableHLO's reference interpreter, in a process of its own (`evaluation`).
Both check and convert `arguments` in one way. `streaming` calls a function of either once for each
slice of its inputs.
"""

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
    "BoundCall",
    "Device",
    "DeviceArray",
    "Executable",
    "Function",
    "list_devices",
    "read_signatures",
]

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
