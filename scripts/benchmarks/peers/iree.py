"""IREE alone: the plain programs of `benchmarks.programs`, at its highest level of optimization.

By default IREE leaves loops unvectorized. Weights are arguments that stay on the device. On Vulkan
they are f32, dequantized before, and the program is compiled with the flags that ours has: those
work around wrong results.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import iree.compiler
import iree.runtime as rt
import numpy as np

from subquant.compiler.compile_options import CompileOptions

from ..blocks import dequantized, planes_of
from ..programs import float_matmul, plain_block_matmul, plain_integers
from . import HOST, Array, Case, Unsupported, target_cpu
from .subquant import Executables

HAS_VULKAN = HAS_TARGET_CPU = True
_TYPES = {
    "float32": rt.HalElementType.FLOAT_32,
    "float16": rt.HalElementType.FLOAT_16,
    "int8": rt.HalElementType.SINT_8,
    "int32": rt.HalElementType.SINT_32,
}


def describe() -> dict[str, str]:
    """Return the name and the version."""
    return {"name": "IREE", "version": version("iree-base-compiler")}


class Program:
    """A function with resident arguments, the first of which all copies share."""

    def __init__(
        self,
        text: str,
        arguments: list[tuple[Array, tuple[int, ...], Any]],
        dtype: Any,
        threads: int,
        copies: int,
        target_cpu: str = HOST,
    ) -> None:
        started = time.perf_counter()
        data = iree.compiler.compile_str(
            text,
            input_type="stablehlo",
            extra_args=[
                "--iree-opt-level=O3",
                "--iree-hal-target-device=local",
                "--iree-hal-local-target-device-backends=llvm-cpu",
                f"--iree-llvmcpu-target-cpu={target_cpu}",
            ],
        )
        self.notes: dict[str, Any] = {
            "path": "dequantize, product of floats" if dtype == np.float32 else "product of i8",
            "seconds": time.perf_counter() - started,
            "bytes": len(data),
        }
        instance = rt.VmInstance()
        rt.flags.parse_flags(f"--task_topology_group_count={threads}")
        self._device = rt.get_device("local-task" if threads > 1 else "local-sync")
        rt.flags.parse_flags("--task_topology_group_count=0")  # the flag holds for the process
        module = rt.VmModule.copy_buffer(instance, data)
        hal = rt.create_hal_module(instance, self._device)
        self._context = rt.VmContext(instance, [hal, module])
        self._function = module.lookup_function("main")
        same = self._view(*arguments[0])
        self._arguments = []
        for _ in range(copies):
            views = rt.VmVariantList(len(arguments))
            for view in [same, *(self._view(*argument) for argument in arguments[1:])]:
                views.push_ref(view)
            self._arguments.append(views)
        self._results: Any = None
        self._dtype = dtype

    def _view(self, array: Array, shape: tuple[int, ...], element: Any) -> Any:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        buffer = self._device.allocator.allocate_buffer(
            memory_type=int(rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE),
            allowed_usage=int(rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING),
            allocation_size=data.nbytes,
        )
        mapped = buffer.map()
        mapped.asarray((data.nbytes,), np.dtype(np.uint8))[:] = data
        del mapped
        return rt.HalBufferView(buffer, shape, int(element))

    def call(self, copy: int) -> None:
        """Compute the case once: see `Prepared`."""
        self._results = rt.VmVariantList(1)
        self._context.invoke(self._function, self._arguments[copy], self._results)

    def result(self) -> Array:
        """Return the result: see `Prepared`."""
        view = self._results.get_as_object(0, rt.HalBufferView)
        result: Array = rt.DeviceArray(self._device, view, implicit_host_transfer=True).to_host()
        return result.astype(self._dtype, copy=True)


def prepare(
    case: Case, arrays: dict[str, Array], threads: int, copies: int
) -> Program | Executables:
    """Prepare a case: see `benchmarks.peers`."""
    x, cpu = arrays["x"], target_cpu(case)
    if case.get("target") == "vulkan":
        weights = dequantized(case["format"], arrays["weights"]).astype(np.float32)
        text = float_matmul(len(x), *weights.shape)
        executables = Executables(text, CompileOptions("vulkan"), x, threads, copies, [weights])
        executables.notes["path"] = "f32 matmul"
        return executables
    if case["kind"] == "block matmul":
        planes = planes_of(case["format"], arrays["weights"])
        if planes is None:
            raise Unsupported("no program in plain types has these blocks")
        (count, depth), bits = planes.storage.shape, planes.bits
        grid = (count, depth // 32)
        half = 1 << (bits - 1)
        signed = planes.storage ^ half  # two's complement of storage - half
        packed = signed[:, ::2] | signed[:, 1::2] << 4 if bits == 4 else signed
        element = rt.HalElementType.SINT_4 if bits == 4 else rt.HalElementType.SINT_8
        arguments = [
            (x, x.shape, _TYPES["float32"]),
            (packed, (*grid, 32), element),
            (planes.scales, grid, _TYPES["float16"]),
        ]
        if planes.zero_points is not None:
            offsets = (half - planes.zero_points.astype(np.float32)) * planes.scales
            arguments.append((offsets.astype(np.float32), grid, _TYPES["float32"]))
        text = plain_block_matmul(
            len(x), count, depth, bits, has_offsets=planes.zero_points is not None
        )
        return Program(text, arguments, np.float32, threads, copies, target_cpu=cpu)
    if case["kind"] in ("model", "network"):
        raise Unsupported("it reads neither .tflite nor .onnx")
    w = arrays["w"]
    axes = (1,) if case["kind"] == "int8 matmul" else (0, 1, 2)
    bias = arrays["bias"] - case["x_zero_point"] * w.sum(axes, dtype=np.int32)
    scales = case["x_scale"] * arrays["w_scales"].astype(np.float64) / case["y_scale"]
    if case.get("groups", 1) > 1:
        w = w.astype(np.float32)
    values = (x, w, bias.astype(np.int32), scales.astype(np.float32))
    arguments = [(value, value.shape, _TYPES[value.dtype.name]) for value in values]
    text = plain_integers(case, arrays)
    return Program(text, arguments, np.int8, threads, copies, target_cpu=cpu)
