"""The options of a compilation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..core.option_fields import (
    Activations,
    FixedPointRounding,
    KernelChoice,
    RequantizationForm,
    Rounding,
    Semantics,
    ZeroPoints,
    accept_old_names,
    check_choices,
    option,
)
from ..errors import UsageError, quoted
from ..importers.options import ImportOptions
from .targets import VULKAN_TARGETS, Target, cpu_flags

Emit = Literal["vmfb", "mlir", "mlirbc"]
"""The result of a compilation: an executable, or the input of IREE, as text or bytecode."""


@accept_old_names
@dataclass(frozen=True)
class CompileOptions:
    """Options of a compilation.

    Args:
        target: ``llvm-cpu`` or ``vulkan``.
        target_cpu: for llvm-cpu: ``host``, or a CPU that LLVM knows (``znver4``, ``generic``).
        vulkan_target: for vulkan: a key of `VULKAN_TARGETS`, or a name for IREE's
            ``--iree-vulkan-target`` (``ampere``, ``rdna3``) of the device that will run it.
        rounding: as in `subquant.numerics.casts.quantize_blocks`.
        requantization: ``exact``, or ``fixed-point``: one 31-bit multiplier and shift for each
            factor, at most one step from exact.
        fixed_point_rounding: one of `subquant.numerics.fixed_point.ROUNDINGS`.
        zero_points: as `subquant.core.option_fields.ZeroPoints`; ``auto`` is the fastest one in
            measurements: ``mixed`` for llvm-cpu, ``after`` for vulkan.
        kernels: as `subquant.core.option_fields.KernelChoice`.
        fuse_below_macs: consecutive kernel calls with at most this number of int8
            multiply-accumulates each become one dispatch
            (`subquant.kernels.fusion.dispatch_fusion`); 0 for none.
        semantics: as `subquant.core.option_fields.Semantics`.
        batch: the first dimension of the inputs of a TensorFlow Lite or ONNX model: a number,
            ``dynamic``, or "" for that of the file.
        dims: ``name=N`` for each other dynamic dimension of a model.
        input_values: ``name=number`` or ``name=number,number,...`` for each input of a model that
            becomes a constant; storage values for a quantized input.
        every_tensor: return all results of the operators of a TensorFlow Lite or ONNX model.
        integer_only: fail if a computation of quantized values uses floats.
        explain: report which operations of a model compute with integers and which with floats, and
            which block-quantized weights a kernel reads, with reasons.
        iree_flags: further flags for ``iree-compile``, after those of subquant.

    Raises:
        UsageError: an unknown target, rounding or other choice, or an invalid batch.
    """

    target: Target = option("llvm-cpu", "Target backend.")
    target_cpu: str = option("host", "CPU of llvm-cpu: host, generic, or a name of LLVM.", "CPU")
    vulkan_target: str = option(
        "generic",
        "Vulkan target: generic (needs 8-bit storage), generic-cpu (the same, for devices that are "
        "CPUs), generic-32bit, auto (this machine's device), or a target of IREE such as ampere.",
        "NAME",
    )
    rounding: Rounding = option(
        "nearest-even", "Rounding of casts; toward-zero matches upstream's lower-quant-ops."
    )
    requantization: RequantizationForm = option(
        "exact", "Requantization by the exact multiplier, or by a 31-bit multiplier and a shift."
    )
    fixed_point_rounding: FixedPointRounding = option(
        "half-up", "Rounding of --requantization fixed-point."
    )
    zero_points: Literal["auto", ZeroPoints] = option(
        "auto",
        "Zero-point correction of contractions: after the accumulation, inside it (subtract zero "
        "points first), or mixed (inside if only the left operand has one). auto is mixed for "
        "llvm-cpu, and after for vulkan.",
    )
    activations: Activations = option(
        "float",
        "Activations of contractions with block-quantized weights: float, or int8, quantized at "
        "run time with a scale for each block.",
    )
    kernels: KernelChoice = option(
        "auto",
        "Instruction set of the kernels: auto (the fastest of the CPU), none (IREE's loops only), "
        "or a name; spirv or spirv-cpu for vulkan.",
    )
    fuse_below_macs: int = option(
        1 << 19,
        "Fuse consecutive dispatches below N int8 multiply-accumulates; 0 fuses none.",
        "N",
        old_name="joined_products",
    )
    semantics: Semantics = option(
        "litert",
        "Arithmetic of a .tflite model: LiteRT's reference kernels, or exact as in StableHLO.",
    )
    batch: str = option(
        "",
        "Batch size of a .tflite or .onnx model: a number, or dynamic.  [default: the file's]",
        "N",
    )
    dims: tuple[str, ...] = option(
        (),
        "Size of a dynamic dimension of a .tflite or .onnx model, by its name there or as "
        "INPUT.AXIS; may be repeated.",
        "NAME=N",
        old_name="extents",
    )
    input_values: tuple[str, ...] = option(
        (),
        "Replace an input of a .tflite or .onnx model by a constant: a number, or several with "
        "commas; may be repeated.",
        "NAME=VALUE",
    )
    every_tensor: bool = option(
        False,
        "Return each tensor that operators of a .tflite or .onnx model compute, in order, in place "
        "of the results.",
    )
    integer_only: bool = option(False, "Fail if a quantized value is computed in floating point.")
    explain: bool = option(
        False,
        "Report which operators of an .onnx model run on integers and which on floats, which "
        "contractions get a kernel, and the reason where one gets none.",
    )
    iree_flags: tuple[str, ...] = option(
        (), "A further flag of iree-compile; may be repeated.", "FLAG"
    )

    def __post_init__(self) -> None:
        check_choices(self)
        object.__setattr__(self, "batch", str(self.batch))  # Python callers write batch=4
        for name in ("dims", "input_values", "iree_flags"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        if self.fuse_below_macs < 0:
            raise UsageError(
                f"option 'fuse-below-macs' must be 0 or more, got {self.fuse_below_macs}"
            )
        self.import_options  # noqa: B018  (checks the batch and the dimensions)

    @property
    def import_options(self) -> ImportOptions:
        """The options of the importers."""
        return ImportOptions(
            self.semantics, self.activations, self.batch, self.every_tensor, self.dims,
            self.input_values,
        )  # fmt: skip

    @property
    def containers(self) -> int:
        """The width in bits of the narrowest integers that the target loads and stores."""
        return 32 if (self.target, self.vulkan_target) == ("vulkan", "generic-32bit") else 8

    @property
    def label(self) -> str:
        """The target that the executable records: ``llvm-cpu``, ``vulkan:generic`` and so on."""
        return f"vulkan:{self.vulkan_target}" if self.target == "vulkan" else self.target

    @property
    def device_attribute(self) -> str | None:
        """The text of the device description on the module; None if a flag describes the device."""
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
                *cpu_flags(self.target_cpu),
            ]
        else:
            # A command buffer that is recorded once reads and writes the first call's buffers in
            # later calls too, where a global is loaded and stored.
            flags += [
                "--iree-hal-memoization=false",
                # IREE creates or moves transpositions to places where threads read results of
                # other threads: see `subquant.transforms.iree_workarounds.cross_thread_reads`.
                "--iree-opt-outer-dim-concat=false",
                "--iree-global-opt-propagate-transposes=false",
                "--iree-opt-aggressively-propagate-transposes=false",
                # Each invocation would write a table of up to 256 bytes before it reads one of its
                # elements (llvmpipe compiles that for minutes), and a device without 64-bit
                # integers has no form for one of them.
                "--iree-flow-inline-constants-max-byte-length=0",
            ]
            if self.device_attribute is None:
                flags += [
                    "--iree-hal-target-device=vulkan",
                    f"--iree-vulkan-target={self.vulkan_target}",
                ]
        return [*flags, *self.iree_flags]


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Return the values of an option that may be repeated, from a list or a tuple."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        spelling = name.replace("_", "-")
        raise UsageError(f"option '{spelling}' must be a list of strings, got {quoted(str(value))}")
    return tuple(value)
