"""IREE's compiler as a program that changes a module between the phases of the compilation.

``python session.py PACKAGES MODULE EXECUTABLE WORKERS FLAG...`` compiles a module with the flags of
``iree-compile``; ``PACKAGES`` is the folder that has the package ``iree``. The changes:

* results of constant dispatches are not confused (`subquant.iree_hooks.constant_dispatches`);
* for a CPU, kernels are empty while IREE compiles the program
  (`subquant.iree_hooks.kernel_bodies`), and all executables are one before it lowers them
  (`subquant.iree_hooks.merged_executables`);
* for a CPU, synchronous entry points (`subquant.iree_hooks.sync_entries`);
* for Vulkan, elementwise operations on matrices (`subquant.iree_hooks.cooperative_matrices`),
  asynchronous entry points (`subquant.iree_hooks.async_entries`) and exact shaders
  (`subquant.iree_hooks.exact_shaders`);
* for a CPU with ``WORKERS``, a worker pool (`subquant.iree_hooks.worker_pool`). In LLVM's dialect
  each function of a dispatch, which IREE calls for one workgroup after the other, gets a wrapper
  that distributes all workgroups of the dispatch. The function `SET_CONTROL_BLOCK` of the
  executable takes the address of the control block, and records the worker program. This is the
  same for all modules with the same flags: ``WORKERS`` is a file that has it, or
  `COMPILE_WORKER_PROGRAM` to compile it in another thread. Without a ``MODULE`` only the worker
  program is compiled.

IREE's compiler verifies a module after each of its passes by default, which takes a third of its
time (`docs/performance/compile-time.md`). Here it does so with `VERIFY_FLAG` only: the module that
it reads and the one after each change are verified, and the code is the same. `iree_driver` tries
a module that is refused once more with this flag, for the messages.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

if not __package__:  # a program: the package around this folder has another MLIR
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    __package__ = "iree_hooks"

from . import worker_functions, worker_pool
from .async_entries import add_async_entries
from .constant_dispatches import keep_results
from .cooperative_matrices import restore_elementwise
from .entry_names import SET_CONTROL_BLOCK, WORKER, WORKGROUP
from .exact_shaders import forbid_inexact_floats
from .hal_operations import child_operations
from .kernel_bodies import PUT_BACK_PHASE, KernelBodies
from .merged_executables import merge_executables
from .narrow_comparisons import narrow_comparisons
from .sync_entries import add_sync_entries

COMPILE_WORKER_PROGRAM = "new"
"""The argument ``WORKERS`` that compiles the worker program too."""
VERIFY_FLAG = "--verify"
"""The flag that has IREE's compiler verify the module after each pass."""
_CPU_FLAG = "--iree-hal-target-device=local"
_EXPORT = "hal.executable.export"

_Edit = tuple[str, Callable[[Any], None]]
"""A phase of IREE's pipeline, and the function that changes the module after this phase."""
_UNUSED_PLUGINS = (
    *("hal_target_cuda", "hal_target_metal_spirv", "hal_target_rocm", "hal_target_vmvx"),
    "input_torch",
)
_UNUSED_PLUGINS_FOR_CPU = (*_UNUSED_PLUGINS, "hal_target_vulkan_spirv")
"""Plugins that no program here needs; constant evaluation for Vulkan needs the CPU's.

Their dialects cost time: IREE prepares each set of patterns for all registered operations, which
dominates the compilation of a small program.
"""

_PRINT_FLAG = "--mlir-print-assume-verified"
"""The flag that keeps IREE's analyses, which number values as text does, from verifying first."""
_GLOBAL_FLAGS: list[str] = []
_GLOBAL_FLAGS_LOCK = threading.Lock()


class _Failed(Exception):
    """IREE's compiler has reported an error."""


def _replace_by_empty_modules(*names: str) -> None:
    """Replace modules that IREE's bindings import and do not need here.

    With the classes of operations, which are not imported either, they take 0.25 s of CPU time; a
    small program takes 0.35 s.
    """
    for name in names:
        sys.modules.setdefault(name, types.ModuleType(name))


