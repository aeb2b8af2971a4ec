"""Targets: llvm-cpu, and Vulkan devices by their features."""

from __future__ import annotations

from typing import Literal

from ..core.cpu_features import simulated_host_cpu

Target = Literal["llvm-cpu", "vulkan"]


def cpu_flags(target_cpu: str) -> list[str]:
    """Return the flags of ``iree-compile`` for a CPU: ``host``, or one that LLVM knows."""
    if target_cpu != "host":
        return [f"--iree-llvmcpu-target-cpu={target_cpu}"]
    name, _, features = simulated_host_cpu().partition(",")
    flags = [f"--iree-llvmcpu-target-cpu={name or 'host'}"]
    return [*flags, f"--iree-llvmcpu-target-cpu-features={features}"] if features else flags


_GENERIC_GPU = """#hal.device.target<"vulkan", [#hal.executable.target<"vulkan-spirv", \
"vulkan-spirv-fb", {{iree_codegen.target_info = #iree_gpu.target<arch = "{arch}", \
features = "spirv:v1.3,cap:Shader", wgp = <compute = {compute}, storage = {storage}, \
subgroup = none, subgroup_size_choices = [{subgroup}], max_workgroup_sizes = [128, 128, 64], \
max_thread_count_per_workgroup = 128, max_workgroup_memory_bytes = 16384, \
max_workgroup_counts = [65535, 65535, 65535]>>}}>]>"""

_WITH_BYTES = {
    name: _GENERIC_GPU.format(
        arch=f"subquant-{name}",
        compute="fp64|fp32|fp16|int64|int32|int16|int8",
        storage="b64|b32|b16|b8",
        subgroup=8,
    )
    for name in ("generic", "generic-cpu")
}

VULKAN_TARGETS = {
    **_WITH_BYTES,
    "generic-32bit": _GENERIC_GPU.format(
        arch="subquant-generic-32bit", compute="fp32|int32", storage="b32", subgroup=64
    ),
}
"""Vulkan device descriptions that assume no more than their name says.

``generic`` needs 8- and 16-bit storage (nearly every device since 2018, and llvmpipe), and f64 or
i64 only if the program uses them. ``generic-cpu`` is the same for devices that are CPUs, whose
kernels divide their work into fewer workgroups. ``generic-32bit`` loads and stores 32-bit words
only (SwiftShader). None uses subgroup operations: IREE's named targets assume a subgroup size, and
reductions are wrong on a device with another one.
"""

IREE_VULKAN_TARGETS = (
    *("adreno", "ampere", "turing", "volta", "pascal", "valhall", "vp_android_baseline_2022"),
    *("rdna1", "rdna2", "rdna3", "rdna4", "cdna1", "cdna2", "cdna3", "cdna4"),
)
"""Architectures that IREE describes (``--iree-vulkan-target``); it knows products as well."""
