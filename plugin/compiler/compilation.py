"""Compile a module with quantized types to an IREE executable.

The module is parsed, verified and lowered in a child process (`worker`); IREE's compiler then runs
as a process of its own on the bytecode. Everything that subquant asks of IREE, and every way around
what IREE 3.13 does not do, is in `options`, `targets`, `iree` or a pass of the pipeline.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InputError, Remark, SubquantError, UsageError
from ..isolation.limits import Limits
from . import mlir_client
from .cache import Cache, CompileResult, description
from .compile_options import CompileOptions, Emit
from .iree_driver import compile_worker_program, is_by_session, run_iree
from .keys import Key, key_of_bytecode, key_of_source
from .mlir_client import Input, LoweredModule, Source, input_of, signatures_of
from .store_files import PinnedBlob
from .target_features import recorded_features

if TYPE_CHECKING:
    from ..signature import Signature

__all__ = ["Progress", "compile_to_bytes"]

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
) -> bytes:
    """Compile a module.

    Args:
        source: as for `subquant.compiler.reading.read_module`. A module that is parsed already is
            handed over as bytecode, and left as it is.
        options: what to compile for.
        emit: ``vmfb`` for an executable; ``mlir`` or ``mlirbc`` to stop before IREE.
        cache: a folder that keeps what compilations give, as `subquant.compiler.cache` says; by
            default the environment variable ``SUBQUANT_CACHE``, and none if that is not set; ""
            for none.
        reproducer: where to write the module if MLIR crashes or IREE fails (default:
            ``subquant.reproducer.mlir`` in the current folder).
        progress: called with a line about each step.
        check: called with the signatures of the public functions before IREE's compiler runs; what
            it raises ends the compilation.
        on_remark: called with what `CompileOptions.explain` asks for.
        parameters: a file (``.irpa``) that constants of 1 KiB and more go to, which the executable
            then takes as the parameters of scope ``model``.
        weights: files of weights (``.irpa``, ``.gguf`` and what else ``subquant import`` reads) by
            the scope of their parameters in the module. The compilation lays them out for the
            kernels that read them, and writes them, with those that are read as they are, to
            `parameters`, which the executable takes in place of all of them: it maps that file and
            copies nothing. A parameter that was made for other kernels has another name, and an
            executable that does not find it is not loaded.
        limits: of the process that parses and lowers.

    Returns:
        The executable, text or bytecode.

    Raises:
        SubquantError: the input is wrong or not supported (with its place), or IREE failed.
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
        progress or (lambda step: None), check, on_remark, parameters, weights, limits,
    )  # fmt: skip
    folder = os.environ.get("SUBQUANT_CACHE") if cache is None else cache
    if emit != "vmfb":
        return work.lower().data
    if not folder:
        return work.run_iree(work.lower())
    return work.in_cache(Cache(folder, work.notify))


@dataclass(frozen=True)
class _Compilation:
    """What `compile_to_bytes` is called with."""

    given: Input
    options: CompileOptions
    emit: Emit
    reproducer: str | os.PathLike[str] | None
    notify: Progress
    check: Callable[[Mapping[str, Signature]], object] | None
    on_remark: Callable[[Remark], object] | None
    parameters: str | os.PathLike[str] | None
    weights: Mapping[str, str | os.PathLike[str]] | None
    limits: Limits | None

    def lower(self) -> LoweredModule:
        is_whole = self.emit == "vmfb"
        lowered = mlir_client.lower(
            self.given,
            self.options,
            self.emit,
            cpu_features=recorded_features(self.options) if is_whole else "",
            parameters=self.parameters,
            weights=self.weights,
            reproducer=self.reproducer,
            progress=self.notify,
            limits=self.limits,
        )
        if is_whole and not lowered.is_runnable:
            self._say(lowered.remarks)
            raise InputError(
                "the module has no public function with a body; there is nothing to run"
            )
        self._tell(lowered.remarks, lowered.signature_texts)
        return lowered

    def run_iree(self, lowered: LoweredModule, cache: Cache | None = None) -> bytes:
        self.notify("iree-compile")
        is_for_cpu = self.options.target == "llvm-cpu"
        team = is_for_cpu and lowered.gains_by_threads and is_by_session(self.options)
        threads = self._threads(cache) if team and cache is not None else b""
        try:
            return run_iree(
                lowered.data,
                self.options,
                self.reproducer,
                peels_loops=lowered.peels_loops,
                team=team,
                threads=threads,
            )
        except SubquantError as error:
            raise error.in_file(self.given.file) from None

    def _threads(self, cache: Cache) -> bytes:
        """The program of a team's threads, which most compilations with a cache find there."""
        key = key_of_bytecode(b"", self.options, cache)
        program = cache.find_lowered(key)
        if program is None:
            program = compile_worker_program(self.options)
            about = description("threads of a team", "", self.options)
            with contextlib.suppress(InputError, OSError):  # as in `_make`
                cache.add_lowered(key, program, about)
        return program

    def in_cache(self, cache: Cache) -> bytes:
        """Find the result, or make it and keep it."""
        key = key_of_source(
            self.given,
            self.options,
            parameters=self.parameters is not None,
            weights=self.weights,
            memo=cache,
        )
        made = cache.find(key.text)
        if made is None:
            waits = "wait for the same compilation elsewhere"
            with cache.reserved(key.text, lambda: self.notify(waits)):
                made = cache.find(key.text)
                if made is None:
                    return self._make(cache, key)
        self._tell(made.remarks, made.signature_texts)
        if made.parameters is not None and self.parameters is not None:
            with made.parameters as archive:
                _copy(archive, self.parameters)
        self.notify("cached")
        return made.executable

    def _make(self, cache: Cache, key: Key) -> bytes:
        lowered = self.lower()
        lowered_key = key_of_bytecode(lowered.data, self.options, cache)
        executable = cache.find_lowered(lowered_key)
        if executable is None:
            executable = self.run_iree(lowered, cache)
        else:
            self.notify("cached")
        if key.is_valid:
            made = CompileResult(executable, lowered.signature_texts, lowered.remarks)
            about = description("program", self.given.file, self.options)
            with contextlib.suppress(InputError, OSError):  # what cannot be written is no cache
                cache.add(key.text, made, about, parameters=self.parameters, lowered=lowered_key)
        return executable

    def _tell(self, remarks: Iterable[Remark], signature_texts: Mapping[str, str]) -> None:
        self._say(remarks)
        if self.check is not None and self.emit == "vmfb":
            self.check(signatures_of(signature_texts))

    def _say(self, remarks: Iterable[Remark]) -> None:
        if self.on_remark is not None:
            for remark in remarks:
                self.on_remark(remark.in_file(self.given.file))


def _copy(archive: PinnedBlob, path: str | os.PathLike[str]) -> None:
    try:
        archive.copy_to(path)
    except OSError as error:
        raise InputError(f"cannot write '{os.fspath(path)}': {error.strerror or error}") from None
