#!/usr/bin/env python3
"""Run ONNX graphs that are drawn at random, and compare their results with ONNX Runtime's.

    scripts/fuzz graphs                              200 graphs
    scripts/fuzz graphs --count 2000 --first 5000    others
    scripts/fuzz graphs --target vulkan --count 50   on the first Vulkan device
    scripts/fuzz graphs --replay 512                 one graph again; it is written to a file

A graph has one to eight nodes of an operator set from 10 to 22, and values that several nodes read:
a compiler that fuses a node with one of its readers must still give the others all of it. ONNX
Runtime computes node by node, without its optimizations.

Values are exact or rounded. Exact ones are multiples of ``_QUANTUM`` that f32 adds and multiplies
without rounding; they must be equal to the bit, and only they go into operators with steps
(QuantizeLinear, ArgMax, comparisons). Rounded ones are compared with a tolerance. Each graph
follows from its number. A graph that differs is written to ``build/fuzz/graph-NUMBER.onnx``. Exit
status 1 if one does.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import SubquantError
from subquant.runtime import Device, Executable

Array = np.ndarray[Any, Any]

_FOLDER = Path(__file__).resolve().parent.parent / "build/fuzz"
_QUANTUM = 2.0**-10
_LARGEST_EXACT = 2.0**13
"""Sums of multiples of the quantum below this bound have at most 24 bits."""
_LARGEST_SIZE = 4000
_TOLERANCE = 1e-4
_SHAPES = [(2, 3, 6, 6), (1, 4, 8, 5), (1, 4, 6, 6), (2, 4, 7), (1, 2, 4, 5, 4), (5, 6), (3, 4, 5)]


@dataclass
class Graph:
    """A graph that grows node by node, with the values that ONNX Runtime computes."""

    random: random.Random
    numbers: np.random.Generator
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    rounded: set[str] = field(default_factory=set)

    def name(self) -> str:
        """Return a new name."""
        return f"t{len(self.values)}"

    def add_input(self, dtype: Any) -> None:
        """Add an argument; floats are multiples of a quarter."""
        name, shape = self.name(), self.random.choice(_SHAPES)
        low, high = (-12, 13) if dtype == np.float32 else (np.iinfo(dtype).min, 128)
        array = self.numbers.integers(max(low, -99), high, shape)
        self.values[name] = (array / 4 if dtype == np.float32 else array).astype(dtype)
        self.inputs.append(name)

    def constant(self, value: Any, dtype: Any) -> str:
        """Add a constant, and return its name."""
        name = self.name()
        self.values[name] = self.constants[name] = np.asarray(value, dtype)
        return name

    def pick(self, *ranks: int, dtypes: Sequence[Any] = (np.float32,), steps: bool = False) -> str:
        """Return the name of one of the latest values.

        Args:
            ranks: the ranks that are accepted; any rank but 0 by default.
            dtypes: the element types that are accepted.
            steps: only exact values are accepted.

        Raises:
            LookupError: there is none.
        """
        names = [
            name
            for name, value in self.values.items()
            if name not in self.constants
            and value.dtype in [np.dtype(dtype) for dtype in dtypes]
            and (value.ndim in ranks or (not ranks and value.ndim))
            and 0 < value.size <= _LARGEST_SIZE
            and not (steps and name in self.rounded)
        ]
        if not names:
            raise LookupError
        return self.random.choice(names[-4:])

    def add(
        self, operator: str, inputs: Sequence[str], outputs: int = 1, rounds: bool = False,
        bound: float = 0.0, **attributes: Any,
    ) -> None:  # fmt: skip
        """Add a node if ONNX Runtime computes it.

        Args:
            inputs: names of values; empty where an optional one is left out.
            rounds: the operator rounds its results.
            bound: no partial sum of the operator is greater.
        """
        names = [f"{self.name()}_{number}" for number in range(outputs)]
        node = helper.make_node(operator, inputs, names, **attributes)
        arguments = {name: self.values[name] for name in inputs if name}
        computed = onnx_runtime(
            model([node], arguments, {}, dict.fromkeys(names), self.opset), arguments
        )
        self.nodes.append(node)
        rounds |= any(name in self.rounded for name in inputs)
        for name, value in zip(names, computed, strict=True):
            self.values[name] = value
            is_float = value.dtype == np.float32
            if is_float and (rounds or max(bound, np.abs(value).max(initial=0)) > _LARGEST_EXACT
                             or (value % _QUANTUM != 0).any()):  # fmt: skip
                self.rounded.add(name)


def model(
    nodes: Sequence[onnx.NodeProto],
    arguments: dict[str, Array],
    constants: dict[str, Array],
    results: dict[str, Array | None],
    opset: int,
) -> onnx.ModelProto:
    """Return a model of nodes."""

    def end(name: str, value: Array | None) -> onnx.ValueInfoProto:
        if value is None:
            return helper.make_empty_tensor_value_info(name)
        type_ = helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_value_info(name, type_, value.shape)

    graph = helper.make_graph(
        nodes,
        "graph",
        [end(*each) for each in arguments.items()],
        [end(*each) for each in results.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def onnx_runtime(proto: onnx.ModelProto, arguments: dict[str, Array]) -> list[Array]:
    """Return the results of a model, computed by ONNX Runtime without optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return [np.asarray(value) for value in session.run(None, arguments)]


