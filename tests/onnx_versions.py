"""Operators of ONNX at every version of the operator sets from 7 on, with drawn attributes.

A case is written in the form of the newest operator set. `at_version` writes it in the form of an
older one by the schema of that version: an input that was an attribute becomes one, and a case that
has an attribute which the version does not know is left out. The expected results are those of ONNX
Runtime, or of ONNX's reference evaluator where it refuses.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

Array = np.ndarray[Any, Any]

OLDEST = 7


@dataclass(frozen=True, eq=False)
class VersionCase:
    """One node in the form of the newest operator set.

    Args:
        operator: of ONNX's own domain.
        inputs: by the names of the newest schema, in order; None for an absent one.
        attributes: by name.
        constants: the inputs that are constants of the model.
        outputs: the number of results that are asked for.
    """

    operator: str
    inputs: Mapping[str, Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: Sequence[str] = ()
    outputs: int = 1


_RENAMED = {
    ("GridSample", "mode", "linear"): "bilinear",
    ("GridSample", "mode", "cubic"): "bicubic",
}
"""Modes of GridSample that had other names before operator set 20."""


def versions(operator: str) -> list[int]:
    """Return the first operator set of each version of an operator, from `OLDEST` on."""
    found = {
        max(schema.since_version, OLDEST)
        for schema in defs.get_all_schemas_with_history()
        if schema.name == operator and not schema.domain and not schema.deprecated
    }
    effective = [v for v in sorted(found) if v > OLDEST]
    try:
        defs.get_schema(operator, OLDEST)
    except defs.SchemaError:
        return effective
    return [OLDEST, *effective]


def at_version(case: VersionCase, version: int) -> onnx.ModelProto | None:
    """Return a model with the node in the form of an operator set; None if it has no such form."""
    schema = defs.get_schema(case.operator, version)
    attributes, names, inputs, constants = {}, [], [], []
    for name, value in case.attributes.items():
        if name not in schema.attributes:
            return None
        is_renamed = (case.operator, name) == ("GridSample", "mode") and version < 20
        attributes[name] = _RENAMED.get(value, value) if is_renamed else value
    known = [each.name for each in schema.inputs]
    is_variadic = schema.max_input > 100
    for index, (name, array) in enumerate(case.inputs.items()):
        if name in schema.attributes and name not in known:
            if array is not None:
                listed = array.tolist()
                kind = schema.attributes[name].type
                is_list = kind in (defs.OpSchema.AttrType.INTS, defs.OpSchema.AttrType.FLOATS)
                if isinstance(listed, list) and not is_list:
                    (listed,) = listed
                attributes[name] = listed
            continue
        if not is_variadic and index >= schema.max_input:
            return None
        if array is None:
            names.append("")
            continue
        names.append(name)
        if name in case.constants:
            constants.append(numpy_helper.from_array(array, name))
        else:
            type_ = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, type_, array.shape))
    while names and not names[-1]:
        names.pop()
    required = [n for n, each in schema.attributes.items() if each.required]
    if any(name not in attributes for name in required):
        return None
    results = [f"r{n}" for n in range(case.outputs)]
    node = helper.make_node(case.operator, names, results, **attributes)
    outputs = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([node], "graph", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", version)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8 if version < 21 else 10)
    try:
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except Exception:  # the version has no such type, or no such form
        return None


def feeds_of(case: VersionCase, model: onnx.ModelProto) -> dict[str, Array]:
    """Return the arguments of a model of a case."""
    found = {}
    for each in model.graph.input:
        array = case.inputs[each.name]
        assert array is not None
        found[each.name] = array
    return found


def expected(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array] | None:
    """Return the results by ONNX Runtime, or else by the reference evaluator; None by neither."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return [np.asarray(each) for each in session.run(None, dict(feeds))]
    except Exception:  # it has no kernel for the version or type
        pass
    from onnx.reference import ReferenceEvaluator

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, dict(feeds))]
    except Exception:
        return None


def tolerance(dtype: Any) -> tuple[float, float]:
    """Return relative and absolute tolerances of floats: libraries differ by some units."""
    name = np.dtype(dtype).name
    return {"float64": (1e-6, 1e-9), "float32": (2e-5, 2e-6)}.get(name, (4e-3, 2e-3))


# -- cases ----------------------------------------------------------------------------------------


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
            names = {"Max": ("a", "b"), "Min": ("a", "b"), "Pow": ("X", "Y")}.get(
                operator, ("A", "B")
            )
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
    for dtype in (np.float32, np.int8, np.uint8, np.int64, np.bool_):
        make = _booleans if dtype is np.bool_ else None
        sides = [
            make(k, 3, 4) if make else _integers(k, 3, 4, dtype=np.int8).astype(dtype)
            for k in (1, 2)
        ]
        yield VersionCase("Where", {"condition": _booleans(0, 4), "X": sides[0], "Y": sides[1]})


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
        name = (
            "input" if operator in ("Identity", "Sign", "Erf", "Exp", "Log", "Cos", "Sin") else "X"
        )
        name = defs.get_schema(operator).inputs[0].name or name
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
        for attributes in (
            {"kernel_shape": [3] * rank},
            {"kernel_shape": [3] * rank, "strides": [2] * rank, "ceil_mode": 1},
            {
                "kernel_shape": [2] * rank,
                "strides": [2] * rank,
                "pads": [1, *[0] * (2 * rank - 1)],
                "ceil_mode": 1,
            },
            {"kernel_shape": [3] * rank, "strides": [2] * rank, "pads": [1] * (2 * rank)},
            {"kernel_shape": [2] * rank, "dilations": [2] * rank},
            {
                "kernel_shape": [3] * rank,
                "dilations": [2] * rank,
                "ceil_mode": 1,
                "strides": [2] * rank,
                "pads": [1] * (2 * rank),
            },
            {"kernel_shape": [3] * rank, "strides": [2] * rank, "auto_pad": "SAME_UPPER"},
            {"kernel_shape": [2] * rank, "strides": [2] * rank, "auto_pad": "SAME_LOWER"},
            {"kernel_shape": [3] * rank, "strides": [2] * rank, "auto_pad": "VALID"},
        ):
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
        given = {"data": _floats(1, 5, 6), **dict(zip(names, numbers, strict=True))}
        yield VersionCase("Slice", given, {}, names)
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


def cases() -> list[VersionCase]:
    """Return all cases, in the form of the newest operator set."""
    makers = (_elementwise, _functions, _reductions, _pools, _contractions, _shapes)
    return [case for make in makers for case in make()]
