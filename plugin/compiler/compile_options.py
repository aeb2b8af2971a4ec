"""The options of a compilation."""

from __future__ import annotations

from collections.abc import Mapping
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
from ..errors import UsageError
from ..importers.options import ImportOptions
from .targets import VULKAN_TARGETS, Target, cpu_flags

__all__ = ["CompileOptions", "Emit", "options_of_json"]

Emit = Literal["vmfb", "mlir", "mlirbc"]
"""What a compilation gives: an executable, or what IREE would get, as text or bytecode."""


@accept_old_names
@dataclass(frozen=True)
class CompileOptions:
    """Target, arithmetic and import options of a compilation.

    Args:
        target: ``llvm-cpu`` or ``vulkan``.
        target_cpu: for llvm-cpu: ``host``, or a CPU name of LLVM (``znver4``, ``generic``).
        vulkan_target: for vulkan: a key of `VULKAN_TARGETS`, or a target of IREE's
            ``--iree-vulkan-target`` (``ampere``, ``rdna3``), for that very device.
        rounding: as in `subquant.numerics.casts.quantize_blocks`.
        requantization: ``exact``, or ``fixed-point``: a 31-bit multiplier and a shift for each
            scale, at most one step from exact.
        fixed_point_rounding: one of `subquant.numerics.fixed_point.ROUNDINGS`.
        zero_points: as in `subquant.core.option_fields.ZeroPoints`; ``auto`` is the fastest as
            measured: ``mixed`` for llvm-cpu, ``after`` for vulkan.
        activations: as in `subquant.core.option_fields.Activations`.
        kernels: as in `subquant.core.option_fields.KernelChoice`.
        fuse_below_macs: consecutive dispatches of fewer int8 multiply-accumulates than this are
            fused (`subquant.kernels.fusion.dispatch_fusion`); 0 fuses none.
        semantics: as in `subquant.core.option_fields.Semantics`.
        batch: the batch size of an imported model: a number, ``dynamic``, or "" for the file's.
        dims: ``name=N`` for each other dynamic dimension of an imported model.
        input_values: ``name=number`` or ``name=number,number,...`` for each input of an imported
            model that becomes a constant; storage values if the input is quantized.
        every_tensor: return each tensor that the operators of a TensorFlow Lite model compute.
        integer_only: fail if a quantized value is computed in floating point.
        explain: remark which operators run on integers or floats, and which contractions get a
            kernel, with the reasons.
        iree_flags: further flags of ``iree-compile``, after subquant's own.

    Raises:
        UsageError: a value is not among the choices, or out of range.
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
        False, "Return each tensor that operators of a .tflite model compute, in order."
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
        if self.fuse_below_macs < 0:
            raise UsageError(
                f"option 'fuse-below-macs' must be 0 or more, got {self.fuse_below_macs}"
            )
        self.import_options  # noqa: B018  (checks the batch and the dimensions)

    @property
    def import_options(self) -> ImportOptions:
        """How a model of another tool becomes a module."""
        return ImportOptions(
            self.semantics, self.activations, self.batch, self.every_tensor, self.dims,
            self.input_values,
        )  # fmt: skip

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
                *cpu_flags(self.target_cpu),
            ]
        else:
            # A command buffer that is recorded once reads and writes the first call's buffers in
            # later calls too, where a global is loaded and stored.
            flags += [
                "--iree-hal-memoization=false",
                # Transpositions that IREE makes, or moves, end up where threads read what others
                # compute: see `subquant.transforms.iree_workarounds.cross_thread_reads`.
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


def options_of_json(fields: Mapping[str, Any]) -> CompileOptions:
    """Return the options of which `dataclasses.asdict` is given, after a way through JSON."""
    several = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return CompileOptions(**{**fields, **several})
