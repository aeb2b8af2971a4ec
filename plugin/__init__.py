"""Compile quantized MLIR programs to IREE executables, and run them.

>>> import subquant
>>> executable = subquant.compile("model.mlir")            # doctest: +SKIP
>>> y = executable.main(x)                                 # doctest: +SKIP

The errors are listed in `subquant.errors`; all are subclasses of `SubquantError`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch.run import CompiledModel, compile_many
    from .calibration.networks.quantization import quantize_network
    from .compiler.compile_options import CompileOptions
    from .compiler.mlir_client import Source
    from .compiler.targets import Target
    from .errors import Remark, SubquantError
    from .isolation.limits import Limits
    from .numerics.casts import dequantize, quantize
    from .numerics.parameters import ExpressedType, QuantizationParameters, StorageType
    from .runtime import Device, DeviceArray, Executable

__all__ = [
    "CompileOptions",
    "CompiledModel",
    "Device",
    "DeviceArray",
    "Executable",
    "ExpressedType",
    "Limits",
    "QuantizationParameters",
    "StorageType",
    "SubquantError",
    "compile",
    "compile_many",
    "dequantize",
    "load",
    "quantize",
    "quantize_network",
]

__version__ = "0.1.0"

_MODULES = {
    "CompileOptions": "compiler.compile_options",
    "CompiledModel": "batch.run",
    "Device": "runtime",
    "DeviceArray": "runtime",
    "Executable": "runtime",
    "ExpressedType": "numerics.parameters",
    "Limits": "isolation.limits",
    "QuantizationParameters": "numerics.parameters",
    "StorageType": "numerics.parameters",
    "SubquantError": "errors",
    "compile_many": "batch.run",
    "dequantize": "numerics.casts",
    "quantize": "numerics.casts",
    "quantize_network": "calibration.networks.quantization",
}

if not TYPE_CHECKING:  # type checkers know the names from above, and no others

    def __getattr__(name: str) -> Any:
        """Import a name when it is first used: ``subquant --help`` needs no NumPy."""
        if name in _MODULES:
            return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
        raise AttributeError(f"module 'subquant' has no attribute '{name}'")


def compile(
    source: Source,
    *,
    target: Target = "llvm-cpu",
    device: Device | str | None = None,
    cache: str | os.PathLike[str] | None = None,
    parameters: Mapping[str, str | os.PathLike[str]] | None = None,
    weights: Mapping[str, str | os.PathLike[str]] | None = None,
    archive: str | os.PathLike[str] | None = None,
    on_remark: Callable[[Remark], object] | None = None,
    threads: int | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> Executable:
    """Compile a module and load it.

    Args:
        source: a path, MLIR text, bytecode, or a module.
        target: ``llvm-cpu`` or ``vulkan``.
        device: the device to run on; by default the first device of the target. For Vulkan the
            device description depends on its features, unless ``vulkan_target`` is given.
        cache: the folder of the compilation cache.
        parameters: parameter archives (``.irpa``) by scope, used unchanged.
        weights: files of weights (``.irpa``, ``.gguf`` and other inputs of ``subquant import``) by
            scope, which are prepacked for the kernels that read them, and written to `archive`.
        archive: the ``.irpa`` file for these weights, which the executable maps;
            ``subquant.load(path, parameters={"model": archive})`` uses it again.
        on_remark: called with the remarks of the option ``explain``, such as `print`.
        threads: the number of CPU threads, as for a `Device`.
        limits: limits of time and memory for the child process that lowers the module.
        **options: further fields of `CompileOptions`.

    Returns:
        An executable; call its functions with arrays: ``executable.main(x)``.

    Raises:
        SubquantError: the input is wrong or not supported (with its location), IREE failed, or
            there is no device.
    """
    from .isolation.client import start_child

    if not (cache or os.environ.get("SUBQUANT_CACHE")):  # a cache hit needs no child
        start_child()  # the child imports MLIR while the runtime is imported here
    from .compiler.compilation import compile_to_bytes
    from .compiler.compile_options import CompileOptions
    from .runtime import Device, Executable

    CompileOptions(target=target, **options)  # wrong options are said before a device is missing
    where = Device.of(device or target, threads)
    if target == "vulkan":
        options.setdefault("vulkan_target", where.vulkan_target)
    choices = CompileOptions(target=target, **options)
    data = compile_to_bytes(
        source,
        choices,
        cache=cache,
        on_remark=on_remark,
        parameters=archive,
        weights=weights,
        limits=limits,
    )
    if archive is not None:
        parameters = {**(parameters or {}), "model": archive}
    return Executable(data, where, parameters)


def load(
    path: str | os.PathLike[str],
    device: Device | str = "llvm-cpu",
    *,
    parameters: Mapping[str, str | os.PathLike[str]] | None = None,
    threads: int | None = None,
) -> Executable:
    """Load an executable that ``subquant compile`` wrote.

    Args:
        path: the ``.vmfb`` file.
        device: a `Device` or its name.
        parameters: parameter archives (``.irpa``) by scope.
        threads: the number of CPU threads, as for a `Device`.

    Raises:
        SubquantError: as `subquant.runtime.Executable`.
    """
    from .runtime import Executable

    return Executable(path, device, parameters, threads=threads)
