"""IREE's compiler as a program by itself, with which programs get more than by ``iree-compile``.

``python session.py PACKAGES MODULE EXECUTABLE TEAM FLAG...`` compiles a module with these flags.
``PACKAGES`` is the folder that has IREE's.

There are functions beside the program's: for a CPU those of `subquant.iree_hooks.sync_entries`, for
Vulkan those of `subquant.iree_hooks.async_entries`, where floats are kept as they are, too
(`subquant.iree_hooks.exact_shaders`). With a ``TEAM`` of threads, which share work as
`subquant.iree_hooks.worker_pool` says,

* a function `TEAM` is added, which a runtime calls once with the address of a mailbox;
* where LLVM's dialect is reached, each function of a dispatch, that IREE calls for one workgroup
  after the other, becomes the work of a function around it. That one does the work, or, where
  there is a mailbox, calls what the mailbox has for it: for the first workgroup it does the work of
  all of them together with the team, and nothing for the others;
* the threads' own program is recorded with `TEAM` (`THREADS_KEY`): that of the file ``TEAM``, or,
  where that is `NEW_TEAM`, one that is compiled meanwhile. It is the same for every program of the
  same flags. Without a ``MODULE`` it is compiled, and nothing else.

This file imports nothing of the package, which has another MLIR.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

try:
    from . import worker_pool
    from .async_entries import add_async_entries
    from .exact_shaders import keep_floats
    from .sync_entries import add_sync_entries, operations_in
except ImportError:  # a program by itself
    import worker_pool  # type: ignore[import-not-found, no-redef]
    from async_entries import add_async_entries  # type: ignore[import-not-found, no-redef]
    from exact_shaders import keep_floats  # type: ignore[import-not-found, no-redef]
    from sync_entries import (  # type: ignore[import-not-found, no-redef]
        add_sync_entries,
        operations_in,
    )

__all__ = ["NEW_TEAM"]

NEW_TEAM = "new"
"""In the place of a file: the threads' program is compiled with the other."""
_OF_CPU = "--iree-hal-target-device=local"
"""The flag of programs for a CPU."""
_EXPORT = "hal.executable.export"
"""A dispatch of an executable."""

_Edit = tuple[str, Callable[[Any], None]]
"""A phase of IREE's, and what changes the program there."""
_IDLE_PLUGINS = (
    *("hal_target_cuda", "hal_target_metal_spirv", "hal_target_rocm", "hal_target_vmvx"),
    "input_torch",
)
_IDLE_PLUGINS_FOR_CPU = (*_IDLE_PLUGINS, "hal_target_vulkan_spirv")
"""Parts of IREE's compiler that no program here needs; for constants it needs that for CPUs.

They bring dialects, and IREE prepares each set of patterns for all operations that it knows, which
is most of what it does for a small program.
"""

_GIVEN_FLAGS: list[str] = []
_GIVES_FLAGS = threading.Lock()


class _Failed(Exception):
    """IREE's compiler has said what is wrong."""


def _do_without(*names: str) -> None:
    """Have modules be empty that IREE's bindings import, but need for nothing that is done here.

    With the classes of operations, which are not imported either, they take 0.25 s of CPU time,
    where a small program takes 0.35.
    """
    for name in names:
        sys.modules.setdefault(name, types.ModuleType(name))


def _give(flags: list[str], ctypes_dl: Any) -> None:
    """Give flags to IREE's compiler: some are those of the process, which has one set of them."""
    with _GIVES_FLAGS:
        if not _GIVEN_FLAGS:
            idle = _IDLE_PLUGINS_FOR_CPU if _OF_CPU in flags else _IDLE_PLUGINS
            _GIVEN_FLAGS[:] = ["iree-compile", *(f"--iree-plugin=-{each}" for each in idle), *flags]
            ctypes_dl._initializeGlobalCL(*_GIVEN_FLAGS)


