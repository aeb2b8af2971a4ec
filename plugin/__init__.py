"""Compile quantized MLIR programs to IREE executables, and run them.

>>> import subquant
>>> executable = subquant.compile("model.mlir")            # doctest: +SKIP
>>> y = executable.main(x)                                 # doctest: +SKIP

The errors are listed in `subquant.errors`; all are subclasses of `SubquantError`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch.run import CompiledModel
    from .compiler.options import CompileOptions, Emit
    from .compiler.targets import Target
    from .compiler.worker import Source
    from .errors import Remark, SubquantError
    from .numerics.casts import dequantize, quantize
    from .numerics.parameters import ExpressedType, QuantizationParameters, StorageType
    from .processes import Limits
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
]

__version__ = "0.1.0"

_PLACES = {
    "CompileOptions": "compiler.options",
    "CompiledModel": "batch.run",
    "Device": "runtime",
    "DeviceArray": "runtime",
    "Executable": "runtime",
    "ExpressedType": "numerics.parameters",
    "Limits": "processes",
    "QuantizationParameters": "numerics.parameters",
    "StorageType": "numerics.parameters",
    "SubquantError": "errors",
    "dequantize": "numerics.casts",
    "quantize": "numerics.casts",
}

if not TYPE_CHECKING:  # type checkers know the names from above, and no others

    def __getattr__(name: str) -> Any:
        """Import a name when it is first used: ``subquant --help`` needs no NumPy."""
        if name in _PLACES:
            return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
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
        device: what to run on; by default the first device of the target. For Vulkan the device
            description is chosen by what the device can do, unless ``vulkan_target`` is given.
        cache: a folder that keeps executables by content.
        parameters: parameter archives (``.irpa``) by scope, as they are.
        weights: files of weights (``.irpa``, ``.gguf`` and what else ``subquant import`` reads) by
            scope, which are laid out for the kernels that read them, and written to `archive`.
        archive: the ``.irpa`` file of these, which the executable maps; ``subquant.load(path,
            parameters={"model": archive})`` takes it again.
        on_remark: called with what the option ``explain`` asks for, such as `print`.
        threads: how many threads of a CPU run it, as for a `Device`.
        limits: how long MLIR may read the module, and how much memory it may take.
        **options: further fields of `CompileOptions`.

    Returns:
        An executable; call its functions with arrays: ``executable.main(x)``.

    Raises:
        SubquantError: the input is wrong or not supported (with its place), IREE failed, or there
            is no device.
    """
    from .processes import prepare

    if not (cache or os.environ.get("SUBQUANT_CACHE")):  # which may have what is asked for
        prepare()  # the child imports MLIR while the runtime is imported here
    from .compiler.compilation import compile_to_bytes
    from .compiler.options import CompileOptions
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


def compile_many(
    sources: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    emit: Emit = "vmfb",
    base: str | os.PathLike[str] | None = None,
    parameters: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    resume: bool = False,
    on_result: Callable[[CompiledModel], object] | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> list[CompiledModel]:
    """Compile models to a folder; one that fails does not stop the others.

    >>> results = subquant.compile_many(["models/**/*.tflite"], "out", resume=True) # doctest: +SKIP
    >>> [each.error for each in results if each.error]                              # doctest: +SKIP

    Args:
        sources: paths, patterns, and lists of them (``@FILE``), as ``subquant compile`` has them.
        output: the folder of the outputs, which mirror the paths of the models.
        emit: ``vmfb`` for executables; ``mlir`` or ``mlirbc`` to stop before IREE.
        base: the folder that outputs are named from; by default the current one.
        parameters: a folder for constants of 1 KiB and more, an ``.irpa`` file for each model.
        jobs: how many models at a time on this machine; by default one a core.
        cluster: the address of a Dask scheduler, whose workers compile in place of this machine.
        resume: leave alone what is up to date: its model, the options and the versions are those
            that it was made with, and it has the bytes that were written.
        on_result: called with what became of each model, in the order in which they end.
        limits: how long MLIR may read a module, and how much memory it may take.
        **options: fields of `CompileOptions`.

    Returns:
        What became of each model, in the order in which they are given: its status, times, size,
        and the error of one that failed, which is not raised.

    Raises:
        SubquantError: wrong options, no such models, two with one output, or no cluster.
    """
    from contextlib import closing

    from .batch.models import find_models, name_outputs
    from .batch.run import Batch
    from .compiler.options import CompileOptions

    choices = CompileOptions(**options)
    paths = find_models([os.fspath(each) for each in sources], output)
    models = name_outputs(paths, output, emit, base)
    batch = Batch(
        models, output, choices, emit=emit, parameters=parameters, resume=resume, limits=limits
    )
    results: dict[str, CompiledModel] = {}
    with closing(batch.run(jobs=jobs, cluster=cluster)) as run:
        for model, result in run:
            results[model.path] = result
            if on_result is not None:
                on_result(result)
    return [results[model.path] for model in models]


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
        threads: how many threads of a CPU run it, as for a `Device`.

    Raises:
        SubquantError: as `subquant.runtime.Executable`.
    """
    from .runtime import Executable

    return Executable(path, device, parameters, threads=threads)
