"""Modules of IREE's virtual machine: loading, parameters, and recorded properties of functions."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.files import kind_of, open_input, read_input, wrong_download
from ..errors import InputError, UsageError, quoted
from ..isolation.child import ReportStep
from ..numerics.element_types import Array
from ..signature import REFLECTION_KEY, Signature, ValueType
from .descriptions import inspect_in_child
from .open_device import iree_runtime
from .prepacked_arguments import PrepackedWeights

_PAGE_BYTES = 1 << 21
"""Bytes of a large page of x86-64, and of AArch64 with small pages of 4 KiB."""
_MIN_COPIED_BYTES = 2 * _PAGE_BYTES
"""Bytes of data that is copied to large pages, at least: less fits the caches of a processor."""


@functools.cache
def vm_instance() -> Any:
    """Return the virtual machine of this process."""
    return iree_runtime().VmInstance()


def load_module(source: str | os.PathLike[str] | bytes) -> tuple[str, Any, bytes | memoryview]:
    """Return the name of an executable, for errors, its module and its data.

    Raises:
        InputError: the source cannot be read, or is no executable.
    """
    if isinstance(source, bytes):
        return "<bytes>", *_module_of("<bytes>", source)
    return os.fspath(source), *_module_of(os.fspath(source), read_input(source))


def _module_of(name: str, data: bytes) -> tuple[Any, bytes | memoryview]:
    """Return the module of an executable and its data; InputError if the data is none."""
    module, copied = iree_runtime().VmModule, _copied_to_large_pages(data)
    try:
        if copied is not None:  # weights that are constants are read where they are
            return module.wrap_buffer(vm_instance(), copied), copied.data
        return module.copy_buffer(vm_instance(), data), data
    except (RuntimeError, ValueError, IndexError):
        hint = wrong_download(data) or _OTHER_KINDS.get(
            kind_of(data) or ("text" if _is_text(data) else ""), _EXPECTED
        )
        raise InputError(f"{quoted(name)} is no IREE executable{hint.format(name)}") from None


def _copied_to_large_pages(data: bytes) -> Array | None:
    """Return a page-aligned copy in large pages; None if the system has none, or for small data.

    A page has 4 KiB, and a processor prefetches within one page only. Linux has pages of 2 MiB on
    request: one thread of a Zen 4 reads 27 GB/s from small pages and 33 GB/s from large ones.
    The last bytes, less than a page, are in small pages: the copy takes no more memory than the
    data.
    """
    if len(data) < _MIN_COPIED_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    memory = mmap.mmap(-1, len(data) + _PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, np.uint8)
    start = -array.ctypes.data % _PAGE_BYTES
    try:
        memory.madvise(mmap.MADV_HUGEPAGE, start, len(data) // _PAGE_BYTES * _PAGE_BYTES)
    except OSError:  # a system that was built without them
        return None
    copy: Array = array[start : start + len(data)]
    copy[:] = np.frombuffer(data, np.uint8)
    return copy


_EXPECTED = "; expected the output of 'subquant compile'"
_OTHER_KINDS = {
    "module": ", but a module; run it with: subquant exec {}",
    "text": ", but text; if it is a module, run it with: subquant exec {}",
    "weights": f", but holds weights{_EXPECTED}",
    "array": ", but an array; give it as an argument: --input @{}",
}


def _is_text(data: bytes) -> bool:
    """True for data that may be a module as text."""
    wrong = "\ufffd"
    text = data[:1000].decode(errors="replace").rstrip(wrong).strip()
    return bool(text) and all((c.isprintable() or c.isspace()) and c != wrong for c in text)


def parameters_module(instance: Any, parameters: Mapping[str, str | os.PathLike[str]]) -> Any:
    """Return a module with the parameters of an executable, by scope.

    Raises:
        InputError: a file cannot be read, or IREE cannot mount it.
        UsageError: the parameters are no mapping.
    """
    runtime = iree_runtime()
    providers = []
    if not isinstance(parameters, Mapping):
        raise UsageError(
            f"expected parameters as a file for each scope, {{'model': 'model.irpa'}}, got "
            f"{quoted(str(parameters))}"
        )
    for scope, path in parameters.items():
        index = runtime.ParameterIndex()
        kind = _checked_format(path)
        try:
            handle = runtime.FileHandle.wrap_memory(_mapped(path))
            index.load_from_file_handle(handle, kind)
        except (RuntimeError, ValueError, IndexError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"cannot read the parameters '{path}': {reason}") from None
        providers.append(index.create_provider(scope=scope))
    return runtime.create_io_parameters_module(instance, *providers)


def _mapped(path: str | os.PathLike[str]) -> Array:
    """Return a file that is mapped into memory, in large pages where the file system has them.

    Linux reads the file from the disk into large pages for this mapping; `irpa_writer` writes it
    from such pages. All processes share them.
    """
    with open_input(path) as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system that was built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _checked_format(path: str | os.PathLike[str]) -> str:
    """Return the format of a parameter file from its contents, after a check of the whole file.

    IREE divides by zero, and reads beyond the end, in invalid files.

    Raises:
        InputError, UnsupportedError: it has no known format, or is invalid.
    """
    from ..formats.gguf import read_gguf_file  # with the layouts, which few calls need
    from ..formats.irpa import check_mountable
    from ..formats.safetensors import read_safetensors

    with open_input(path) as file:
        start = file.read(4)
    if start == b"IRPA":
        check_mountable(path)
        return "irpa"
    if start == b"GGUF":
        read_gguf_file(path, lists=False)
        return "gguf"
    if os.fspath(path).endswith(".irpa"):
        check_mountable(path)  # raises an error
    if os.fspath(path).endswith(".safetensors"):
        read_safetensors(path)
        return "safetensors"
    raise InputError(
        f"cannot read the parameters '{os.fspath(path)}': not an .irpa, .gguf or .safetensors file"
    )


def read_signatures(path: str | os.PathLike[str]) -> dict[str, Signature]:
    """Return the signatures of an executable's functions, without a device.

    Raises:
        InputError: the file cannot be read, or is no executable.
    """
    answer = inspect_in_child(path, "signatures_in_child")
    return {function: Signature.from_json(text) for function, text in answer.items()}


def signatures_in_child(
    arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep
) -> tuple[dict[str, str], list[bytes]]:
    """Return the signatures, as JSON, of the executable in the blob: called in a child process."""
    name = arguments["name"]
    functions = public_functions(_module_of(name, blobs[0])[0], name)
    return {each.name: each.signature.to_json() for each in functions if each.signature}, []


def description_in_child(
    arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep
) -> tuple[dict[str, dict[str, list[str]]], list[bytes]]:
    """Return the types of arguments and results, as text, like `signatures_in_child`."""
    name = arguments["name"]
    described = {
        each.name: {
            "inputs": [value.named for value in each.signature.inputs],
            "outputs": [value.named for value in each.signature.outputs],
        }
        for each in public_functions(_module_of(name, blobs[0])[0], name)
        if each.signature
    }
    return described, []


@dataclass(frozen=True)
class PublicFunction:
    """A function of an executable, and its recorded properties."""

    name: str
    handle: Any
    reflection: Mapping[str, str]
    signature: Signature | None
    weights: PrepackedWeights | None = None


def public_functions(module: Any, file: str) -> list[PublicFunction]:
    """Return the functions with a signature of subquant, or else those that look like a user's.

    Raises:
        InputError: the recorded properties are no text, or no signature.
    """
    try:
        handles = {name: module.lookup_function(name) for name in module.function_names}
        recorded = {name: dict(handle.reflection) for name, handle in handles.items()}
        with_signature = [name for name in handles if REFLECTION_KEY in recorded[name]]
        public = with_signature or [n for n in handles if not n.startswith("__") and "$" not in n]
        return [
            PublicFunction(
                name,
                handles[name],
                recorded[name],
                _signature_of(recorded[name]),
                PrepackedWeights.of(name, recorded[name], handles.__getitem__),
            )
            for name in public
        ]
    except (RuntimeError, UnicodeDecodeError):  # of the bindings, for a name that is not UTF-8
        reason = "it has a name that is not UTF-8 text; compile the module again"
    except InputError as error:
        reason = error.message
    raise InputError(f"{quoted(file)} is damaged: {reason}")


def _signature_of(reflection: Mapping[str, str]) -> Signature | None:
    """Return the signature of a function: subquant's, or else the one that IREE records."""
    text = reflection.get(REFLECTION_KEY)
    declaration = reflection.get("iree.abi.declaration")
    if text is not None:
        signature = Signature.from_json(text)
        if declaration is not None:
            _check_declared(signature, declaration)
        return signature
    return None if declaration is None else _signature_of_declaration(declaration)


