"""Compile a module with quantized types to an IREE executable.

The module is parsed, verified and lowered here; IREE's compiler then runs as a process of its own
on the bytecode, so that a crash there is an exit code. Everything that subquant asks of IREE, and
every way around what IREE 3.13 does not do, is in this file or in a pass of the pipeline.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ._mlir import PINNED_VERSIONS, create_context, in_context_of, installed_versions, ir
from .errors import CompilerError, EnvironmentProblem, InputError, Place, UsageError
from .files import write_whole
from .fixed_point import ROUNDINGS, FixedPointRounding
from .formats.tflite import is_tflite, tosa_of_tflite
from .parsing import BYTECODE_MAGIC, parse_bytecode, parse_file, parse_text
from .pipeline import compile_pipeline, run_pipeline
from .quantization import Rounding
from .transforms.base import is_public

__all__ = ["TARGETS", "VULKAN_TARGETS", "CompileOptions", "compile_to_bytes", "read_module"]

Emit = Literal["vmfb", "mlir", "mlirbc"]
TARGETS = ("llvm-cpu", "vulkan")
Progress = Callable[[str], None]

_GENERIC_GPU = """#hal.device.target<"vulkan", [#hal.executable.target<"vulkan-spirv", \
"vulkan-spirv-fb", {{iree_codegen.target_info = #iree_gpu.target<arch = "{arch}", \
features = "spirv:v1.3,cap:Shader", wgp = <compute = {compute}, storage = {storage}, \
subgroup = none, subgroup_size_choices = [{subgroup}], max_workgroup_sizes = [128, 128, 64], \
max_thread_count_per_workgroup = 128, max_workgroup_memory_bytes = 16384, \
max_workgroup_counts = [65535, 65535, 65535]>>}}>]>"""

VULKAN_TARGETS = {
    "generic": _GENERIC_GPU.format(
        arch="subquant-generic",
        compute="fp64|fp32|fp16|int64|int32|int16|int8",
        storage="b64|b32|b16|b8",
        subgroup=8,
    ),
    "generic-32bit": _GENERIC_GPU.format(
        arch="subquant-generic-32bit", compute="fp32|int32", storage="b32", subgroup=64
    ),
}
"""Vulkan device descriptions that assume no more than their name says.

