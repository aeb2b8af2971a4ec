"""An oracle that computes ONNX models in f64 and exact integers, node by node.

The oracle shares nothing with the plugin. Expressed values are f64: sums of products of 8-bit
storage and f32 scales are exact to about 2**-50. Each quantized tensor is compared with the checked
one, and later nodes take the checked one, so a difference is counted once. A quotient within 2**-19
of a tie may round either way: multipliers are products of f32 scales, and a tie of the decimal
scales is no tie of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]

_NEAR = 2.0**-19
_NEAR_IN_F32 = 2.0**-15
"""The tie tolerance of quotients up to 255 that are rounded to f32."""


def convolve(x: Array, w: Array, attributes: Mapping[str, Any]) -> Array:
    """``[N, C, H, W]`` by ``[F, C / groups, KH, KW]``; a fifth of a reference evaluator's lines."""
    groups = attributes.get("group", 1)
    strides = attributes.get("strides", [1, 1])
    steps = attributes.get("dilations", [1, 1])
    top, left, bottom, right = attributes.get("pads", [0, 0, 0, 0])
    if attributes.get("auto_pad", b"NOTSET") == b"SAME_UPPER":
        total = [
            max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            for n, s, k, d in zip(x.shape[2:], strides, w.shape[2:], steps, strict=True)
        ]
        top, left = (n // 2 for n in total)
        bottom, right = (n - n // 2 for n in total)
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    features, per_group, kh, kw = w.shape
    oh, ow = (
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(x.shape[2:], (kh, kw), steps, strides, strict=True)
    )
    out = np.zeros((x.shape[0], features, oh, ow), np.result_type(x, w))
    for group in range(groups):
        mine = slice(group * features // groups, (group + 1) * features // groups)
        channels = x[:, group * per_group : (group + 1) * per_group]
        for i in range(kh):
            for j in range(kw):
                rows = slice(i * steps[0], i * steps[0] + (oh - 1) * strides[0] + 1, strides[0])
                columns = slice(j * steps[1], j * steps[1] + (ow - 1) * strides[1] + 1, strides[1])
                part = channels[:, :, rows, columns]
                out[:, mine] += np.einsum("ncyx,fc->nfyx", part, w[mine, :, i, j])
    return out


def softmax(x: Array, attributes: Mapping[str, Any]) -> Array:
    """Along one axis."""
    axis = attributes.get("axis", -1)
    exps = np.exp(x - x.max(axis=axis, keepdims=True))
    return exps / exps.sum(axis=axis, keepdims=True)


def reshaped(x: Array, shape: Array) -> Array:
    """0 is the extent that was there."""
    return x.reshape([x.shape[axis] if n == 0 else int(n) for axis, n in enumerate(shape)])


def sliced(x: Array, starts: Array, ends: Array, axes: Array, steps: Array | None = None) -> Array:
    """Python's slices."""
    index = [slice(None)] * x.ndim
    for start, end, axis, step in zip(
        starts, ends, axes, [1] * len(starts) if steps is None else steps, strict=True
    ):
        index[int(axis)] = slice(int(start), int(end), int(step))
    return x[tuple(index)]


def gemm(x: Array, w: Array, bias: Array | None, attributes: Mapping[str, Any]) -> Array:
    """A product of two matrices."""
    x = x.T if attributes.get("transA", 0) else x
    w = w.T if attributes.get("transB", 0) else w
    product = attributes.get("alpha", 1.0) * (x @ w)
    return product if bias is None else product + attributes.get("beta", 1.0) * bias


_FLOATS: dict[str, Callable[..., Any]] = {
    "Add": lambda a, x, y: x + y,
    "Concat": lambda a, *x: np.concatenate(x, axis=a["axis"]),
    "Conv": lambda a, x, w, b=None: (
        convolve(x, w, a) + (0 if b is None else b.reshape(1, -1, 1, 1))
    ),
    "Div": lambda a, x, y: x / y,
    "Exp": lambda a, x: np.exp(x),
    "Gemm": lambda a, x, w, b=None: gemm(x, w, b, a),
    "GlobalAveragePool": lambda a, x: x.mean(axis=(2, 3), keepdims=True),
    "Identity": lambda a, x: x,
    "LeakyRelu": lambda a, x: np.where(x < 0, x * a.get("alpha", 0.01), x),
    "MatMul": lambda a, x, y: x @ y,
    "Mul": lambda a, x, y: x * y,
    "Relu": lambda a, x: np.maximum(x, 0),
    "Reshape": lambda a, x, shape: reshaped(x, shape),
    "Sigmoid": lambda a, x: 1 / (1 + np.exp(-x)),
    "Slice": lambda a, *x: sliced(*x),
    "Softmax": lambda a, x: softmax(x, a),
    "Sub": lambda a, x, y: x - y,
    "Tanh": lambda a, x: np.tanh(x),
    "Transpose": lambda a, x: x.transpose(a["perm"]),
}
_MOVES = frozenset(("Concat", "Identity", "Reshape", "Slice", "Transpose"))


def spread(values: Array, rank: int, axis: int) -> Array:
    """One number, or one for each index of an axis."""
    if values.size == 1:
        return values.reshape(())
    return values.reshape([-1 if a == axis % rank else 1 for a in range(rank)])


class Oracle:
    """Computes a model beside the tensors that are checked, by name."""

    def __init__(self, model: onnx.ModelProto, ours: Mapping[str, Array]) -> None:
        self._model, self._ours = model, ours
        self.integers = self.floats = 0

    def __call__(self, inputs: Mapping[str, Array], tolerance: float = 1e-5) -> None:
        """Compare every tensor; count the values in `integers` and `floats`.

        The tolerance of floats is a part of the greatest.
        """
        values: dict[str, Any] = {"": None} | dict(inputs)
        values |= {t.name: numpy_helper.to_array(t) for t in self._model.graph.initializer}
        for node in self._model.graph.node:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            operands = [values[name] for name in node.input]
            if node.op_type.startswith("Dynamic") and node.input[0] in self._ours:
                operands[0] = self._ours[node.input[0]]  # parameters follow from the least bits
            self._node = node
            results = self._results(node.op_type, attributes, operands)
            for name, result in zip(node.output, results, strict=True):
                values[name] = self._checked(f"{node.op_type} {name}", name, result, tolerance)

    def _checked(self, what: str, name: str, result: Any, tolerance: float) -> Array:
        ours = self._ours[name]
        if isinstance(result, tuple):  # quotients and the zero point
            quotient, zero_point, dtype = result
            info = np.iinfo(dtype)
            allowed = _NEAR_IN_F32 if what.startswith("Dynamic") else _NEAR
            if np.dtype(dtype).itemsize > 1:  # quotients of floats, in units of their last places
                allowed = np.maximum(allowed, np.abs(quotient) * 2.0**-21)
            is_near_tie = abs(np.abs(quotient - np.floor(quotient)) - 0.5) < allowed
            stored = np.clip(np.rint(quotient) + zero_point, info.min, info.max).astype(dtype)
            differs = stored != ours
            assert ours.dtype == dtype, what
            assert ours.shape == stored.shape, what
            wrong = int((differs & ~is_near_tie).sum())
            assert not wrong, f"{what}: {wrong} differ"
            assert (np.abs(stored.astype(int) - ours)[differs] <= 1).all(), what
            self.integers += stored.size
            return ours
        expected = np.asarray(result)
        assert ours.shape == expected.shape, what
        if expected.dtype.kind in "iub":
            np.testing.assert_array_equal(ours, expected, what)
            self.integers += expected.size
            return ours
        bound = tolerance * max(float(np.abs(expected).max(initial=0)), 1e-9)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=bound, err_msg=what)
        self.floats += expected.size
        return expected

    def _results(
        self, operator: str, attributes: Mapping[str, Any], operands: list[Any]
    ) -> list[Any]:
        if operator == "Constant":
            return [numpy_helper.to_array(attributes["value"])]
        if operator == "Cast":
            return [operands[0].astype(helper.tensor_dtype_to_np_dtype(attributes["to"]))]
        if operator == "DequantizeLinear" and attributes.get("block_size", 0):
            axis, size = attributes["axis"], attributes["block_size"]
            extent = operands[0].shape[axis]
            planes = [np.repeat(p, size, axis).take(range(extent), axis) for p in operands[1:]]
            return [(operands[0].astype(np.int64) - planes[1].astype(np.int64)) * _wide(planes[0])]
        if operator == "DequantizeLinear":
            return [dequantized(*operands, axis=attributes.get("axis", 1))]
        if operator == "QuantizeLinear":
            return [quantized(*operands, axis=attributes.get("axis", 1))]
        if operator == "DynamicQuantizeLinear":
            x = operands[0].astype(np.float32)
            low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
            scale = np.float32((high - low) / np.float32(255))
            zero_point = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
            return [quantized(x.astype(np.float64), scale, zero_point), scale, zero_point]
        if operator in ("ConvInteger", "MatMulInteger"):
            x, w = (side.astype(np.int64) for side in operands[:2])
            zeros = [np.asarray(z).astype(np.int64) for z in operands[2:]] + [np.int64(0)] * 2
            if operator == "ConvInteger":
                product = convolve(x - zeros[0], w - spread(np.asarray(zeros[1]), 4, 0), attributes)
            else:
                product = (x - zeros[0]) @ (w - zeros[1])
            return [product.astype(np.int32)]
        if operator.startswith("QLinear") or operator == "QGemm":
            return [self._qlinear(operator, attributes, operands)]
        if operator == "DynamicQuantizeMatMul":
            x, w, scale, *rest = [*operands, None, None][:5]
            (quotient, zero, _), x_scale, _ = self._results("DynamicQuantizeLinear", {}, [x])
            real = (np.clip(np.rint(quotient) + zero, 0, 255) - zero) * np.float64(x_scale)
            product = real @ dequantized(w, scale, rest[0], axis=1)
            return [product if rest[1] is None else product + rest[1]]
        if operator == "MaxPool" and operands[0].dtype.kind in "iu":
            (actual,) = evaluated(self._model, self._node, [operands[0].astype(np.float64)])
            return [actual.astype(operands[0].dtype)]
        if operator not in _FLOATS:
            return evaluated(self._model, self._node, operands)
        result = _FLOATS[operator](attributes, *map(_wide, operands))
        if operator in _MOVES and operands[0].dtype.kind in "iu":
            result = result.astype(operands[0].dtype)
        return [result]

    def _qlinear(self, operator: str, attributes: Mapping[str, Any], operands: list[Any]) -> Any:
        """Reals of the operands, the operator, and the parameters of the result."""
        name = operator.removeprefix("QLinear").removeprefix("Q")
        if name == "Concat":
            scale, zero_point, *rest = operands
            quotients = []
            for index in range(0, len(rest), 3):
                quotient, _, _ = quantized(dequantized(*rest[index : index + 3]), scale, zero_point)
                quotients.append(quotient)
            return np.concatenate(quotients, axis=attributes["axis"]), zero_point, zero_point.dtype
        if name == "Where":
            sides = [quantized(dequantized(*operands[n : n + 3]), *operands[7:9]) for n in (1, 4)]
            return (np.where(operands[0], sides[0][0], sides[1][0]), *sides[0][1:])
        if name in ("AveragePool", "ReduceMean"):
            real = dequantized(*operands[:3])
            (mean,) = evaluated(self._model, plain_node(self._node, name, attributes), [real])
            return quantized(mean, *operands[3:])
        if name in ("GlobalAveragePool", "Sigmoid", "LeakyRelu", "Softmax"):
            real = dequantized(*operands[:3])
            return quantized(_FLOATS[name](attributes, real), *operands[3:])
        column = 0 if name == "Conv" or attributes.get("transB", 0) else 1
        sides = [dequantized(*operands[:3]), dequantized(*operands[3:6], axis=column)]
        # Conv has its bias after the scale and zero point of the result, Gemm before them.
        start = {"Conv": 8, "Gemm": 6}.get(name, 9)
        biases, scales = operands[start : start + 1], operands[6:start] + operands[start + 1 :]
        units = np.float64(operands[1]) * operands[4].astype(np.float64).reshape(-1)
        biases = [bias * units for bias in biases if bias is not None]
        real = _FLOATS[name](attributes, *sides, *biases)
        return quantized(real, *scales) if scales else real


def plain_node(node: Any, operator: str, attributes: Mapping[str, Any]) -> Any:
    """The float operator of a quantized one, of its first operand."""
    options = {name: value for name, value in attributes.items() if name != "channels_last"}
    return helper.make_node(operator, node.input[:1], node.output, **options)


def evaluated(model: onnx.ModelProto, node: Any, operands: list[Any]) -> list[Any]:
    """One node by ONNX's reference evaluator, its floats in f64."""
    named = zip(node.input, operands, strict=True)
    feeds = {name: np.asarray(_wide(value)) for name, value in named if name}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "one", inputs, outputs)
    opsets = [each for each in model.opset_import if not each.domain]
    whole = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return list(ReferenceEvaluator(whole).run(None, feeds))


def _wide(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.astype(np.float64)
    return value


def dequantized(q: Array, scale: Array, zero_point: Array | None = None, axis: int = 1) -> Array:
    """``(q - zero_point) * scale``."""
    zero = np.asarray(0 if zero_point is None else zero_point).astype(np.int64)
    moved = q.astype(np.int64) - spread(zero, q.ndim, axis)
    return moved * spread(np.asarray(scale).astype(np.float64), q.ndim, axis)


def quantized(x: Array, scale: Array, zero_point: Array, axis: int = 1) -> tuple[Any, Any, Any]:
    """Return the quotient, the zero point and the type of the rounded result."""
    quotient = np.asarray(x, np.float64) / spread(np.asarray(scale, np.float64), x.ndim, axis)
    zero = spread(np.asarray(zero_point).astype(np.int64), x.ndim, axis)
    return quotient, zero, np.asarray(zero_point).dtype