# -- operators ------------------------------------------------------------------------------------


def _scale(graph: Graph) -> str:
    return graph.constant(2.0 ** graph.random.randint(-4, 0), np.float32)


def quantize(graph: Graph) -> None:
    """Add a QuantizeLinear by a power of 2."""
    dtype = graph.random.choice([np.int8, np.uint8])
    zero = graph.constant(graph.random.randint(0, 100), dtype)
    graph.add("QuantizeLinear", [graph.pick(steps=True), _scale(graph), zero])


def dequantize(graph: Graph) -> None:
    """Add a DequantizeLinear by a power of 2."""
    name = graph.pick(dtypes=(np.int8, np.uint8))
    zero = graph.constant(graph.random.randint(0, 100), graph.values[name].dtype)
    graph.add("DequantizeLinear", [name, _scale(graph), zero])


def integer_product(graph: Graph) -> None:
    """Add a MatMulInteger, or a QLinearMatMul with powers of 2."""
    name = graph.pick(2, 3, 4, dtypes=(np.int8, np.uint8))
    dtype, depth, count = graph.values[name].dtype, graph.values[name].shape[-1], 5
    weight = graph.constant(graph.numbers.integers(0, 100, (depth, count)), dtype)
    zeros = [graph.constant(graph.random.randint(0, 100), dtype) for _ in range(3)]
    if graph.random.random() < 0.5:
        graph.add("MatMulInteger", [name, weight, *zeros[:2]])
    else:
        scales = [_scale(graph) for _ in range(2)]
        result = graph.constant(2.0 ** graph.random.randint(0, 8), np.float32)
        inputs = [name, scales[0], zeros[0], weight, scales[1], zeros[1], result, zeros[2]]
        graph.add("QLinearMatMul", inputs)


def unary(graph: Graph) -> None:
    """Add an operator of one operand."""
    operator = graph.random.choice(["Relu", "Abs", "Neg", "Sigmoid", "Tanh", "Exp", "Softplus"])
    name = graph.pick()
    if operator == "Exp" and graph.values[name].max() > 20:
        return
    graph.add(operator, [name], rounds=operator in ("Sigmoid", "Tanh", "Exp", "Softplus"))


def binary(graph: Graph) -> None:
    """Add an operator of two operands, the second one broadcast."""
    name = graph.pick()
    shape = [extent if graph.random.random() < 0.6 else 1 for extent in graph.values[name].shape]
    other = graph.constant(graph.numbers.integers(-8, 9, shape) / 4, np.float32)
    inputs = [name, graph.random.choice([other, name])]
    graph.random.shuffle(inputs)
    graph.add(graph.random.choice(["Add", "Sub", "Mul", "Max", "Min"]), inputs)