_DECLARED_VALUES = re.compile(r"%(input|output)\d+: (tensor<)?")


def _check_declared(signature: Signature, declaration: str) -> None:
    """Refuse a signature with other values than IREE's declaration, which calls push and pop."""
    declared = [(kind, bool(tensor)) for kind, tensor in _DECLARED_VALUES.findall(declaration)]
    sides = (("input", signature.inputs), ("output", signature.outputs))
    recorded = [
        (kind, abi.startswith("tensor<"))
        for kind, values in sides
        for value in values
        for abi in value.abi
    ]
    if recorded != declared:
        raise InputError(
            "its signature has other values than its program; compile the module again"
        )


_DECLARED = re.compile(r"%\w+: ([^,()]+(?:\([^)]*\))?)")


def _signature_of_declaration(declaration: str) -> Signature | None:
    """Read the signature that IREE records, for executables of other tools."""
    head, arrow, tail = declaration.partition(" -> ")
    inputs = _DECLARED.findall(head.partition("(")[2])
    outputs = _DECLARED.findall(tail) if arrow else []
    values = [[_declared_value(text.strip()) for text in side] for side in (inputs, outputs)]
    read = [tuple(value for value in side if value is not None) for side in values]
    is_complete = list(map(len, read)) == list(map(len, values))
    return Signature(read[0], read[1]) if is_complete else None


def _declared_value(text: str) -> ValueType | None:
    """Return the type of a value of a declaration; None if subquant has none like it."""
    tensor = re.fullmatch(r"tensor<((?:(?:\d{1,19}|\?)x)*)([a-z0-9]+)>", text)
    if tensor:
        sizes = [n for n in tensor.group(1).split("x") if n]
        shape = tuple(None if n == "?" else int(n) for n in sizes)
        return ValueType(tensor.group(2), shape, abi=(text,), is_consumed=True)  # it may be
    if re.fullmatch(r"[a-z]+[0-9]*", text):
        return ValueType(text, is_scalar=True, abi=(text,))
    return None
