"""ONNX Runtime: MatMulNBits at accuracy level 4, QLinearMatMul, QLinearConv; a session a copy.

Activations of 8 bits are unsigned here, which is its faster way: the same values, 128 higher. Where
a CPU has no dot products of bytes, it adds pairs of products in 16 bits then, which saturate: the
module `onnxruntime_exact` beside this one has weights that are unsigned, too, which it widens.

A module of PyTorch has MatMul and Add for a linear layer. ONNX Runtime makes a Gemm of both first,
which it multiplies as floats, with weights that are dequantized in each call, if no quantization
follows. So sessions with and without that step are timed, and the faster one is the peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import NodeProto, TensorProto, helper, numpy_helper

from subquant.runtime.timing import Times, time_calls

from ..blocks import planes_of
from . import Array, Case, Unsupported

HAS_MODULES = True
_ORDERS_OF_FUSION = {"Gemm": (), "MatMulIntegerToFloat": ("MatMulAddFusion",)}
"""The operator of a fused linear layer, and the optimizers that are disabled for it."""
_TRIAL_SECONDS = 0.2
_TYPES = {
    "float32": TensorProto.FLOAT,
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "int32": TensorProto.INT32,
}


def describe() -> dict[str, str]:
    """Return the name and the version."""
    return {"name": "ONNX Runtime", "version": onnxruntime.__version__}


class Sessions:
    """Sessions of one model, each of which packs the weights into memory of its own."""

    def __init__(
        self,
        model: bytes,
        x: Array,
        y: Array,
        threads: int,
        copies: int,
        notes: dict[str, Any],
        *,
        is_exact: bool = False,
        disabled_optimizers: Sequence[str] = (),
    ) -> None:
        options = onnxruntime.SessionOptions()
        if is_exact:  # it makes the weights of a network unsigned itself
            options.add_session_config_entry("session.x64quantprecision", "1")
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._sessions = []
        for _ in range(copies):
            session = onnxruntime.InferenceSession(
                model,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=list(disabled_optimizers),
            )
            binding = session.io_binding()
            operand, result = map(onnxruntime.OrtValue.ortvalue_from_numpy, (x, y))
            binding.bind_ortvalue_input(session.get_inputs()[0].name, operand)
            binding.bind_ortvalue_output(session.get_outputs()[0].name, result)
            self._sessions.append((session, binding, result))
        self._last = self._sessions[0]
        self.notes = {**notes, "bytes": len(model)}

    def call(self, copy: int) -> None:
        """Compute the case once: see `Prepared`."""
        self._last = self._sessions[copy]
        session, binding, _ = self._last
        session.run_with_iobinding(binding)

    def result(self) -> Array:
        """Return the result: see `Prepared`, with signed values of 8 bits."""
        result: Array = self._last[2].numpy()
        return _flipped(result).view(np.int8) if result.dtype == np.uint8 else result


def _flipped(array: Array) -> Array:
    """Add 128 to values of 8 bits."""
    return array.view(np.uint8) ^ np.uint8(128)


def _model(node: NodeProto, x: Array, constants: dict[str, Array], y: Array) -> bytes:
    graph = helper.make_graph(
        [node],
        "main",
        [helper.make_tensor_value_info("x", _TYPES[x.dtype.name], x.shape)],
        [helper.make_tensor_value_info("y", _TYPES[y.dtype.name], y.shape)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    data: bytes = model.SerializeToString()
    return data


def prepare(
    case: Case, arrays: dict[str, Array], threads: int, copies: int, *, is_exact: bool = False
) -> Sessions:
    """Prepare a case: see `benchmarks.peers`.

    Args:
        is_exact: sums of 8-bit products do not saturate.
    """
    if case["kind"] == "network":
        result = np.zeros((1, 1000), np.float32)
        model = arrays["model"].tobytes()
        return Sessions(model, arrays["x"], result, threads, copies, {}, is_exact=is_exact)
    if case["kind"] == "module":
        return _module(case, arrays, threads, is_exact=is_exact)
    if case["kind"] == "block matmul":
        node, x, constants, y = _block_matmul(case, arrays)
    elif case["kind"] in ("int8 matmul", "int8 convolution"):
        node, x, constants, y = _integers(case, arrays, is_exact=is_exact)
    else:
        raise Unsupported("it reads other models")
    notes: dict[str, Any] = {"path": node.op_type}
    if case["kind"] == "block matmul":
        notes["activations"] = {"block": 32, "steps": 254}
    return Sessions(_model(node, x, constants, y), x, y, threads, copies, notes)


def _module(case: Case, arrays: dict[str, Array], threads: int, *, is_exact: bool) -> Sessions:
    """Return the faster of the ways to fuse linear layers."""
    model, y = arrays["onnx"].tobytes(), np.zeros(case["result"], np.float32)
    sessions = [
        Sessions(
            model, arrays["x"], y, threads, 1, {"path": path}, is_exact=is_exact,
            disabled_optimizers=disabled,
        )
        for path, disabled in _ORDERS_OF_FUSION.items()
    ]  # fmt: skip

    def median(each: Sessions) -> float:
        return Times.of(
            time_calls(lambda _: each.call(0), seconds=_TRIAL_SECONDS, warm_up=1)
        ).median

    return min(sessions, key=median)


def _block_matmul(
    case: Case, arrays: dict[str, Array]
) -> tuple[NodeProto, Array, dict[str, Array], Array]:
    planes, x = planes_of(case["format"], arrays["weights"]), arrays["x"]
    if planes is None:
        raise Unsupported("MatMulNBits has no such blocks")
    count, depth = planes.storage.shape
    stored = planes.storage.reshape(count, depth // 32, 32)
    if planes.bits == 4:
        stored = stored[..., ::2] | stored[..., 1::2] << 4
    constants = {"w": stored, "scales": planes.scales.astype(np.float32)}
    if planes.zero_points is not None:
        zero_points = planes.zero_points[:, ::2] | planes.zero_points[:, 1::2] << 4
        constants["zero_points"] = zero_points
    node = helper.make_node(
        "MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft",
        K=depth, N=count, bits=planes.bits, block_size=32, accuracy_level=4,
    )  # fmt: skip
    return node, x, constants, np.zeros((len(x), count), np.float32)


def _integers(
    case: Case, arrays: dict[str, Array], *, is_exact: bool
) -> tuple[NodeProto, Array, dict[str, Array], Array]:
    x, w, bias = _flipped(arrays["x"]), arrays["w"], arrays["bias"]
    is_matmul = case["kind"] == "int8 matmul"
    # weights are [N, K] in a matmul, and in a convolution [height, width, inputs, outputs]
    w = w.T if is_matmul else w.transpose(3, 2, 0, 1)
    zero_points = np.zeros(arrays["w_scales"].shape, np.int8)
    if is_exact:
        w, zero_points = _flipped(w), _flipped(zero_points)
    constants = {
        "x_scale": np.array(case["x_scale"], np.float32),
        "x_zero_point": np.array(case["x_zero_point"] + 128, np.uint8),
        "w": np.ascontiguousarray(w),
        "w_scales": arrays["w_scales"],
        "w_zero_points": zero_points,
        "y_scale": np.array(case["y_scale"], np.float32),
        "y_zero_point": np.array(case["y_zero_point"] + 128, np.uint8),
    }
    y = np.zeros(case["result"], np.uint8)
    if is_matmul:
        if bias.any():
            raise Unsupported("QLinearMatMul has no bias")
        return helper.make_node("QLinearMatMul", ["x", *constants], ["y"]), x, constants, y
    constants["bias"] = bias
    (top, bottom), (left, right) = case["padding"]
    node = helper.make_node(
        "QLinearConv", ["x", *constants], ["y"], domain="com.microsoft", channels_last=1,
        group=case["groups"], strides=case["strides"], pads=[top, left, bottom, right],
    )  # fmt: skip
    return node, x, constants, y
