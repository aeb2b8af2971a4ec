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
    check_choices,
    option,
)
from ..errors import UsageError
from ..importers.options import ImportOptions
from .targets import VULKAN_TARGETS, Target, cpu_flags

__all__ = ["CompileOptions", "Emit", "options_of_json"]

Emit = Literal["vmfb", "mlir", "mlirbc"]
"""What a compilation gives: an executable, or what IREE would get, as text or bytecode."""


@dataclass(frozen=True)
class CompileOptions:
    """What to compile for.

    Args:
        target: ``llvm-cpu`` or ``vulkan``.
        target_cpu: for llvm-cpu: ``host``, or a CPU that LLVM knows (``znver4``, ``generic``).
        vulkan_target: for vulkan: a key of `VULKAN_TARGETS`, or a name that IREE's
            ``--iree-vulkan-target`` takes (``ampere``, ``rdna3``) for the device that will run it.
        rounding: as in `subquant.numerics.casts.quantize_blocks`.
        requantization: ``exact``, or ``fixed-point``: one 31-bit multiplier and shift a factor, at
            most one step from exact.
        fixed_point_rounding: one of `subquant.numerics.fixed_point.ROUNDINGS`. zero_points: as
        `subquant.core.option_fields.ZeroPoints`; ``auto`` is what was measured to be fastest:
            ``mixed`` for llvm-cpu, ``after`` for vulkan.
        kernels: as `subquant.core.option_fields.KernelChoice`.
        joined_products: calls of kernels that follow one another, of at most so many products of 8
            bits each, are one dispatch (`subquant.kernels.fusion.dispatch_fusion`); 0 for none.
        semantics: as `subquant.core.option_fields.Semantics`.
        batch: the first extent of the inputs of a TensorFlow Lite model: a number, ``dynamic``, or
            "" for what the file says.
        extents: ``name=N`` for each other extent that a model leaves open.
        input_values: ``name=number`` or ``name=number,number,...`` for each input of a model that
            becomes a constant; the integers of one that is quantized.
        every_tensor: return all that the operators of a TensorFlow Lite model compute.
        integer_only: fail if quantized values are computed with floats on the way.
        explain: say what of a model computes with integers and what with floats, and which weights
            in blocks a kernel takes, with the reasons.
        iree_flags: further flags for ``iree-compile``, after those that subquant gives.

    Raises:
        UsageError: an unknown target, rounding or other choice, or another batch.
    """

    target: Target = option("llvm-cpu", "What to compile for.")
    target_cpu: str = option(
        "host", "The CPU for llvm-cpu: host, generic, or a name that LLVM knows.", "CPU"
    )
    vulkan_target: str = option(
        "generic",
        "The device for vulkan: generic (8-bit storage), generic-cpu (the same, of a CPU), "
        "generic-32bit, auto (what is here), or a name that IREE knows, such as ampere.",
        "NAME",
    )
    rounding: Rounding = option(
        "nearest-even", "How casts round; toward-zero repeats upstream's lower-quant-ops."
    )
    requantization: RequantizationForm = option(
        "exact", "How accumulators become storage: exact, or one 31-bit multiplier and shift."
    )
    fixed_point_rounding: FixedPointRounding = option("half-up", "Of --requantization fixed-point.")
    zero_points: Literal["auto", ZeroPoints] = option(
        "auto",
        "Correct a contraction after its sums, subtract zero points inside, or inside where only "
        "the left operand has one (auto: mixed for llvm-cpu, after for vulkan).",
    )
    activations: Activations = option(
        "float",
        "What contractions with weights in blocks multiply: activations as they are, or rounded to "
        "8 bits with a scale for each block.",
    )
    kernels: KernelChoice = option(
        "auto",
        "What kernels multiply with: the fastest that the CPU has, none for IREE's own loops, or "
        "instructions by name (on vulkan: spirv, or spirv-cpu).",
    )
    joined_products: int = option(
        1 << 19,
        "Calls of kernels of at most so many products of 8 bits become one dispatch where they "
        "follow one another; 0: none.",
        "N",
    )
    semantics: Semantics = option(
        "litert",
        "How a .tflite model computes: as LiteRT's reference kernels, or exactly, as StableHLO.",
    )
    batch: str = option(
        "",
        "The batch of a .tflite or .onnx model: a number, or dynamic.  [default: the file's]",
        "N",
    )
    extents: tuple[str, ...] = option(
        (),
        "An extent that a .tflite or .onnx model leaves open, by its name there or as INPUT.AXIS; "
        "may be repeated.",
        "NAME=N",
    )
    input_values: tuple[str, ...] = option(
        (),
        "An input of a .tflite or .onnx model that becomes a constant: a number, or several with "
        "commas; may be repeated.",
        "NAME=VALUE",
    )
    every_tensor: bool = option(
        False, "Return all tensors that operators of a .tflite model compute, in order."
    )
    integer_only: bool = option(
        False, "Fail if quantized values are computed with floats on the way."
    )
    explain: bool = option(
        False,
        "Say what of an .onnx model computes with integers and what with floats, and which "
        "contractions a kernel computes, with the reasons where none does.",
    )
    iree_flags: tuple[str, ...] = option(
        (), "A further flag for iree-compile; may be repeated.", "FLAG"
    )

    def __post_init__(self) -> None:
        check_choices(self)
        if self.joined_products < 0:
            raise UsageError(
                f"option 'joined-products' must be 0 or more, got {self.joined_products}"
            )
        self.import_options  # noqa: B018  (which checks the batch and the extents)

    @property
    def import_options(self) -> ImportOptions:
        """How a model of another tool becomes a module."""
        return ImportOptions(
            self.semantics, self.activations, self.batch, self.every_tensor, self.extents,
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
