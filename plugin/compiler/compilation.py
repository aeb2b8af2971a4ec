"""Compilation of a module with quantized types to an IREE executable.

A child process parses, verifies and lowers the module (`mlir_client`); IREE's compiler then runs as
a process of its own on the bytecode. All flags of IREE, and all workarounds for IREE 3.13, are in
`compile_options`, `targets`, `iree_driver` or a pass of the pipeline.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.files import writing
from ..errors import InputError, Remark, SubquantError, UsageError
from ..isolation.limits import Limits
from . import mlir_client
from .cache import Cache, CompileResult, cache_of_environment, description
from .compile_options import CompileOptions, Emit
from .ir_printing import NO_PRINTING, IRPrinting
from .iree_driver import (
    check_vulkan_target,
    compile_worker_program,
    recorded_features,
    run_iree,
    uses_session,
)
from .keys import Key, key_of_bytecode, key_of_source
from .mlir_client import Input, LoweredModule, Source, input_of, signatures_of

if TYPE_CHECKING:
    from ..signature import Signature

Progress = Callable[[str], None]


def compile_to_bytes(
    source: Source | Input,
    options: CompileOptions | None = None,
    *,
    emit: Emit = "vmfb",
    cache: str | os.PathLike[str] | None = None,
    reproducer: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    check: Callable[[Mapping[str, Signature]], object] | None = None,
    on_remark: Callable[[Remark], object] | None = None,
    parameters: str | os.PathLike[str] | None = None,
    weights: Mapping[str, str | os.PathLike[str]] | None = None,
    limits: Limits | None = None,
    printing: IRPrinting = NO_PRINTING,
) -> bytes:
    """Compile a module.

    Args:
        source: as for `subquant.compiler.mlir_client.input_of`; a parsed module is not changed.
        options: options of the compilation.
        emit: ``vmfb`` for an executable; ``mlir`` or ``mlirbc`` to stop before IREE.
        cache: the folder of the cache (`subquant.compiler.cache`); by default that of the
            environment variable ``SUBQUANT_CACHE``, if it is set and not off; "" for no cache.
        reproducer: the file for the module if MLIR crashes or IREE fails (default:
            ``subquant.reproducer.mlir`` in the current folder).
        progress: called with a line about each step.
        check: called with the signatures of the public functions before IREE's compiler runs; its
            exceptions end the compilation.
        on_remark: called with the remarks of `CompileOptions.explain`.
        parameters: a file (``.irpa``) for constants of 1 KiB and more, which the executable then
            takes as the parameters of scope ``model``.
        weights: files of weights (``.irpa``, ``.gguf`` and other inputs of ``subquant import``) by
            the scope of their parameters in the module. The compilation prepacks them for the
            kernels that read them, and writes all of them to `parameters`, which the executable
            takes in their place: it maps that file and copies nothing. A parameter that is packed
            for other kernels has another name, and an executable that lacks it is not loaded.
        limits: limits of the child process.
        printing: the passes after which the module is printed, which no cache then replaces, and
            the form of text.

    Returns:
        The executable, text or bytecode.

    Raises:
        SubquantError: the input is wrong or not supported (with its location), or IREE failed.
    """
    if weights and parameters is None:
        raise UsageError("weights are given, and no file of parameters that they are written to")
    for path in (weights or {}).values():
        if parameters is not None and os.path.realpath(path) == os.path.realpath(parameters):
            raise UsageError(
                f"the parameters would be written to '{os.fspath(parameters)}', which they are "
                "read from; give another file"
            )
    work = _Compilation(
        input_of(source), options or CompileOptions(), emit, reproducer,
        progress or (lambda step: None), check, on_remark, parameters, weights, limits, printing,
    )  # fmt: skip
    folder = cache_of_environment() if cache is None else cache
    if emit != "vmfb":
        check_vulkan_target(work.options)
        return work.lower().data
    if not folder or printing.selects_passes:
        return work.run_iree(work.lower())
    return work.in_cache(Cache(folder, work.notify))


@dataclass(frozen=True)
class _Compilation:
    """The arguments of `compile_to_bytes`."""

    module: Input
    options: CompileOptions
    emit: Emit
    reproducer: str | os.PathLike[str] | None
    notify: Progress
    check: Callable[[Mapping[str, Signature]], object] | None
    on_remark: Callable[[Remark], object] | None
    parameters: str | os.PathLike[str] | None
    weights: Mapping[str, str | os.PathLike[str]] | None
    limits: Limits | None
    printing: IRPrinting

    def lower(self) -> LoweredModule:
        is_whole = self.emit == "vmfb"
        lowered = mlir_client.lower(
            self.module,
            self.options,
            self.emit,
            cpu_features=recorded_features(self.options) if is_whole else "",
            parameters=self.parameters,
            weights=self.weights,
            reproducer=self.reproducer,
            progress=self.notify,
            limits=self.limits,
            printing=self.printing,
        )
        if is_whole and not lowered.is_runnable:
            self._report_remarks(lowered.remarks)
            raise InputError(
                "the module has no public function with a body; there is nothing to run"
            )
        self._report(lowered.remarks, lowered.signature_texts)
        return lowered

    def run_iree(self, lowered: LoweredModule, cache: Cache | None = None) -> bytes:
        self.notify("iree-compile")
        is_for_cpu = self.options.target == "llvm-cpu"
        with_workers = is_for_cpu and lowered.gains_from_threads and uses_session(self.options)
        program = self._worker_program(cache) if with_workers and cache is not None else b""
        try:
            return run_iree(
                lowered.data,
                self.options,
                self.reproducer,
                peels_loops=lowered.peels_loops,
                hoists_constants=lowered.hoists_constants,
                with_workers=with_workers,
                worker_program=program,
            )
        except SubquantError as error:
            raise error.in_file(self.module.file) from None

    def _worker_program(self, cache: Cache) -> bytes:
        """Return the program of the workers, which most compilations with a cache find there."""
        key = key_of_bytecode(b"", self.options, cache)
        program = cache.find_lowered(key)
        if program is None:
            program = compile_worker_program(self.options)
            about = description("worker pool program", "", self.options)
            with contextlib.suppress(InputError, OSError):  # as in `_compute`
                cache.add_lowered(key, program, about)
        return program

    def in_cache(self, cache: Cache) -> bytes:
        """Return the executable from the cache, or compile it and write it to the cache."""
        key = key_of_source(
            self.module,
            self.options,
            parameters=self.parameters is not None,
            weights=self.weights,
            memo=cache,
        )
        with cache.found_or_reserved(key.text, self.notify) as result:
            if result is None:
                return self._compute(cache, key)
        self._report(result.remarks, result.signature_texts)
        if result.parameters is not None and self.parameters is not None:
            with contextlib.closing(result.parameters) as archive, writing(self.parameters):
                archive.copy_to(self.parameters)
        self.notify("cached")
        return result.executable

    def _compute(self, cache: Cache, key: Key) -> bytes:
        lowered = self.lower()
        lowered_key = key_of_bytecode(lowered.data, self.options, cache)
        executable = cache.find_lowered(lowered_key)
        if executable is None:
            executable = self.run_iree(lowered, cache)
        else:
            self.notify("cached")
        if key.is_valid:
            result = CompileResult(executable, lowered.signature_texts, lowered.remarks)
            about = description("program", self.module.file, self.options)
            with contextlib.suppress(InputError, OSError):  # a read-only cache is no error
                cache.add(key.text, result, about, parameters=self.parameters, lowered=lowered_key)
        return executable

    def _report(self, remarks: Iterable[Remark], signature_texts: Mapping[str, str]) -> None:
        self._report_remarks(remarks)
        if self.check is not None and self.emit == "vmfb":
            self.check(signatures_of(signature_texts))

    def _report_remarks(self, remarks: Iterable[Remark]) -> None:
        if self.on_remark is not None:
            for remark in remarks:
                self.on_remark(remark.in_file(self.module.file))