class _Session:
    """IREE's compiler with flags, for one program after the other."""

    def __init__(self, flags: list[str]) -> None:
        _do_without("numpy", "iree.compiler.tools")
        from iree.compiler import api, ir
        from iree.compiler._mlir_libs import _mlir
        from iree.compiler.api import ctypes_dl

        _mlir.globals.dialect_search_modules = []  # no classes of operations
        self._api, self._ir = api, ir
        self._is_for_cpu = _OF_CPU in flags
        self._add_functions = add_sync_entries if self._is_for_cpu else add_async_entries
        _give(flags, ctypes_dl)
        self._session = api.Session()
        # Of IREE's C interface, for which its Python interface has no methods.
        self._compile_from, self._compile_to = (
            getattr(ctypes_dl._dylib, f"ireeCompilerInvocationSetCompile{which}Phase")
            for which in ("From", "To")
        )
        for function in (self._compile_from, self._compile_to):
            function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_char_p], None

    def register_targets(self) -> None:
        """Have LLVM know its targets, before a session of another thread has it learn them.

        IREE adds those of GPUs to LLVM's list where the first passes with executables begin. Two
        threads that do so at once tie it to a ring, in which they then look for a CPU's forever.
        """
        invocation = self._session.invocation()
        invocation.parse_source(self._api.Source.wrap_buffer(self._session, b"module {}\0"))
        self._run(invocation, "executable-sources", "executable-configurations")

    def compile(self, source: Any, output: Any, edits: Iterable[_Edit]) -> None:
        """Compile a program.

        Args:
            source: the program.
            output: where it is written.
            edits: what changes the module where IREE has reached a phase, in their order.
        """
        invocation = self._session.invocation()
        invocation.enable_console_diagnostics()
        if not invocation.parse_source(source):
            raise _Failed
        reached = ""
        for phase, edit in edits:
            self._run(invocation, reached, phase)
            reached = phase
            module = invocation.export_module()
            edit(module)
            invocation.import_module(module)
        self._run(invocation, reached, "end")
        invocation.output_vm_bytecode(output)

    def _run(self, invocation: Any, start: str, end: str) -> None:
        """Go on from a phase, or the begin, to another."""
        if start:
            self._compile_from(invocation._inv_p, start.encode())
        self._compile_to(invocation._inv_p, end.encode())
        if not invocation.execute():
            raise _Failed

    def threads_program(self) -> bytes:
        """Compile the program of a team's threads."""
        text = worker_pool.threads_function()
        output = self._api.Output.open_membuffer()
        source = self._api.Source.wrap_buffer(self._session, text.encode() + b"\0")
        self.compile(source, output, [("executable-targets", self._wrap_all)])
        return bytes(output.map_memory())

    def compile_file(self, given: str, made: str, threads: Future[bytes] | None) -> None:
        """Compile the program of a file to another.

        Args:
            given, made: the files.
            threads: the threads' own program of a team that can run it; None for no team.
        """

        def share(module: Any) -> None:
            self._wrap_all(module)
            self._add_setter(module)

        def add_functions(module: Any) -> None:
            self._add_functions(self._ir, module)
            if threads is not None:
                self._add_host_setter(module, threads)

        def keep(module: Any) -> None:
            keep_floats(self._ir, module)

        edits: list[_Edit] = [("hal", add_functions)]
        if threads is not None or not self._is_for_cpu:
            edits.insert(0, ("executable-targets", keep if threads is None else share))
        output = self._api.Output.open_file(made)
        self.compile(self._api.Source.open_file(self._session, given), output, edits)
        output.keep()

    def _add_setter(self, module: Any) -> None:
        """Add the dispatch of `TEAM` to those of an executable; IREE joins all executables."""
        ir = self._ir
        for executable in _named(module, "hal.executable"):
            for variant in _named(executable, "hal.executable.variant"):
                for inside in _named(variant, "builtin.module"):
                    self._append(inside, worker_pool.SETTER)
                    ordinal = len([*_named(variant, _EXPORT)])
                    with module.context, inside.location, ir.InsertionPoint(inside):
                        attributes = {
                            "sym_name": ir.StringAttr.get(worker_pool.TEAM),
                            "ordinal": ir.IntegerAttr.get(ir.IndexType.get(), ordinal),
                            "layout": ir.Attribute.parse(worker_pool.SETTER_LAYOUT),
                        }
                        ir.Operation.create(_EXPORT, attributes=attributes, regions=2)
                        # What nothing refers to is left out.
                        path = "::".join(f"@{_symbol(each)}" for each in (executable, variant))
                        known = next(_named(module, "util.global"))
                        known.attributes[worker_pool.TEAM] = ir.Attribute.parse(
                            f"{path}::@{worker_pool.TEAM}"
                        )
                    return

    def _add_host_setter(self, module: Any, threads: Future[bytes]) -> None:
        """Add `TEAM`, with the threads' own program, if there is one executable."""
        binaries = [
            f"@{_symbol(executable)}::@{_symbol(binary)}"
            for executable in _named(module, "hal.executable")
            for binary in _named(executable, "hal.executable.binary")
        ]
        kept = {
            str(each.attributes["type"].value): _symbol(each)
            for each in _named(module, "util.global")
        }
        if len(binaries) == 1:
            device, executable = kept["!hal.device"], kept["!hal.executable"]
            text = worker_pool.host_setter(device, executable, binaries[0], threads.result())
            self._append(module, text)

    def _wrap_all(self, module: Any) -> None:
        """Put functions around those of all dispatches."""
        for executable in _named(module, "hal.executable"):
            for variant in _named(executable, "hal.executable.variant"):
                self._wrap(variant)

    def _wrap(self, variant: Any) -> None:
        """Put functions around those of the dispatches of one target."""
        exports = {_symbol(each): each for each in _named(variant, _EXPORT)}
        for module in _named(variant, "builtin.module"):
            triple = self._ir.StringAttr(module.attributes["llvm.target_triple"]).value
            pause = worker_pool.pause_of(triple)
            for function in [*_named(module, "llvm.func")]:
                name = _symbol(function)
                if name.startswith(f"{worker_pool.THREADS}_dispatch"):
                    function.erase()
                    self._append(module, worker_pool.thread(name, pause))
                elif name in exports and not _has_local_memory(exports[name]):
                    work = worker_pool.WORK.format(name)
                    function.attributes["sym_name"] = self._ir.StringAttr.get(work, module.context)
                    function.attributes["no_inline"] = self._ir.UnitAttr.get(module.context)
                    self._append(module, worker_pool.around(name))

    def _append(self, module: Any, text: str) -> None:
        """Append operations to a module, without those that are there."""
        there = {_symbol(op) for op in operations_in(module)}
        parsed = self._ir.Module.parse(text, self._session.context)
        for op in operations_in(parsed.operation):
            if _symbol(op) not in there:
                op.detach_from_parent()
                module.regions[0].blocks[0].append(op)


def _named(parent: Any, name: str) -> Iterator[Any]:
    """The operations of a name right inside another."""
    return (op for op in operations_in(parent) if op.name == name)


def _symbol(op: Any) -> str:
    return op.attributes["sym_name"].value if "sym_name" in op.attributes else ""


def _has_local_memory(export: Any) -> bool:
    """True if workgroups use memory that IREE gives to its own threads."""
    return "workgroup_local_memory" in export.attributes


def _threads_of(flags: list[str]) -> bytes:
    return _Session(flags).threads_program()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _main(given: str, made: str, team: str, *flags: str) -> int:
    try:
        if not given:
            with open(made, "wb") as file:
                file.write(_threads_of([*flags]))
            return 0
        session = _Session([*flags])
        with ThreadPoolExecutor(1) as other:
            threads = None
            if team == NEW_TEAM:
                session.register_targets()
                threads = other.submit(_threads_of, [*flags])
            elif team:
                threads = other.submit(_read, team)
            session.compile_file(given, made, threads)
    except _Failed:
        return 1
    return 0


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    status = _main(*sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # without freeing what the process's end frees