``generic`` needs 8- and 16-bit storage (nearly every device since 2018, and llvmpipe), and f64 or
i64 only where the program uses them. ``generic-32bit`` loads and stores 32-bit words only
(SwiftShader). Neither uses subgroup operations: IREE's named targets assume a subgroup size, and
reductions are wrong on a device with another one.
"""


@dataclass(frozen=True)
class CompileOptions:
    """What to compile for.

    Args:
        target: ``llvm-cpu`` or ``vulkan``.
        target_cpu: for llvm-cpu: ``host``, or a CPU that LLVM knows (``znver4``, ``generic``).
        vulkan_target: for vulkan: a key of `VULKAN_TARGETS`, or a name that IREE's
            ``--iree-vulkan-target`` takes (``ampere``, ``rdna3``) for the device that will run it.
        rounding: as in `subquant.quantization.quantize_blocks`.
        requantization: ``exact``, or ``fixed-point``: one 31-bit multiplier and shift a factor, at
            most one step from exact.
        fixed_point_rounding: one of `subquant.fixed_point.ROUNDINGS`.
        zero_points: ``after`` corrects a contraction by sums of rows and columns, ``inside``
            contracts storage values minus zero points, ``mixed`` does so where the right operand
            has no zero point; ``auto`` is what was measured to be fastest: ``mixed`` for llvm-cpu,
            ``after`` for vulkan.
        integer_only: fail if quantized values are computed with floats on the way.
        iree_flags: further flags for ``iree-compile``, after those that subquant gives.

    Raises:
        UsageError: an unknown target, rounding or other choice.
    """

    target: str = "llvm-cpu"
    target_cpu: str = "host"
    vulkan_target: str = "generic"
    rounding: Rounding = "nearest-even"
    requantization: str = "exact"
    fixed_point_rounding: FixedPointRounding = "half-up"
    zero_points: str = "auto"
    integer_only: bool = False
    iree_flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise UsageError(f"expected a target among {', '.join(TARGETS)}, got '{self.target}'")
        if self.rounding not in ("nearest-even", "toward-zero"):
            raise UsageError(
                f"expected a rounding of nearest-even or toward-zero, got '{self.rounding}'"
            )
        choices = {
            "requantization": ("exact", "fixed-point"),
            "fixed_point_rounding": ROUNDINGS,
            "zero_points": ("auto", "after", "inside", "mixed"),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                raise UsageError(f"expected {name} among {', '.join(allowed)}, got '{value}'")

    @property
    def containers(self) -> int:
        """The narrowest integer width that the target loads and stores."""
        return 32 if (self.target, self.vulkan_target) == ("vulkan", "generic-32bit") else 8

    @property
    def label(self) -> str:
        """What the runtime is told: ``llvm-cpu``, ``vulkan:generic`` and so on."""
        return f"vulkan:{self.vulkan_target}" if self.target == "vulkan" else self.target

    @property
    def device_attribute(self) -> str | None:
        """The text of the device description to put on the module, or None where a flag does."""
        return VULKAN_TARGETS.get(self.vulkan_target) if self.target == "vulkan" else None

    @property
    def flags(self) -> list[str]:
        """The flags for ``iree-compile``."""
        flags = [
            # The default level leaves loops unvectorized.
            "--iree-opt-level=O2",
            # O1 and above drop cf.assert, and with it the checks of dynamic dimensions.
            "--iree-opt-strip-assertions=false",
            # By default f64 is silently computed in f32.
            "--iree-input-demote-f64-to-f32=false",
        ]
        if self.target == "llvm-cpu":
            flags += [
                "--iree-hal-target-device=local",
                "--iree-hal-local-target-device-backends=llvm-cpu",
                f"--iree-llvmcpu-target-cpu={self.target_cpu}",
            ]
        else:
            # A command buffer that is recorded once reads and writes the first call's buffers in
            # later calls too, where a global is loaded and stored.
            flags.append("--iree-hal-memoization=false")
            if self.device_attribute is None:
                flags += [
                    "--iree-hal-target-device=vulkan",
                    f"--iree-vulkan-target={self.vulkan_target}",
                ]
        return [*flags, *self.iree_flags]


def read_module(source: str | bytes | os.PathLike[str] | ir.Module) -> ir.Module:
    """Read a module from a path, MLIR text, bytecode, or a module (which is taken as it is).

    A string is text if it has a line break, ``{`` or ``"``; else it is a path. A file or bytes may
    be a TensorFlow Lite model as well.

    Raises:
        EnvironmentProblem: the converter for TensorFlow Lite is not installed.
        InputError, ParseError, VerificationError: with their place.
    """
    if isinstance(source, ir.Module):
        return source
    context = create_context()
    if isinstance(source, bytes):
        if source.startswith(BYTECODE_MAGIC):
            return parse_bytecode(source, context)
        if is_tflite(source):
            return parse_text(tosa_of_tflite(source), context)
        try:
            return parse_text(source.decode(), context)
        except UnicodeDecodeError:
            raise InputError("the module is neither MLIR bytecode nor UTF-8 text") from None
    if isinstance(source, str) and any(mark in source for mark in '\n{"'):
        return parse_text(source, context)
    return parse_file(Path(source), context)


def lower(module: ir.Module, options: CompileOptions, progress: Progress | None = None) -> None:
    """Run the compilation's passes on `module` in place.

    Raises:
        SubquantError: from a pass, with its place.
    """
    passes = compile_pipeline(
        options.target,
        rounding=options.rounding,
        containers=options.containers,
        label=options.label,
        requantization=options.requantization,
        fixed_point_rounding=options.fixed_point_rounding,
        zero_points=options.zero_points,
        integer_only=options.integer_only,
    )
    notify = progress or (lambda step: None)
    run_pipeline(module, passes, lambda step: notify(f"pass {step.name}"))
    if options.device_attribute is not None:
        with in_context_of(module.operation):
            devices = ir.Attribute.parse(f"[{options.device_attribute}]")
            module.operation.attributes["hal.device.targets"] = devices


def compile_to_bytes(
    source: str | bytes | os.PathLike[str] | ir.Module,
    options: CompileOptions | None = None,
    *,
    emit: Emit = "vmfb",
    cache: str | os.PathLike[str] | None = None,
    reproducer: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> bytes:
    """Compile a module.

    Args:
        source: as for `read_module`.
        options: what to compile for.
        emit: ``vmfb`` for an executable; ``mlir`` or ``mlirbc`` to stop before IREE.
        cache: a folder that keeps executables by content; by default the environment variable
            ``SUBQUANT_CACHE``, and none if that is not set.
        reproducer: where to write the module if IREE fails (default: ``subquant.reproducer.mlir``
            in the current folder).
        progress: called with a line about each step.

    Returns:
        The executable, text or bytecode.

    Raises:
        SubquantError: the input is wrong or not supported (with its place), or IREE failed.
    """
    options = options or CompileOptions()
    notify = progress or (lambda step: None)
    notify("parse")
    module = read_module(source)
    lower(module, options, progress)
    if emit == "mlir":
        return (str(module) + "\n").encode()
    bytecode = _bytecode(module)
    if emit == "mlirbc":
        return bytecode
    _check_public_function(module)
    folder = cache or os.environ.get("SUBQUANT_CACHE")
    if not folder:
        return _run_iree(module, bytecode, options, reproducer, notify)
    entry = Path(folder) / _cache_key(bytecode, options)
    kept = _read_entry(entry)
    if kept is not None:
        notify("cached")
        return kept
    executable = _run_iree(module, bytecode, options, reproducer, notify)
    with contextlib.suppress(OSError):  # a cache that cannot be written is no cache
        entry.parent.mkdir(parents=True, exist_ok=True)
        write_whole(entry, hashlib.sha256(executable).digest() + executable)
    return executable


def _check_public_function(module: ir.Module) -> None:
    for op in module.body.operations:
        operation = op.operation
        if operation.name != "func.func" or (
            is_public(operation) and len(operation.regions[0].blocks)
        ):
            return  # other operations may define functions
    raise InputError("the module has no public function with a body; there is nothing to run")


def _read_entry(entry: Path) -> bytes | None:
    """Return an entry of the cache if it is whole: its SHA-256 comes first."""
    try:
        data = entry.read_bytes()
    except OSError:
        return None
    digest, executable = data[:32], data[32:]
    return executable if hashlib.sha256(executable).digest() == digest else None


def _bytecode(module: ir.Module) -> bytes:
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def _cache_key(bytecode: bytes, options: CompileOptions) -> str:
    digest = hashlib.sha256(bytecode)
    host = _host_cpu() if options.target_cpu == "host" else ""
    versions = sorted(installed_versions().items())
    digest.update(repr((options.flags, versions, host)).encode())
    return digest.hexdigest()


def _host_cpu() -> str:
    """What tells this machine's CPU from another's, for the cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        import platform

        return platform.processor()
    wanted = ("model name", "flags", "Features")
    return "".join(sorted({line for line in lines if line.startswith(wanted)}))


def _compiler_path() -> str:
    try:
        from iree.compiler.tools.binaries import find_tool
    except ImportError:
        version = PINNED_VERSIONS["iree-base-compiler"]
        raise EnvironmentProblem(
            f"IREE's compiler is not installed; run: pip install iree-base-compiler=={version}"
        ) from None
    return str(find_tool("iree-compile"))


def _run_iree(
    module: ir.Module,
    bytecode: bytes,
    options: CompileOptions,
    reproducer: str | os.PathLike[str] | None,
    notify: Progress,
) -> bytes:
    notify("iree-compile")
    with tempfile.TemporaryDirectory(prefix="subquant-") as folder:
        source, output = Path(folder, "module.mlirbc"), Path(folder, "module.vmfb")
        source.write_bytes(bytecode)
        command = [_compiler_path(), str(source), "-o", str(output), *options.flags]
        result = subprocess.run(command, capture_output=True, check=False)
        if result.returncode == 0 and output.is_file():
            return output.read_bytes()
    raise _compiler_error(module, options, reproducer, result)


def _compiler_error(
    module: ir.Module,
    options: CompileOptions,
    reproducer: str | os.PathLike[str] | None,
    result: subprocess.CompletedProcess[bytes],
) -> CompilerError:
    """Write a reproducer, and say what happened and how to replay it."""
    path = Path(reproducer or "subquant.reproducer.mlir")
    replay = shlex.join(["iree-compile", str(path), "-o", os.devnull, *options.flags])
    text = str(module)
    try:
        write_whole(path, f"// {replay}\n{text}\n".encode())
        where = f"replay with: {replay}"
    except OSError as error:
        where = f"no reproducer was written to '{path}': {error.strerror}"
    stderr = result.stderr.decode(errors="replace")
    first = next((line for line in stderr.splitlines() if ": error: " in line), None)
    if result.returncode < 0:
        message, place = f"IREE's compiler crashed (signal {-result.returncode})", None
    elif first is not None:
        position, _, reason = first.partition(": error: ")
        message, place = f"IREE refused the module: {reason}", _place(position)
    else:
        tail = stderr.strip().splitlines()[-1:] or ["no message"]
        message = f"IREE's compiler failed with status {result.returncode}: {tail[0]}"
        place = None
    return CompilerError(message, place, (where,))


def _place(position: str) -> Place:
    file, _, rest = position.partition(":")
    line, _, column = rest.partition(":")
    if line.isdigit() and column.isdigit():
        return Place(file, int(line), int(column))
    return Place(position)
