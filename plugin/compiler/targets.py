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
"vulkan-spirv-fb", {{iree_codegen.target_info = #iree_gpu.target<arch = "subquant-{name}", \
features = "{features}", wgp = <compute = {compute}, storage = {storage}, \
subgroup = none, subgroup_size_choices = [{subgroup}], max_workgroup_sizes = [{threads}, 128, 64], \
max_thread_count_per_workgroup = {threads}, max_workgroup_memory_bytes = {memory}, \
max_workgroup_counts = [65535, 65535, 65535]>>}}>]>"""


def _with_bytes(
    name: str, subgroup: int = 8, threads: int = 128, memory: int = 16384, features: str = ""
) -> str:
    """Return the description of a device with 8- and 16-bit storage, and integer dot products."""
    return _GENERIC_GPU.format(
        name=name,
        # Shaders with dot products are of version 1.6, which Vulkan 1.3 has.
        features="spirv:v1.6,cap:Shader,cap:DotProduct,cap:DotProductInput4x8BitPacked,"
        f"ext:SPV_KHR_integer_dot_product{features}",
        compute="fp64|fp32|fp16|int64|int32|int16|int8",
        storage="b64|b32|b16|b8",
        subgroup=subgroup,
        threads=threads,
        memory=memory,
    )


_MATRICES = ",cap:CooperativeMatrixKHR,ext:SPV_KHR_cooperative_matrix"

VULKAN_TARGETS = {
    "generic": _with_bytes("generic"),
    "generic-cpu": _with_bytes("generic-cpu"),
    "generic-matrix": _with_bytes("generic-matrix", 32, 512, 49152, _MATRICES),
    "generic-matrix-8": _with_bytes("generic-matrix-8", 8, 128, 32768, _MATRICES),
    "generic-32bit": _GENERIC_GPU.format(
        name="generic-32bit",
        features="spirv:v1.3,cap:Shader",
        compute="fp32|int32",
        storage="b32",
        subgroup=64,
        threads=128,
        memory=16384,
    ),
}
"""Vulkan device descriptions that assume no more than their name says.

``generic`` needs 8- and 16-bit storage (nearly every device since 2018, and llvmpipe), and f64 or
i64 only if the program uses them. ``generic-cpu`` is the same for devices that are CPUs, whose
kernels divide their work into fewer workgroups. ``generic-matrix`` needs subgroups of 32 threads,
workgroups of 512, and cooperative matrices of 16 x 16 x 16 (NVIDIA); ``generic-matrix-8`` needs
subgroups of 8, and matrices of 8 x 8 x 8 (llvmpipe of Mesa 26). ``generic-32bit`` loads and stores
32-bit words only (SwiftShader). None uses other subgroup operations: IREE's named targets assume a
subgroup size, and reductions are wrong on a device with another one.
"""

VULKAN_KERNELS = {
    "generic-cpu": "spirv-cpu",
    "generic-matrix": "spirv-matrix",
    "generic-matrix-8": "spirv-matrix-8",
}
"""The kernels of targets; others have ``spirv``."""

IREE_VULKAN_TARGETS = (
    *("adreno", "ampere", "turing", "volta", "pascal", "valhall", "vp_android_baseline_2022"),
    *("rdna1", "rdna2", "rdna3", "rdna4", "cdna1", "cdna2", "cdna3", "cdna4"),
)
"""Architectures that IREE describes (``--iree-vulkan-target``); it knows products as well."""