class _Session:
    """IREE's compiler with flags, for one module after the other."""

    def __init__(self, flags: list[str]) -> None:
        _replace_by_empty_modules("numpy", "iree.compiler.tools")
        from iree.compiler import api, ir
        from iree.compiler._mlir_libs import _mlir
        from iree.compiler.api import ctypes_dl

        _mlir.globals.dialect_search_modules = []  # no classes of operations
        self._api, self._ir = api, ir
        self._is_for_cpu, self._verifies = _CPU_FLAG in flags, VERIFY_FLAG in flags
        # Set the flags of IREE's compiler; a process has one set of them.
        with _GLOBAL_FLAGS_LOCK:
            if not _GLOBAL_FLAGS:
                unused = _UNUSED_PLUGINS_FOR_CPU if _CPU_FLAG in flags else _UNUSED_PLUGINS
                plugins = [f"--iree-plugin=-{name}" for name in unused]
                iree_flags = [flag for flag in flags if flag != VERIFY_FLAG]
                _GLOBAL_FLAGS[:] = ["iree-compile", _PRINT_FLAG, *plugins, *iree_flags]
                ctypes_dl._initializeGlobalCL(*_GLOBAL_FLAGS)
        self._session = api.Session()
        # Functions of IREE's C interface that its Python interface lacks.
        self._compile_from, self._compile_to = (
            getattr(ctypes_dl._dylib, f"ireeCompilerInvocationSetCompile{end}Phase")
            for end in ("From", "To")
        )
        for function in (self._compile_from, self._compile_to):
            function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_char_p], None
        self._set_verification = ctypes_dl._dylib.ireeCompilerInvocationSetVerifyIR
        self._set_verification.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        self._set_verification.restype = None

    def register_targets(self) -> None:
        """Register LLVM's targets, before a session in another thread does the same.

        IREE adds the targets of GPUs to LLVM's linked list when the first passes with executables
        start. Two threads that do so at once close the list to a ring, in which both search for the
        target of the CPU forever (IREE 3.13; `tests/test_worker_pool.py`,
        `test_targets_are_registered_before_two_threads_compile`).
        """
        invocation = self._session.invocation()
        invocation.parse_source(self._api.Source.wrap_buffer(self._session, b"module {}\0"))
        self._run(invocation, "executable-sources", "executable-configurations")

    def compile(self, source: Any, output: Any, edits: Iterable[_Edit]) -> None:
        """Compile a module, with changes in the order of their phases, "" for the start."""
        invocation = self._session.invocation()
        invocation.enable_console_diagnostics()
        self._set_verification(invocation._inv_p, self._verifies)
        if not invocation.parse_source(source):
            raise _Failed
        previous = ""
        for phase, edit in edits:
            if phase:
                self._run(invocation, previous, phase)
            previous = phase
            module = invocation.export_module()
            edit(module)
            self._verify(module)
            invocation.import_module(module)
        self._run(invocation, previous, "end")
        invocation.output_vm_bytecode(output)

    def _run(self, invocation: Any, start: str, end: str) -> None:
        """Run the pipeline from a phase, or its start, to another phase."""
        if start:
            self._compile_from(invocation._inv_p, start.encode())
        self._compile_to(invocation._inv_p, end.encode())
        if not invocation.execute():
            raise _Failed

    def _verify(self, module: Any) -> None:
        try:
            module.verify()
        except self._ir.MLIRError as error:
            print(error, file=sys.stderr)
            raise _Failed from None

    def compile_worker_program(self) -> bytes:
        """Compile the worker program."""
        text = worker_functions.worker_module()
        output = self._api.Output.open_membuffer()
        source = self._api.Source.wrap_buffer(self._session, text.encode() + b"\0")
        self.compile(source, output, [("executable-targets", self._wrap_dispatches)])
        return bytes(output.map_memory())

    def compile_file(
        self, input_path: str, output_path: str, worker_program: Future[bytes] | None
    ) -> None:
        """Compile the module of a file; `worker_program` is recorded, None for no pool."""

        def change_executables(module: Any) -> None:
            if self._is_for_cpu:
                self._wrap_dispatches(module)
                self._add_setter_dispatch(module)
            else:
                forbid_inexact_floats(self._ir, module)
                narrow_comparisons(self._ir, module)

        def add_entries(module: Any) -> None:
            (add_sync_entries if self._is_for_cpu else add_async_entries)(self._ir, module)
            if worker_program is not None:
                self._add_setter_function(module, worker_program)

        edits: list[_Edit] = [("flow", functools.partial(keep_results, self._ir))]
        if self._is_for_cpu:
            kernels = KernelBodies(self._ir)

            def prepare_executables(module: Any) -> None:
                kernels.put_back(module)
                merge_executables(self._ir, module)

            edits = [("", kernels.take), *edits, (PUT_BACK_PHASE, prepare_executables)]
        else:
            edits = [("", functools.partial(restore_elementwise, self._ir)), *edits]
        if worker_program is not None or not self._is_for_cpu:
            edits.append(("executable-targets", change_executables))
        edits.append(("hal", add_entries))
        output = self._api.Output.open_file(output_path)
        self.compile(self._api.Source.open_file(self._session, input_path), output, edits)
        output.keep()

    def _add_setter_dispatch(self, module: Any) -> None:
        """Add the dispatch of `SET_CONTROL_BLOCK` to one executable; IREE links all executables."""
        ir = self._ir
        for executable in _children(module, "hal.executable"):
            for variant in _children(executable, "hal.executable.variant"):
                for body in _children(variant, "builtin.module"):
                    self._append(body, worker_pool.SET_CONTROL_BLOCK_FUNCTION)
                    ordinal = len([*_children(variant, _EXPORT)])
                    with module.context, body.location, ir.InsertionPoint(body):
                        attributes = {
                            "sym_name": ir.StringAttr.get(SET_CONTROL_BLOCK),
                            "ordinal": ir.IntegerAttr.get(ir.IndexType.get(), ordinal),
                            "layout": ir.Attribute.parse(worker_pool.SETTER_LAYOUT),
                        }
                        ir.Operation.create(_EXPORT, attributes=attributes, regions=2)
                        # A reference keeps IREE from removing the export.
                        path = "::".join(f"@{_symbol(each)}" for each in (executable, variant))
                        any_global = next(_children(module, "util.global"))
                        any_global.attributes[SET_CONTROL_BLOCK] = ir.Attribute.parse(
                            f"{path}::@{SET_CONTROL_BLOCK}"
                        )
                    return

    def _add_setter_function(self, module: Any, worker_program: Future[bytes]) -> None:
        """Add the function `SET_CONTROL_BLOCK`, if the module has one executable."""
        binaries = [
            f"@{_symbol(executable)}::@{_symbol(binary)}"
            for executable in _children(module, "hal.executable")
            for binary in _children(executable, "hal.executable.binary")
        ]
        symbols = {
            str(each.attributes["type"].value): _symbol(each)
            for each in _children(module, "util.global")
        }
        if len(binaries) == 1:
            text = worker_pool.host_setter(
                symbols["!hal.device"],
                symbols["!hal.executable"],
                binaries[0],
                worker_program.result(),
            )
            self._append(module, text)

    def _wrap_dispatches(self, module: Any) -> None:
        """Wrap the functions of all dispatches, and replace that of the worker program."""
        for executable in _children(module, "hal.executable"):
            for variant in _children(executable, "hal.executable.variant"):
                self._wrap_variant(variant)

    def _wrap_variant(self, variant: Any) -> None:
        exports = {_symbol(each): each for each in _children(variant, _EXPORT)}
        for module in _children(variant, "builtin.module"):
            triple = self._ir.StringAttr(module.attributes["llvm.target_triple"]).value
            for function in [*_children(module, "llvm.func")]:
                name = _symbol(function)
                if name.startswith(f"{WORKER}_dispatch"):
                    function.erase()
                    self._append(module, worker_functions.worker_function(name, triple))
                elif name in exports and "workgroup_local_memory" not in exports[name].attributes:
                    # Workgroups with local memory run on IREE's own threads, which allocate it.
                    inner = self._ir.StringAttr.get(WORKGROUP.format(name), module.context)
                    function.attributes["sym_name"] = inner
                    function.attributes["no_inline"] = self._ir.UnitAttr.get(module.context)
                    self._append(module, worker_pool.workgroup_wrapper(name))

    def _append(self, module: Any, text: str) -> None:
        """Append operations to a module, unless it has their symbols."""
        symbols = {_symbol(op) for op in child_operations(module)}
        parsed = self._ir.Module.parse(text, self._session.context)
        for op in child_operations(parsed.operation):
            if _symbol(op) not in symbols:
                op.detach_from_parent()
                module.regions[0].blocks[0].append(op)


def _children(parent: Any, name: str) -> Iterator[Any]:
    """Yield the child operations of a name."""
    return (op for op in child_operations(parent) if op.name == name)


def _symbol(op: Any) -> str:
    return op.attributes["sym_name"].value if "sym_name" in op.attributes else ""


def _compile_worker_program(flags: list[str]) -> bytes:
    return _Session(flags).compile_worker_program()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _main(input_path: str, output_path: str, workers: str, *flags: str) -> int:
    try:
        if not input_path:
            with open(output_path, "wb") as file:
                file.write(_compile_worker_program([*flags]))
            return 0
        session = _Session([*flags])
        with ThreadPoolExecutor(1) as executor:
            worker_program = None
            if workers == COMPILE_WORKER_PROGRAM:
                session.register_targets()
                worker_program = executor.submit(_compile_worker_program, [*flags])
            elif workers:
                worker_program = executor.submit(_read, workers)
            session.compile_file(input_path, output_path, worker_program)
    except _Failed:
        return 1
    return 0


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    status = _main(*sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the end of the process frees its memory