def pool(graph: Graph) -> None:
    """Add a pool with any strides, paddings and kernel."""
    name = graph.pick(3, 4, 5)
    shape = graph.values[name].shape[2:]
    kernel = [graph.random.randint(1, min(3, extent)) for extent in shape]
    padding = [graph.random.randrange(size) for size in kernel * 2]
    strides = [graph.random.randint(1, 3) for _ in shape]
    operator = graph.random.choice(["MaxPool", "AveragePool", "LpPool"])
    more: dict[str, Any] = {"p": 1} if operator == "LpPool" else {}
    if operator != "LpPool" or graph.opset >= 18:
        more["ceil_mode"] = graph.random.randrange(2)
    graph.add(operator, [name], rounds=operator == "AveragePool", kernel_shape=kernel,
              strides=strides, pads=padding, **more)  # fmt: skip


def convolution(graph: Graph) -> None:
    """Add a convolution or a transposed one, depthwise or not."""
    name = graph.pick(3, 4, 5)
    channels, shape = graph.values[name].shape[1], graph.values[name].shape[2:]
    group = graph.random.choice([1, channels])
    kernel = [graph.random.randint(1, min(3, extent)) for extent in shape]
    strides = [graph.random.randint(1, 2) for _ in shape]
    operator = graph.random.choice(["Conv", "Conv", "ConvTranspose"])
    sizes = [group * 2, channels // group] if operator == "Conv" else [channels, 2]
    weight = graph.numbers.integers(-4, 5, [*sizes, *kernel]) / 4
    bound = float(np.abs(graph.values[name]).max() * np.abs(weight).sum())
    graph.add(operator, [name, graph.constant(weight, np.float32)], bound=bound, strides=strides,
              group=group)  # fmt: skip


def move(graph: Graph) -> None:
    """Add an operator that moves elements."""
    name = graph.pick(dtypes=(np.float32, np.int8, np.uint8, np.int32))
    shape = graph.values[name].shape
    axis = graph.random.randrange(len(shape))
    operator = graph.random.choice(["Transpose", "Slice", "Concat", "Gather", "Pad", "Reshape"])
    if operator == "Transpose":
        order = list(range(len(shape)))
        graph.random.shuffle(order)
        graph.add(operator, [name], perm=order)
    elif operator == "Slice":
        bounds = graph.random.choice([(0, 99, 2), (-1, -99, -1), (1, 99, 1), (0, -1, 1)])
        start, end, step = (graph.constant([number], np.int64) for number in bounds)
        graph.add(operator, [name, start, end, graph.constant([axis], np.int64), step])
    elif operator == "Concat":
        graph.add(operator, [name, name], axis=axis)
    elif operator == "Gather":
        indices = graph.numbers.integers(0, shape[axis], (2,))
        graph.add(operator, [name, graph.constant(indices, np.int64)], axis=axis)
    elif operator == "Pad" and graph.opset >= 11:
        widths = graph.numbers.integers(0, 2, 2 * len(shape))
        graph.add(operator, [name, graph.constant(widths, np.int64)])
    elif operator == "Reshape":
        graph.add(operator, [name, graph.constant([-1, shape[-1]], np.int64)])


def reduction(graph: Graph) -> None:
    """Add a reduction along one axis, or a softmax."""
    name = graph.pick()
    axis = graph.random.randrange(graph.values[name].ndim)
    operator = graph.random.choice(["ReduceMax", "ReduceMin", "ReduceMean", "Softmax"])
    if operator == "Softmax":
        graph.add(operator, [name], rounds=True, axis=axis)
    elif graph.opset >= 18:
        axes = graph.constant([axis], np.int64)
        graph.add(operator, [name, axes], rounds=operator == "ReduceMean")
    else:
        graph.add(operator, [name], rounds=operator == "ReduceMean", axes=[axis])


def steps(graph: Graph) -> None:
    """Add an operator whose results jump."""
    name = graph.pick(steps=True)
    operator = graph.random.choice(["Floor", "Ceil", "ArgMax", "Greater", "TopK", "Cast"])
    if operator == "ArgMax":
        graph.add(operator, [name], axis=-1 if graph.opset >= 11 else 0)
    elif operator == "Greater":
        graph.add(operator, [name, graph.constant(0.5, np.float32)])
    elif operator == "TopK":
        graph.add(operator, [name, graph.constant([1], np.int64)], 2)
    elif operator == "Cast":
        graph.add(operator, [name], to=TensorProto.INT32)
    else:
        graph.add(operator, [name])


OPERATORS: Sequence[Callable[[Graph], None]] = (
    *(quantize, quantize, dequantize, dequantize, integer_product, unary, binary, binary),
    *(pool, pool, convolution, convolution, move, move, reduction, steps),
)

# -- graphs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model with its arguments, and ONNX Runtime's results with the tolerance of each."""

    proto: onnx.ModelProto
    arguments: dict[str, Array]
    results: dict[str, Array]
    rounded: frozenset[str]

    def __str__(self) -> str:
        operators = " ".join(node.op_type for node in self.proto.graph.node)
        return f"operator set {self.proto.opset_import[0].version}: {operators}"


def draw(number: int) -> Case:
    """Draw a graph."""
    graph = Graph(random.Random(number), np.random.default_rng(number), number % 13 + 10)
    graph.add_input(np.float32)
    if graph.random.random() < 0.5:
        graph.add_input(graph.random.choice([np.int8, np.uint8]))
    size = graph.random.randint(1, 8)
    while len(graph.nodes) < size:
        try:
            graph.random.choice(OPERATORS)(graph)
        except LookupError:
            continue  # no value fits the operator
        except Exception as error:
            if not type(error).__module__.startswith("onnxruntime"):
                raise
    is_read = {name for node in graph.nodes for name in node.input}
    ends = [name for node in graph.nodes for name in node.output]
    results = {
        name: graph.values[name]
        for name in ends
        if name not in is_read or graph.random.random() < 0.25
    }
    arguments = {name: graph.values[name] for name in graph.inputs if name in is_read}
    constants = {name: value for name, value in graph.constants.items() if name in is_read}
    proto = model(graph.nodes, arguments, constants, dict(results), graph.opset)
    return Case(proto, arguments, results, frozenset(graph.rounded))


def difference(case: Case, device: Device, options: CompileOptions) -> str:
    """Return a sentence about the first result that differs; empty if all are equal.

    Raises:
        SubquantError: the graph is refused.
    """
    executable = Executable(compile_to_bytes(case.proto.SerializeToString(), options), device)
    computed = executable.main.invoke([*case.arguments.values()])
    for (name, expected), result in zip(case.results.items(), computed, strict=True):
        got = np.asarray(result)
        if (got.dtype, got.shape) != (expected.dtype, expected.shape):
            return f"{name} is {got.dtype}{got.shape}, expected {expected.dtype}{expected.shape}"
        largest = float(np.abs(expected.astype(float)).max(initial=0))
        tolerance = _TOLERANCE * largest if name in case.rounded else 0.0
        far = np.abs(got.astype(float) - expected.astype(float)) > tolerance
        if far.any():
            return f"{name} differs in {far.sum()} of {far.size}: {got[far][0]}, {expected[far][0]}"
    return ""


def main() -> int:
    """Run graphs; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="the number of graphs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first graph")
    parser.add_argument("--target", choices=["llvm-cpu", "vulkan"], default="llvm-cpu")
    parser.add_argument("--replay", type=int, help="the number of one graph, which is written")
    arguments = parser.parse_args()
    device = Device(arguments.target)
    options = CompileOptions(arguments.target)
    if device.is_vulkan:
        options = CompileOptions(arguments.target, vulkan_target=device.vulkan_target)
    first, count = arguments.first, arguments.count
    if arguments.replay is not None:
        first, count = arguments.replay, 1
    outcomes: Counter[str] = Counter()
    for number in range(first, first + count):
        case = draw(number)
        try:
            message = difference(case, device, options)
        except SubquantError as error:
            outcomes["refused"] += 1
            print(f"{number}: refused: {str(error).splitlines()[0]} ({case})", flush=True)
            continue
        outcomes["different" if message else "equal"] += 1
        if message or arguments.replay is not None:
            _FOLDER.mkdir(parents=True, exist_ok=True)
            path = _FOLDER / f"graph-{number}.onnx"
            path.write_bytes(case.proto.SerializeToString())
            print(f"{number}: {message or 'equal'} ({case}); {path}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in sorted(outcomes.items())))
    return 1 if outcomes["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
