"""Cases of ONNX operators with drawn attributes, in the form of the newest operator set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import defs

from onnx_versions import VersionCase

Array = np.ndarray[Any, Any]


def _floats(
    seed: int, *shape: int, dtype: Any = np.float32, low: float = -3, high: float = 3
) -> Array:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def _integers(seed: int, *shape: int, dtype: Any = np.int32, low: int = -9, high: int = 9) -> Array:
    low = max(low, np.iinfo(dtype).min)
    return np.random.default_rng(seed).integers(low, high, shape, endpoint=True).astype(dtype)


def _booleans(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(0, 2, shape).astype(np.bool_)


def _ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


_FLOAT_TYPES = (np.float32, np.float16, np.float64)
_INTEGER_TYPES = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)


def _elementwise() -> Iterator[VersionCase]:
    for operator in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Pow"):
        for dtype in (*_FLOAT_TYPES[:1], *_INTEGER_TYPES):
            is_float = np.dtype(dtype).kind == "f"
            make = _floats if is_float else _integers
            left, right = make(1, 2, 3, 4, dtype=dtype), make(2, 3, 1, dtype=dtype)
            if operator in ("Div", "Mod"):
                right = np.where(right == 0, np.ones((), dtype), right)
            if operator == "Pow":
                right = np.abs(right) if not is_float else right
                left = np.abs(left) if is_float else left
                right = np.minimum(right, np.asarray(3, dtype))
            names = {"Max": "ab", "Min": "ab", "Pow": "XY"}.get(operator, "AB")
            attributes = {"fmod": 1} if operator == "Mod" and is_float else {}
            yield VersionCase(operator, dict(zip(names, (left, right), strict=True)), attributes)
            if operator == "Mod" and not is_float:
                yield VersionCase(operator, {"A": left, "B": right}, {"fmod": 1})
    for operator in ("Sum", "Mean", "Max", "Min"):
        yield VersionCase(operator, {n: _floats(k, 2, 3) for k, n in enumerate("abc")})
    for operator in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        for dtype in (np.float32, *_INTEGER_TYPES):
            make = _floats if np.dtype(dtype).kind == "f" else _integers
            sides = [make(k, *shape, dtype=dtype).round() for k, shape in enumerate([(3, 4), (4,)])]
            yield VersionCase(operator, dict(zip("AB", sides, strict=True)))
    for operator in ("And", "Or", "Xor"):
        yield VersionCase(operator, {"A": _booleans(1, 3, 4), "B": _booleans(2, 4)})
    for dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
        for direction in ("LEFT", "RIGHT"):
            shift = _integers(2, 3, 4, dtype=dtype, low=0, high=7)
            yield VersionCase("BitShift", {"X": _integers(1, 3, 4, dtype=dtype, low=0, high=200),
                                           "Y": shift}, {"direction": direction})  # fmt: skip
    for operator in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield VersionCase(operator, {"A": _integers(1, 3, 4), "B": _integers(2, 4)})
    yield VersionCase("BitwiseNot", {"X": _integers(1, 3, 4)})
    yield VersionCase("Not", {"X": _booleans(1, 3, 4)})
    for dtype in (np.float32, np.int8, np.uint8, np.int64):
        sides = [_integers(k, 3, 4, dtype=np.int8).astype(dtype) for k in (1, 2)]
        yield VersionCase("Where", {"condition": _booleans(0, 4), "X": sides[0], "Y": sides[1]})
    conditions = {"condition": _booleans(0, 4), "X": _booleans(1, 3, 4), "Y": _booleans(2, 3, 4)}
    yield VersionCase("Where", conditions)


_DOMAINS = {
    "Acos": (-1, 1), "Asin": (-1, 1), "Atanh": (-0.99, 0.99), "Acosh": (1, 9), "Log": (0.01, 9),
    "Sqrt": (0, 9), "Reciprocal": (0.5, 3),
}  # fmt: skip
"""Ranges of the arguments of functions."""
_UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp",
    "Floor", "HardSwish", "Identity", "IsNaN", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh",
)  # fmt: skip
_WITH_ATTRIBUTES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Celu", {"alpha": 0.7}), ("Elu", {"alpha": 0.7}), ("Gelu", {"approximate": "tanh"}),
    ("Gelu", {}), ("HardSigmoid", {"alpha": 0.3, "beta": 0.6}), ("IsInf", {"detect_negative": 0}),
    ("LeakyRelu", {"alpha": 0.3}), ("Selu", {"alpha": 1.2, "gamma": 1.1}),
    ("Shrink", {"lambd": 0.7, "bias": 0.2}), ("Swish", {"alpha": 1.3}),
    ("ThresholdedRelu", {"alpha": 0.4}), ("HardSigmoid", {}), ("Elu", {}), ("LeakyRelu", {}),
    ("Selu", {}), ("Shrink", {}), ("ThresholdedRelu", {}), ("Celu", {}),
)  # fmt: skip


def _functions() -> Iterator[VersionCase]:
    for operator in _UNARY:
        low, high = _DOMAINS.get(operator, (-3, 3))
        name = defs.get_schema(operator).inputs[0].name
        for dtype in _FLOAT_TYPES[:2]:
            yield VersionCase(operator, {name: _floats(1, 3, 7, dtype=dtype, low=low, high=high)})
    for operator in ("Abs", "Neg", "Sign", "Relu"):
        for dtype in _INTEGER_TYPES:
            name = defs.get_schema(operator).inputs[0].name
            yield VersionCase(operator, {name: _integers(1, 3, 7, dtype=dtype)})
    for operator, attributes in _WITH_ATTRIBUTES:
        name = defs.get_schema(operator).inputs[0].name
        yield VersionCase(operator, {name: _floats(1, 3, 7)}, attributes)
    yield VersionCase("PRelu", {"X": _floats(1, 2, 3, 4), "slope": _floats(2, 3, 1)})
    for dtype in (np.float32, np.int8, np.uint8, np.int64, np.float16):
        bounds = {"min": np.asarray(1, dtype), "max": np.asarray(4, dtype)}
        x = _integers(1, 3, 7, dtype=np.int8).astype(dtype)
        yield VersionCase("Clip", {"input": x, **bounds}, {}, ("min", "max"))
        yield VersionCase("Clip", {"input": x, "min": bounds["min"]}, {}, ("min",))
        yield VersionCase("Clip", {"input": x, "min": None, "max": bounds["max"]}, {}, ("max",))
        yield VersionCase("Clip", {"input": x})
    for operator in ("Softmax", "LogSoftmax", "Hardmax"):
        for shape in ((3, 4, 5), (6, 2)):
            x = _floats(3, *shape)
            yield VersionCase(operator, {"input": x})
            for axis in range(-1, len(shape)):
                yield VersionCase(operator, {"input": x}, {"axis": axis})


def _reductions() -> Iterator[VersionCase]:
    names = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    for name in names:
        x = _floats(1, 2, 3, 4, low=0.2)
        for axes in (None, _ints(1), _ints(-1, 0)):
            for keep in (0, 1):
                yield VersionCase(f"Reduce{name}", {"data": x, "axes": axes}, {"keepdims": keep},
                                  ("axes",))  # fmt: skip
        for dtype in (np.int32, np.int64, np.int8, np.uint8):
            if name in ("Max", "Min", "Sum", "Prod", "Mean", "L1", "SumSquare"):
                data = _integers(2, 2, 3, dtype=dtype, low=1 if name == "Prod" else -5, high=5)
                yield VersionCase(f"Reduce{name}", {"data": data, "axes": _ints(1)}, {}, ("axes",))


def _pools() -> Iterator[VersionCase]:
    for rank, extents in ((1, (11,)), (2, (9, 8)), (3, (5, 6, 7))):
        x = _floats(rank, 2, 3, *extents)
        two, three = ({"kernel_shape": [n] * rank} for n in (2, 3))
        steps, pads = {"strides": [2] * rank}, {"pads": [1] * (2 * rank)}
        dilated, ceil = {"dilations": [2] * rank}, {"ceil_mode": 1}
        windows: tuple[dict[str, Any], ...] = (
            three,
            three | steps | ceil,
            two | steps | ceil | {"pads": [1, *[0] * (2 * rank - 1)]},
            three | steps | pads,
            two | dilated,
            three | dilated | ceil | steps | pads,
            three | steps | {"auto_pad": "SAME_UPPER"},
            two | steps | {"auto_pad": "SAME_LOWER"},
            three | steps | {"auto_pad": "VALID"},
        )
        for attributes in windows:
            yield VersionCase("MaxPool", {"X": x}, attributes)
            yield VersionCase("MaxPool", {"X": x}, attributes, (), 2)
            yield VersionCase("LpPool", {"X": x}, {**attributes, "p": 2})
            for include in (0, 1):
                yield VersionCase(
                    "AveragePool", {"X": x}, {**attributes, "count_include_pad": include}
                )
        for operator in ("GlobalMaxPool", "GlobalAveragePool"):
            yield VersionCase(operator, {"X": x})
        yield VersionCase("GlobalLpPool", {"X": x}, {"p": 3})
    x = _floats(4, 1, 2, 6, 7)
    for dtype in (np.int8, np.uint8):
        integers = _integers(4, 1, 2, 6, 7, dtype=dtype)
        attributes = {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}
        yield VersionCase("MaxPool", {"X": integers}, attributes)
    yield VersionCase("MaxPool", {"X": x}, {"kernel_shape": [2, 2], "storage_order": 1}, (), 2)
    for shape in ((2, 3, 7), (2, 2, 4, 5, 3)):
        column_major = {"kernel_shape": [2] * (len(shape) - 2), "storage_order": 1}
        yield VersionCase("MaxPool", {"X": _floats(6, *shape)}, column_major, (), 2)
    yield VersionCase("LRN", {"X": _floats(5, 2, 7, 3, 4)}, {"size": 3, "alpha": 0.1, "beta": 0.6})


def _contractions() -> Iterator[VersionCase]:
    for dtype in (np.float32, np.float64, np.int32, np.int64):
        make = _floats if np.dtype(dtype).kind == "f" else _integers
        yield VersionCase(
            "MatMul", {"A": make(1, 2, 3, 4, dtype=dtype), "B": make(2, 4, 5, dtype=dtype)}
        )
        for attributes in ({}, {"transA": 1, "alpha": 0.5}, {"transB": 1, "beta": 0.25}):
            a = make(1, *((4, 3) if "transA" in attributes else (3, 4)), dtype=dtype)
            b = make(2, *((5, 4) if "transB" in attributes else (4, 5)), dtype=dtype)
            if np.dtype(dtype).kind == "f" or not attributes:
                yield VersionCase(
                    "Gemm", {"A": a, "B": b, "C": make(3, 5, dtype=dtype)}, attributes
                )
    yield VersionCase("Gemm", {"A": _floats(1, 3, 4), "B": _floats(2, 4, 5)})
    for rank, extents in ((1, (9,)), (2, (7, 6)), (3, (4, 5, 6))):
        for attributes in ({}, {"pads": [1] * (2 * rank), "strides": [2] * rank}, {"group": 2},
                           {"dilations": [2] * rank, "auto_pad": "SAME_UPPER"}):  # fmt: skip
            channels = 4 // attributes.get("group", 1)
            yield VersionCase("Conv", {"X": _floats(1, 2, 4, *extents),
                                       "W": _floats(2, 6, channels, *[2] * rank),
                                       "B": _floats(3, 6)}, attributes)  # fmt: skip


def _shapes() -> Iterator[VersionCase]:
    x = _floats(1, 1, 3, 1, 4)
    yield VersionCase("Squeeze", {"data": x, "axes": _ints(0, 2)}, {}, ("axes",))
    yield VersionCase("Squeeze", {"data": x})
    yield VersionCase("Unsqueeze", {"data": _floats(1, 3, 4), "axes": _ints(0, 3)}, {}, ("axes",))
    bounds = ("starts", "ends", "axes", "steps")
    for numbers in (
        (_ints(1, -4), _ints(4, 99), _ints(0, 1)),
        (_ints(1), _ints(9), _ints(1), _ints(2)),
        (_ints(4), _ints(-9), _ints(1), _ints(-2)),
    ):
        names = bounds[: len(numbers)]
        inputs = {"data": _floats(1, 5, 6), **dict(zip(names, numbers, strict=True))}
        yield VersionCase("Slice", inputs, {}, names)
    yield VersionCase("Split", {"input": _floats(1, 5, 6), "split": _ints(1, 4)}, {"axis": 0},
                      ("split",), 2)  # fmt: skip
    yield VersionCase("Split", {"input": _floats(1, 4, 6)}, {}, (), 2)
    yield VersionCase("Split", {"input": _floats(1, 7, 6)}, {"num_outputs": 3}, (), 3)
    for dtype in (np.float32, np.int8, np.int64, np.bool_, np.uint16):
        data = _integers(1, 3, 4, dtype=np.int8).astype(dtype)
        yield VersionCase("Transpose", {"data": data}, {"perm": [1, 0]})
        yield VersionCase("Reshape", {"data": data, "shape": _ints(2, -1, 3)}, {}, ("shape",))
        yield VersionCase("Reshape", {"data": data, "shape": _ints(0, 2, 2)}, {}, ("shape",))
        yield VersionCase("Flatten", {"input": data}, {"axis": -1})
        yield VersionCase("Expand", {"input": data, "shape": _ints(2, 1, 4)}, {}, ("shape",))
        yield VersionCase("Tile", {"input": data, "repeats": _ints(2, 3)}, {}, ("repeats",))
        yield VersionCase("Concat", {"a": data, "b": data}, {"axis": 1})
        yield VersionCase("Gather", {"data": data, "indices": _ints(0, -1, 2)}, {"axis": 1})
        yield VersionCase("Shape", {"data": data})
        yield VersionCase("Shape", {"data": data}, {"start": -1})
        yield VersionCase("Size", {"data": data})
        for target in (1, 2, 3, 6, 7, 9, 10, 11, 12, 13):
            positive = data if data.dtype == np.bool_ else np.abs(data)
            yield VersionCase("Cast", {"input": positive}, {"to": target})
    yield VersionCase("Dropout", {"data": _floats(1, 3, 4)})
    yield VersionCase("Dropout", {"data": _floats(1, 3, 4)}, {}, (), 2)


def _moved() -> Iterator[VersionCase]:
    for dtype in (np.float32, np.int8, np.int64, np.uint8, np.float16):
        data = _integers(1, 3, 4, dtype=np.int8).astype(dtype)
        for mode in ("constant", "reflect", "edge"):
            yield VersionCase("Pad", {"data": data, "pads": _ints(1, 0, 2, 1)}, {"mode": mode},
                              ("pads",))  # fmt: skip
        value = np.asarray(3, dtype)
        yield VersionCase("Pad", {"data": data, "pads": _ints(0, 1, 1, 2), "value": value}, {},
                          ("pads", "value"))  # fmt: skip
        yield VersionCase("Pad", {"data": data, "pads": _ints(-1, 1, 0, -1)}, {}, ("pads",))
        unused = {"data": data, "pads": _ints(0, 1, 1, 2), "constant_value": value}
        yield VersionCase("Pad", unused, {"mode": "reflect"}, ("pads", "constant_value"))
        blocks = _integers(2, 1, 8, 4, 6, dtype=np.int8).astype(dtype)
        for mode in ("DCR", "CRD"):
            yield VersionCase("DepthToSpace", {"input": blocks}, {"blocksize": 2, "mode": mode})
        yield VersionCase("DepthToSpace", {"input": blocks}, {"blocksize": 2})
        yield VersionCase("SpaceToDepth", {"input": blocks}, {"blocksize": 2})
    for dtype in (np.float32, np.int32):
        x = _integers(3, 4, 5, dtype=np.int32).astype(dtype)
        for options in ({}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}):
            yield VersionCase("CumSum", {"x": x, "axis": np.array(1, np.int32)}, options, ("axis",))
        for upper in (0, 1):
            yield VersionCase("Trilu", {"input": x}, {"upper": upper})
            yield VersionCase("Trilu", {"input": x, "k": np.array(-1, np.int64)}, {"upper": upper},
                              ("k",))  # fmt: skip
    lengths = _ints(1, 3, 2, 4)
    for options in ({"batch_axis": 1, "time_axis": 0}, {}):
        yield VersionCase("ReverseSequence", {"input": _floats(1, 4, 4), "sequence_lens": lengths},
                          options, ("sequence_lens",))  # fmt: skip
    yield VersionCase("ConstantOfShape", {"input": _ints(2, 3)}, {}, ("input",))
    yield VersionCase("EyeLike", {"input": _floats(1, 3, 4)}, {"k": 1})
    yield VersionCase("Einsum", {"a": _floats(1, 2, 3, 4), "b": _floats(2, 2, 4, 5)},
                      {"equation": "bij,bjk->bik"})  # fmt: skip


def _indexed() -> Iterator[VersionCase]:
    data = _floats(1, 4, 5, 3)
    for operator in ("ArgMax", "ArgMin"):
        for dtype in (np.float32, np.int32, np.int8, np.uint8):
            x = _integers(1, 4, 5, dtype=np.int8, low=0, high=3).astype(dtype)
            for options in ({}, {"axis": 1, "keepdims": 0}, {"axis": -1, "select_last_index": 1}):
                yield VersionCase(operator, {"data": x}, options)
    for dtype in (np.float32, np.int64):
        x = np.random.default_rng(4).permutation(30).reshape(5, 6).astype(dtype)
        for options in ({}, {"largest": 0}, {"axis": 0}):
            yield VersionCase("TopK", {"X": x, "K": _ints(3)}, options, ("K",), 2)
    indices = _integers(2, 4, 2, 3, dtype=np.int64, low=-5, high=4)
    yield VersionCase("GatherElements", {"data": data, "indices": indices}, {"axis": 1})
    pairs = np.array([[0, 1], [3, -2], [1, 4]], np.int64)
    yield VersionCase("GatherND", {"data": data, "indices": pairs})
    yield VersionCase("GatherND", {"data": data, "indices": _ints(1, 0, 2, 4).reshape(4, 1)},
                      {"batch_dims": 1})  # fmt: skip
    updates = _floats(5, 4, 2, 3)
    indices = np.stack([np.stack([np.random.default_rng(n).permutation(5)[:2] for n in range(3)], 1)
                       for _ in range(4)])  # fmt: skip
    for operator in ("ScatterElements", "Scatter"):
        yield VersionCase(operator, {"data": data, "indices": indices, "updates": updates},
                          {"axis": 1})  # fmt: skip
    for reduction in ("none", "add", "mul", "max", "min"):
        yield VersionCase("ScatterElements", {"data": data, "indices": indices, "updates": updates},
                          {"axis": 1, "reduction": reduction})  # fmt: skip
        yield VersionCase("ScatterND", {"data": data, "indices": pairs,
                                        "updates": _floats(6, 3, 3)},
                          {"reduction": reduction})  # fmt: skip
    one_hot = {"indices": _ints(0, 2, -1), "depth": np.array(4, np.int64),
               "values": np.array([0, 1], np.float32)}  # fmt: skip
    yield VersionCase("OneHot", one_hot, {}, ("depth",))


def _recurrent() -> Iterator[VersionCase]:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}
    for operator, count in gates.items():
        for direction in ("forward", "reverse", "bidirectional"):
            ways = 2 if direction == "bidirectional" else 1
            x = _floats(1, 5, 2, 3, low=-1, high=1)
            w, r = (_floats(n, ways, count * 4, size, low=-0.6, high=0.6)
                    for n, size in ((2, 3), (3, 4)))  # fmt: skip
            bias = _floats(4, ways, 2 * count * 4, low=-0.5, high=0.5)
            inputs: dict[str, Array | None] = {"X": x, "W": w, "R": r, "B": bias}
            options = {"hidden_size": 4, "direction": direction}
            constants = ("W", "R", "B")
            yield VersionCase(operator, inputs, options, constants, 2)
            lengths = np.array([5, 3], np.int32)
            yield VersionCase(operator, {**inputs, "sequence_lens": lengths}, options,
                              (*constants, "sequence_lens"), 2)  # fmt: skip
        yield VersionCase(operator, {"X": x, "W": w, "R": r}, {**options, "clip": 0.3},
                          ("W", "R"), 2)  # fmt: skip


def _normalized() -> Iterator[VersionCase]:
    x = _floats(1, 2, 4, 3, 5)
    names = ("scale", "B", "input_mean", "input_var")
    values = [_floats(n, 4, low=0.5, high=1.5) for n in range(4)]
    parameters = dict(zip(names, values, strict=True))
    yield VersionCase("BatchNormalization", {"X": x, **parameters}, {}, names)
    yield VersionCase("BatchNormalization", {"X": x, **parameters}, {"epsilon": 0.1}, names)
    yield VersionCase("InstanceNormalization", {"input": x, "scale": values[0], "B": values[1]})
    for axis in (-1, 1):
        size = x.shape[axis:] if axis > 0 else x.shape[-1:]
        normalized = {"X": x, "Scale": _floats(2, *size), "B": _floats(3, *size)}
        yield VersionCase("LayerNormalization", normalized, {"axis": axis})
    for p in (1, 2):
        yield VersionCase("LpNormalization", {"input": x}, {"axis": 1, "p": p})
    yield VersionCase("MeanVarianceNormalization", {"X": x}, {"axes": [0, 2, 3]})


def _images() -> Iterator[VersionCase]:
    x = _floats(1, 1, 2, 4, 5)
    for mode in ("nearest", "linear", "cubic"):
        for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
            options = {"mode": mode, "coordinate_transformation_mode": coordinates}
            scales = np.array([1, 1, 2, 1.6], np.float32)
            inputs: dict[str, Array | None] = {
                "X": x, "roi": np.zeros(0, np.float32), "scales": scales,
            }  # fmt: skip
            yield VersionCase("Resize", inputs, options, ("roi", "scales"))
    for shape, options in (((1, 2, 4, 5), {}), ((1, 2, 5), {})):
        rank = len(shape) - 2
        for more in ({}, {"strides": [2] * rank, "pads": [1] * (2 * rank)},
                     {"strides": [2] * rank, "output_padding": [1] * rank},
                     {"auto_pad": "SAME_UPPER", "strides": [2] * rank}, {"group": 2}):  # fmt: skip
            yield VersionCase("ConvTranspose", {"X": _floats(1, *shape),
                                                "W": _floats(2, 2, 3, *[3] * rank)},
                              {**options, **more}, ("W",))  # fmt: skip
    grid = _floats(3, 1, 3, 3, 2, low=-1.2, high=1.2)
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            for corners in (0, 1):
                yield VersionCase("GridSample", {"X": x, "grid": grid},
                                  {"mode": mode, "padding_mode": padding,
                                   "align_corners": corners})  # fmt: skip


def cases() -> list[VersionCase]:
    """Return all cases, in the form of the newest operator set."""
    makers = (_elementwise, _functions, _reductions, _pools, _contractions, _shapes, _moved,
              _indexed, _recurrent, _normalized, _images)  # fmt: skip
    return [case for make in makers for case in make()]
