"""Fused dispatches of small kernels: the same integers as separate dispatches."""

from __future__ import annotations

import re

import numpy as np
import pytest

import subquant
from devices import main_of
from instruction_sets import EVERY
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions


class Program:
    """A program of int8 contractions, and its results in NumPy."""

    def __init__(self, *shape, seed=0):
        self._random = np.random.default_rng(seed)
        self.x = self._random.integers(-128, 128, shape).astype(np.int8)
        self.arrays = {"%x": self.x.astype(np.int64)}
        self.operations = []

    def _new(self, array):
        name = f"%v{len(self.arrays)}"
        self.arrays[name] = array
        return name

    @staticmethod
    def type_of(array, element="i8"):
        return f"tensor<{'x'.join(map(str, array.shape))}x{element}>"

    def _weight(self, shape):
        weight = self._random.integers(-128, 128, shape)
        name = f"%w{len(self.operations)}"
        type_ = self.type_of(weight)
        self.operations.append(f"{name} = stablehlo.constant dense<{weight.tolist()}> : {type_}")
        return name, type_, weight

    def _rounded(self, acc, name, shift):
        """Accumulators shifted to the right, and clamped to 8 bits."""
        wide = self.type_of(acc, "i32")
        result = self._new(np.clip(acc >> shift, -128, 127))
        number = len(self.operations)
        self.operations += [
            f"%s{number} = stablehlo.constant dense<{shift}> : {wide}",
            f"%l{number} = stablehlo.constant dense<-128> : {wide}",
            f"%h{number} = stablehlo.constant dense<127> : {wide}",
            f"%a{number} = stablehlo.shift_right_arithmetic {name}, %s{number} : {wide}",
            f"%b{number} = stablehlo.clamp %l{number}, %a{number}, %h{number} : {wide}",
            f"{result} = stablehlo.convert %b{number} : ({wide}) -> {self.type_of(acc)}",
        ]
        return result

    def product(self, value, n):
        """A matrix product with a weight."""
        left = self.arrays[value]
        name, type_, weight = self._weight((left.shape[1], n))
        acc = left @ weight
        result = f"%d{len(self.operations)}"
        self.operations.append(
            f"{result} = stablehlo.dot_general {value}, {name}, contracting_dims = [1] x [0] : "
            f"({self.type_of(left)}, {type_}) -> {self.type_of(acc, 'i32')}"
        )
        return self._rounded(acc, result, 11)

    def convolution(self, value, n, groups=1):
        """A 3x3 convolution with padding."""
        left = self.arrays[value]
        name, type_, weight = self._weight((3, 3, left.shape[3] // groups, n))
        padded = np.pad(left, [(0, 0), (1, 1), (1, 1), (0, 0)])
        height, width = left.shape[1:3]
        acc = sum(
            padded[:, r : r + height, c : c + width] * weight[r, c, 0]
            if groups > 1
            else padded[:, r : r + height, c : c + width] @ weight[r, c]
            for r in range(3)
            for c in range(3)
        )
        result = f"%d{len(self.operations)}"
        self.operations.append(
            f"{result} = stablehlo.convolution({value}, {name}) "
            "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
            "window = {pad = [[1, 1], [1, 1]]} "
            f"{{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}} : "
            f"({self.type_of(left)}, {type_}) -> {self.type_of(acc, 'i32')}"
        )
        return self._rounded(acc, result, 10)

    def reshape(self, value, *shape):
        """A value in another shape."""
        before, after = self.arrays[value], self.arrays[value].reshape(shape)
        name = self._new(after)
        self.operations.append(
            f"{name} = stablehlo.reshape {value} : ({self.type_of(before)}) -> "
            f"{self.type_of(after)}"
        )
        return name

    def columns(self, value, start, end):
        """Some columns of a matrix."""
        array = self.arrays[value]
        result = self._new(array[:, start:end])
        self.operations.append(
            f"{result} = stablehlo.slice {value} [0:{len(array)}, {start}:{end}] : "
            f"({self.type_of(array)}) -> {self.type_of(self.arrays[result])}"
        )
        return result

    def joined(self, left, right):
        """The columns of two matrices."""
        arrays = [self.arrays[each] for each in (left, right)]
        result = self._new(np.concatenate(arrays, 1))
        types = ", ".join(map(self.type_of, arrays))
        self.operations.append(
            f"{result} = stablehlo.concatenate {left}, {right}, dim = 1 : "
            f"({types}) -> {self.type_of(self.arrays[result])}"
        )
        return result

    def maximum(self, left, right):
        """The maximum of two values, which no epilogue computes."""
        result = self._new(np.maximum(self.arrays[left], self.arrays[right]))
        self.operations.append(
            f"{result} = stablehlo.maximum {left}, {right} : {self.type_of(self.arrays[result])}"
        )
        return result

    def text(self, *results):
        """The program's MLIR."""
        types = ", ".join(self.type_of(self.arrays[each]) for each in results)
        body = "\n  ".join([*self.operations, f"return {', '.join(results)} : {types}"])
        return f"func.func @main(%x: {self.type_of(self.x)}) -> ({types}) {{\n  {body}\n}}"


def check(program, results, dispatches, **options):
    """Compile a program, count its dispatches of kernels, and compare its results."""
    text = program.text(*results)
    main = main_of(text, **options)
    lowered = compile_to_bytes(text, CompileOptions(**options), emit="mlir").decode()
    assert lowered.count('"flow.dispatch"') == dispatches
    output = main(program.x)
    for array, name in zip(output if len(results) > 1 else [output], results, strict=True):
        np.testing.assert_array_equal(array, program.arrays[name])
    return lowered


def matrices():
    """Products with small M: ragged N, and one too small for a kernel of its own."""
    program = Program(3, 100)
    value = "%x"
    for n in (40, 70, 8, 130):
        value = program.product(value, n)
    return program, [value]


def images():
    """Convolutions, also depthwise, whose intermediate results are too large for the stack."""
    program = Program(1, 7, 6, 16)
    value = program.convolution(program.convolution("%x", 48), 48, groups=48)
    value = program.convolution(value, 20)
    return program, [program.product(program.reshape(value, 7, 6 * 20), 24)]


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("network", [matrices, images])
@pytest.mark.share(10)
def test_a_network_is_one_dispatch(network, instructions):
    program, results = network()
    check(program, results, 1, kernels=instructions)


@pytest.mark.long
def test_dispatches_stay_separate_on_request():
    """Two products have a kernel, and another one that copies their activations."""
    program, results = matrices()
    assert "@fused" not in check(program, results, 4, kernels="portable", fuse_below_macs=0)
    program, results = images()
    check(program, results, 3 + 4, kernels="portable", fuse_below_macs=0)


def test_values_with_other_users_are_results():
    program = Program(5, 64)
    first = program.product("%x", 64)
    second = program.product(first, 64)
    third = program.product(program.product(second, 64), 64)
    greater = program.maximum(first, third)  # behind the dispatch
    lowered = check(program, [second, program.reshape(greater, 64, 5)], 1)
    dispatch = next(line for line in lowered.splitlines() if '"flow.dispatch"' in line)
    assert re.findall(r"tensor<[^>]*>", dispatch.rpartition("->")[2]) == ["tensor<1x5x64xi8>"] * 3


def test_unused_dispatches_stay_separate():
    program = Program(5, 64)
    program.product(program.product("%x", 64), 64)
    # Each product and the copy that is before it, whatever instructions this machine has.
    check(program, [program.maximum("%x", "%x")], 4, kernels="portable")


def test_operations_between_calls_precede_the_next_dispatch():
    """A user of a result moves behind the dispatch; a call that depends on it is not fused."""
    program = Program(5, 64)
    first = program.product("%x", 64)
    between = program.maximum(first, "%x")
    second = program.product(first, 64)  # which does not read it
    third = program.product(between, 64)
    fourth = program.product(third, 64)
    check(program, [program.maximum(second, fourth)], 2)


def test_larger_calls_stay_separate():
    program = Program(20, 64)
    first = program.product("%x", 40)
    check(program, [program.product(first, 600)], 1, kernels="portable")
    # Twice 20 x 64 x 40 and 20 x 40 x 600 MACs; the copies before the last two are fused.
    check(program, [program.product(first, 600)], 5, kernels="portable", fuse_below_macs=1 << 14)


def test_equal_fused_kernels_share_an_executable():
    program = Program(8, 32)
    halves = []
    for _ in range(2):
        halves.append(program.maximum(program.product(program.product("%x", 32), 32), "%x"))
    first, second = halves
    whole = program.maximum(first, second)
    for _ in range(2):
        whole = program.product(whole, 32)
    assert check(program, [program.maximum(whole, "%x")], 2).count('"stream.executable"() ') == 2


def test_the_choice_is_explained():
    program, results = matrices()
    remarks = []
    options = CompileOptions(explain=True, kernels="portable")
    compile_to_bytes(program.text(*results), options, emit="mlir", on_remark=remarks.append)
    assert len(remarks) == 4
    expected = "is computed by a kernel (portable), in one dispatch with "
    assert all(expected in str(each) for each in remarks)


# -- blockwise weights ----------------------------------------------------------------------------


def layers(count, width, seed=0):
    """Layers ``max(x @ w + b, 0)``, the last one without ``max``, with weights in blocks of 32."""
    rng = np.random.default_rng(seed)
    row, square = f"tensor<2x{width}xf32>", f"tensor<{width}x{width}x"
    operations, arrays, name = [], [], "%x"
    for number in range(count):
        q = rng.integers(-8, 8, (width, width)).astype(np.int8)
        scales = rng.uniform(0.01, 0.02, (width // 32, width)).astype(np.float32)
        bias = rng.uniform(-1, 1, width).astype(np.float32)
        arrays.append((q, scales, bias))
        of_scales = f"tensor<{width // 32}x{width}xf32>"
        operations += [
            f"%q{number} = arith.constant dense<{q.tolist()}> : {square}i4>",
            f"%s{number} = arith.constant dense<{scales.tolist()}> : {of_scales}",
            f'%w{number} = "subquant.dequantize"(%q{number}, %s{number}) '
            "{block_sizes = array<i64: 32, 1>, quantized_type = !quant.any<i4:f32>, "
            f"operandSegmentSizes = array<i32: 1, 1, 0, 0>}} : ({square}i4>, {of_scales}) -> "
            f"{square}f32>",
            f"%c{number} = stablehlo.constant dense<{bias.tolist()}> : tensor<{width}xf32>",
            f"%b{number} = stablehlo.broadcast_in_dim %c{number}, dims = [1] : "
            f"(tensor<{width}xf32>) -> {row}",
            f"%y{number} = stablehlo.dot_general {name}, %w{number}, "
            f"contracting_dims = [1] x [0] : ({row}, {square}f32>) -> {row}",
            f"%z{number} = stablehlo.add %y{number}, %b{number} : {row}",
        ]
        name = f"%z{number}"
        if number < count - 1:
            operations += [
                f"%n{number} = stablehlo.constant dense<0.0> : {row}",
                f"%r{number} = stablehlo.maximum {name}, %n{number} : {row}",
            ]
            name = f"%r{number}"
    body = "\n  ".join([*operations, f"return {name} : {row}"])
    return f"func.func @main(%x: {row}) -> {row} {{\n  {body}\n}}", arrays


def of_layers(x, arrays):
    """The results in float64, and a bound of the error of rounding each product and sum once."""
    error = np.zeros(x.shape)
    for number, (q, scales, bias) in enumerate(arrays):
        real = q * np.repeat(scales.astype(np.float64), 32, 0)
        own = 2.0**-24 * (len(q) + 4) * (np.abs(x) @ np.abs(real) + np.abs(bias))
        x, error = x @ real + bias, error @ np.abs(real) + own
        if number < len(arrays) - 1:
            x = np.maximum(x, 0)
    return x, error


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.share(8)
def test_f32_epilogues(instructions):
    """Kernels add the bias and clamp; all layers are one dispatch."""
    text, arrays = layers(3, 128)
    lowered = compile_to_bytes(text, CompileOptions(kernels=instructions), emit="mlir").decode()
    assert lowered.count('"flow.dispatch"') == 1
    main = lowered[lowered.index("func.func @main(") :]
    assert "stablehlo.add" not in main
    assert "stablehlo.maximum" not in main
    x = np.random.default_rng(7).standard_normal((2, 128)).astype(np.float32)
    output = subquant.compile(text, kernels=instructions).main(x)
    expected, bound = of_layers(x.astype(np.float64), arrays)
    assert (np.abs(output - expected) <= bound).all()


def test_activations_are_quantized_in_the_same_dispatch():
    """The results equal those of separate dispatches, to the bit."""
    text, _ = layers(3, 128)
    x = np.random.default_rng(8).standard_normal((2, 128)).astype(np.float32)
    results = []
    for macs, dispatches in ((0, 6), (1 << 19, 1)):
        options = CompileOptions(activations="int8", fuse_below_macs=macs)
        lowered = compile_to_bytes(text, options, emit="mlir").decode()
        assert lowered.count('"flow.dispatch"') == dispatches
        results.append(subquant.compile(text, activations="int8", fuse_below_macs=macs).main(x))
    np.testing.assert_array_equal(*results)
