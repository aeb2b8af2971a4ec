"""Programs whose dequantizations and contractions are written in linalg, with their meaning.

Bodies and indexing maps are those of IREE's examples, of sharktank's ``mmt_block_scaled`` kernels,
and of named operations. The meaning is computed in float64, or in integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "i4": np.int8,
    "i8": np.int8,
}

Types = dict[str, str]
"""The types of tensors by name, ``4x64xf32``; a type without a shape is a scalar."""


@dataclass(frozen=True)
class LinalgProgram:
    """A program of one public function.

    Attributes:
        arguments: the types of the arguments; the activations are ``x``.
        result: the type of the result ``%r``, which starts as zeros: ``%init``.
        body: the operations.
        meaning: the result in float64 or integers, of arrays by name.
        unsigned: arguments whose integers are read without sign.
        raised: operations that the raised program has.
    """

    arguments: Types
    result: str
    body: str
    meaning: Callable[..., np.ndarray]
    unsigned: tuple[str, ...] = ()
    raised: tuple[str, ...] = ("subquant.dequantize", "stablehlo.dot_general")

    @property
    def is_exact(self) -> bool:
        """True where the result is integers."""
        return self.result.endswith("i32")

    def text(self, constants: Types) -> str:
        """The program with some arguments as constants, given as attributes."""
        arguments = ", ".join(
            f"%{name}: {_type(text)}"
            for name, text in self.arguments.items()
            if name not in constants
        )
        operations = [f"%{name} = arith.constant {text}" for name, text in constants.items()]
        element, type_ = self.result.rpartition("x")[2], _type(self.result)
        size = ""
        if self.result.startswith("?"):
            size = "%size"
            operations.append("%axis = arith.constant 0 : index")
            operations.append(f"%size = tensor.dim %x, %axis : {_type(self.arguments['x'])}")
        operations.append(f"%zero = arith.constant {'0' if self.is_exact else '0.0'} : {element}")
        operations.append(f"%empty = tensor.empty({size}) : {type_}")
        operations.append(
            f"%init = linalg.fill ins(%zero : {element}) outs(%empty : {type_}) -> {type_}"
        )
        body = "\n".join([*operations, self.body])
        return f"func.func @main({arguments}) -> {type_} {{\n{body}\nreturn %r : {type_}\n}}\n"

    def inputs(self) -> dict[str, np.ndarray]:
        """Random arguments: all integers of the storage, and floats of both signs."""
        rng = np.random.default_rng(0)
        arrays = {}
        for name, text in self.arguments.items():
            *sizes, element = text.split("x")
            shape = [5 if n == "?" else int(n) for n in sizes]
            if element == "i32":
                arrays[name] = np.asarray(rng.integers(-9, 10, shape, np.int32))
            elif element.startswith("i"):
                half = 1 << (int(element[1:]) - 1)
                arrays[name] = rng.integers(-half, half, shape).astype(DTYPES[element])
            else:
                arrays[name] = rng.normal(size=shape).astype(DTYPES[element])
        return arrays

    def expected(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """The meaning of the program on arguments."""
        wide = {}
        for name, array in arrays.items():
            element = self.arguments[name].rpartition("x")[2]
            if element.startswith("i"):
                numbers = array.astype(np.int64)
                is_unsigned = name in self.unsigned
                wide[name] = numbers & ((1 << int(element[1:])) - 1) if is_unsigned else numbers
            else:
                wide[name] = array.astype(np.float64)
        return self.meaning(**wide)


def _type(text: str) -> str:
    return f"tensor<{text}>" if "x" in text else text


def _generic(name: str, maps: str, ins: Types, result: str, body: str) -> str:
    """A ``linalg.generic``; the body reads ``%x0`` of ``%x``, and ``%out`` of the result.

    `maps` has the axes of each operand, ``m n k: m k, n k, m n``; loops that the last has not are
    reductions. A result ``r`` starts from ``%init``, others from nothing.
    """
    loops, _, axes = maps.partition(": ")
    terms = [each.split() for each in axes.split(", ")]
    names = ", ".join(loops.split())
    texts = [", ".join(t.replace("/", " floordiv ") for t in each) for each in terms]
    affine = ", ".join(f"affine_map<({names}) -> ({text})>" for text in texts)
    kinds = ", ".join(
        '"parallel"' if loop in terms[-1] else '"reduction"' for loop in loops.split()
    )
    elements = {f"%{key}0": text.rpartition("x")[2] for key, text in ins.items()}
    elements["%out"] = result.rpartition("x")[2]
    arguments = ", ".join(f"{key}: {element}" for key, element in elements.items())
    start = "" if name == "r" else f"%{name}e = tensor.empty() : {_type(result)}\n"
    output = "%init" if name == "r" else f"%{name}e"
    return (
        f"{start}%{name} = linalg.generic {{indexing_maps = [{affine}], "
        f"iterator_types = [{kinds}]}} ins({_operands(ins)}) outs({output} : {_type(result)}) {{\n"
        f"^bb0({arguments}):\n{body.strip()}\n}} -> {_type(result)}\n"
    )


def _named(operation: str, ins: Types, result: str, output: str = "init") -> str:
    """A named operation of linalg, with the result ``%r``."""
    type_ = _type(result)
    return f"%r = linalg.{operation} ins({_operands(ins)}) outs(%{output} : {type_}) -> {type_}\n"


def _operands(ins: Types) -> str:
    names, types = ", ".join(f"%{name}" for name in ins), ", ".join(map(_type, ins.values()))
    return f"{names} : {types}"


_PRODUCT = """
%p = arith.mulf %d0, %x0 : f32
%t = arith.addf %p, %out : f32
linalg.yield %t : f32
"""
_SCALED = """
%q = arith.sitofp %w0 : i8 to f32
%p = arith.mulf %q, %s0 : f32
linalg.yield %p : f32
"""
_INT4 = _generic(
    "d",
    "n g b: n g b, n g, n g b",
    {"w": "128x4x32xi4", "s": "128x4xf32"},
    "128x4x32xf32",
    """
%i = arith.extsi %w0 : i4 to i32
%q = arith.sitofp %i : i32 to f32
%p = arith.mulf %q, %s0 : f32
linalg.yield %p : f32
""",
)
_MATRIX = (
    _INT4 + "%c = tensor.collapse_shape %d [[0], [1, 2]] "
    ": tensor<128x4x32xf32> into tensor<128x128xf32>\n"
)
_GROUPED = {"x": "8x128xf32", "w": "128x4x32xi4", "s": "128x4xf32"}
_BY_MAPS = (
    " indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, "
    "affine_map<(m, n, k) -> (m, n)>]"
)
_CHANNELS = _generic(
    "d", "k n: k n, n, k n", {"w": "128x192xi8", "s": "192xf32"}, "128x192xf32", _SCALED
)
_BY_CHANNEL = {"w": "128x192xi8", "s": "192xf32"}


def _of_groups(x: np.ndarray, w: np.ndarray, s: np.ndarray) -> np.ndarray:
    return x @ (w * s[..., None]).reshape(len(w), -1).T


def _convolution(
    operation: str, ins: Types, result: str, meaning: Callable[..., np.ndarray]
) -> LinalgProgram:
    """A convolution of integers; the zero point of the image is -5, that of the kernel 0."""
    zero_points = "%zx = arith.constant -5 : i32\n%zw = arith.constant 0 : i32\n"
    return LinalgProgram(
        {name: text for name, text in ins.items() if "x" in text},
        result,
        zero_points + _named(operation, ins, result),
        meaning,
        raised=("stablehlo.convolution",),
    )


def _convolved(
    image: np.ndarray,
    kernel: np.ndarray,
    stride: int = 1,
    dilation: int = 1,
    product: Callable[..., np.ndarray] = np.matmul,
) -> np.ndarray:
    """The convolution of an NHWC image with an HWCF (or HWC) kernel."""
    taps = kernel.shape[:2]
    sizes = [
        (pixels - (count - 1) * dilation - 1) // stride + 1
        for pixels, count in zip(image.shape[1:3], taps, strict=True)
    ]
    total = np.zeros(())
    for y, x in np.ndindex(taps):
        rows, columns = (
            slice(tap * dilation, tap * dilation + (size - 1) * stride + 1, stride)
            for tap, size in zip((y, x), sizes, strict=True)
        )
        total = total + product(image[:, rows, columns], kernel[y, x])
    return total


PROGRAMS: dict[str, LinalgProgram] = {
    "matvec of groups with float zero points": LinalgProgram(
        {"x": "8x64xf32", "w": "256x8x64xi4", "s": "256x8x1xf32", "z": "256x8x1xf32"},
        "256xf32",
        _generic(
            "d",
            "n g b: n g b, n g 0, n g 0, n g b",
            {"w": "256x8x64xi4", "s": "256x8x1xf32", "z": "256x8x1xf32"},
            "256x8x64xf32",
            """
%i = arith.extui %w0 : i4 to i32
%q = arith.uitofp %i : i32 to f32
%o = arith.subf %q, %z0 : f32
%p = arith.mulf %o, %s0 : f32
linalg.yield %p : f32
""",
        )
        + _generic(
            "r",
            "n g b: n g b, g b, n",
            {"d": "256x8x64xf32", "x": "8x64xf32"},
            "256xf32",
            _PRODUCT,
        ),
        lambda x, w, s, z: np.einsum("gb,ngb->n", x, (w - z) * s),
        unsigned=("w",),
    ),
    "matmul with indexing maps": LinalgProgram(
        _GROUPED,
        "8x128xf32",
        _MATRIX + _named("matmul" + _BY_MAPS, {"x": "8x128xf32", "c": "128x128xf32"}, "8x128xf32"),
        _of_groups,
    ),
    "matmul of a transposed weight": LinalgProgram(
        _GROUPED,
        "8x128xf32",
        _MATRIX
        + """
%te = tensor.empty() : tensor<128x128xf32>
%t = linalg.transpose ins(%c : tensor<128x128xf32>) outs(%te : tensor<128x128xf32>)
    permutation = [1, 0]
"""
        + _named("matmul", {"x": "8x128xf32", "t": "128x128xf32"}, "8x128xf32"),
        _of_groups,
    ),
    "contract": LinalgProgram(
        _GROUPED,
        "8x128xf32",
        _MATRIX
        + _named("contract" + _BY_MAPS, {"x": "8x128xf32", "c": "128x128xf32"}, "8x128xf32"),
        _of_groups,
    ),
    "block-scaled product of sharktank": LinalgProgram(
        {"x": "2x8x128xf32", "w": "128x4x32xi4", "s": "128x4xf32"},
        "2x8x128xf32",
        _INT4
        + """
%e = tensor.expand_shape %x [[0], [1], [2, 3]] output_shape [2, 8, 4, 32]
    : tensor<2x8x128xf32> into tensor<2x8x4x32xf32>
"""
        + _generic(
            "r",
            "i m n g b: i m g b, n g b, i m n",
            {"e": "2x8x4x32xf32", "d": "128x4x32xf32"},
            "2x8x128xf32",
            _PRODUCT.replace("%x0", "%e0"),
        ),
        _of_groups,
    ),
    "offsets of blocks": LinalgProgram(
        {"x": "4x4x32xf32", "w": "128x4x32xi4", "s": "128x4xf32", "o": "128x4xf32"},
        "4x128xf32",
        _generic(
            "d",
            "n g b: n g, n g, n g b, n g b",
            {"s": "128x4xf32", "o": "128x4xf32", "w": "128x4x32xi4"},
            "128x4x32xf32",
            """
%i = arith.extui %w0 : i4 to i32
%q = arith.uitofp %i : i32 to f32
%p = arith.mulf %q, %s0 : f32
%t = arith.addf %p, %o0 : f32
linalg.yield %t : f32
""",
        )
        + _generic(
            "r",
            "m n g b: m g b, n g b, m n",
            {"x": "4x4x32xf32", "d": "128x4x32xf32"},
            "4x128xf32",
            _PRODUCT,
        ),
        lambda x, w, s, o: np.einsum("mgb,ngb->mn", x, w * s[..., None] + o[..., None]),
        unsigned=("w",),
    ),
    "one generic with blocks by floordiv": LinalgProgram(
        {"x": "8x128xf16", "w": "128x128xi8", "s": "128x4xf16", "z": "128x4xi8"},
        "8x128xf32",
        _generic(
            "r",
            "m n k: m k, n k, n k/32, n k/32, m n",
            {"x": "8x128xf16", "w": "128x128xi8", "s": "128x4xf16", "z": "128x4xi8"},
            "8x128xf32",
            """
%i = arith.extsi %w0 : i8 to i32
%o = arith.extsi %z0 : i8 to i32
%m = arith.subi %i, %o : i32
%q = arith.sitofp %m : i32 to f32
%k = arith.extf %s0 : f16 to f32
%v = arith.mulf %q, %k : f32
%a = arith.extf %x0 : f16 to f32
%p = arith.mulf %a, %v : f32
%t = arith.addf %out, %p : f32
linalg.yield %t : f32
""",
        ),
        lambda x, w, s, z: x @ ((w - z.repeat(32, 1)) * s.repeat(32, 1)).T,
    ),
    "three factors in one generic": LinalgProgram(
        {"x": "8x128xf32", "w": "192x128xi8", "s": "192xf32"},
        "8x192xf32",
        _generic(
            "r",
            "m n k: m k, n k, n, m n",
            {"x": "8x128xf32", "w": "192x128xi8", "s": "192xf32"},
            "8x192xf32",
            """
%q = arith.sitofp %w0 : i8 to f32
%p = arith.mulf %x0, %q : f32
%v = arith.mulf %p, %s0 : f32
%t = arith.addf %out, %v : f32
linalg.yield %t : f32
""",
        ),
        lambda x, w, s: x @ (w * s[:, None]).T,
    ),
    "dynamic rows and channels": LinalgProgram(
        {"x": "?x128xf32", **_BY_CHANNEL},
        "?x192xf32",
        _CHANNELS + _named("matmul", {"x": "?x128xf32", "d": "128x192xf32"}, "?x192xf32"),
        lambda x, w, s: x @ (w * s),
    ),
    "vecmat": LinalgProgram(
        {"x": "128xf32", **_BY_CHANNEL},
        "192xf32",
        _CHANNELS + _named("vecmat", {"x": "128xf32", "d": "128x192xf32"}, "192xf32"),
        lambda x, w, s: x @ (w * s),
    ),
    "matvec with a bias": LinalgProgram(
        {"x": "192xf32", **_BY_CHANNEL, "bias": "128xf32"},
        "128xf32",
        _CHANNELS + _named("matvec", {"d": "128x192xf32", "x": "192xf32"}, "128xf32", "bias"),
        lambda x, w, s, bias: (w * s) @ x + bias,
    ),
    "a named operation converts": LinalgProgram(
        {"x": "8x128xf32", "w": "128x192xi8"},
        "8x192xf32",
        _named("matmul", {"x": "8x128xf32", "w": "128x192xi8"}, "8x192xf32"),
        lambda x, w: x @ w,
    ),
    "batch_matmul": LinalgProgram(
        {"x": "3x8x128xf32", "w": "3x128x160xi8", "s": "3x160xf32"},
        "3x8x160xf32",
        _generic(
            "d",
            "b k n: b k n, b n, b k n",
            {"w": "3x128x160xi8", "s": "3x160xf32"},
            "3x128x160xf32",
            _SCALED,
        )
        + _named("batch_matmul", {"x": "3x8x128xf32", "d": "3x128x160xf32"}, "3x8x160xf32"),
        lambda x, w, s: x @ (w * s[:, None]),
    ),
    "named elementwise operations and tensors of arith": LinalgProgram(
        {"x": "8x128xf32", **_BY_CHANNEL},
        "8x192xf32",
        """
%z = arith.constant dense<-5> : tensor<128x192xi32>
%i = arith.extui %w : tensor<128x192xi8> to tensor<128x192xi32>
%o = arith.addi %i, %z : tensor<128x192xi32>
%q = arith.sitofp %o : tensor<128x192xi32> to tensor<128x192xf32>
%e = tensor.empty() : tensor<128x192xf32>
%b = linalg.broadcast ins(%s : tensor<192xf32>) outs(%e : tensor<128x192xf32>) dimensions = [0]
%d = linalg.mul ins(%q, %b : tensor<128x192xf32>, tensor<128x192xf32>)
    outs(%e : tensor<128x192xf32>) -> tensor<128x192xf32>
"""
        + _named("matmul", {"x": "8x128xf32", "d": "128x192xf32"}, "8x192xf32"),
        lambda x, w, s: x @ ((w - 5) * s),
        unsigned=("w",),
    ),
    "bf16": LinalgProgram(
        {"x": "8x128xbf16", "w": "128x192xi8", "s": "192xbf16"},
        "8x192xf32",
        _CHANNELS.replace("f32", "bf16")
        + _named("matmul", {"x": "8x128xbf16", "d": "128x192xbf16"}, "8x192xf32"),
        lambda x, w, s: x @ (w * s).astype(ml_dtypes.bfloat16).astype(float),
    ),
    "bytes of two integers": LinalgProgram(
        {"x": "8x128xf32", "b": "192x64xi8", "s": "192xf32"},
        "8x192xf32",
        """
%w = "flow.tensor.bitcast"(%b) {operandSegmentSizes = array<i32: 1, 0, 0>}
    : (tensor<192x64xi8>) -> tensor<192x128xi4>
"""
        + _generic(
            "r",
            "m n k: m k, n k, n, m n",
            {"x": "8x128xf32", "w": "192x128xi4", "s": "192xf32"},
            "8x192xf32",
            """
%q = arith.sitofp %w0 : i4 to f32
%v = arith.mulf %q, %s0 : f32
%p = arith.mulf %x0, %v : f32
%t = arith.addf %out, %p : f32
linalg.yield %t : f32
""",
        ),
        lambda x, b, s: (
            x @ (np.stack([(b << 60) >> 60, b >> 4], -1).reshape(192, 128) * s[:, None]).T
        ),
    ),
    "quantized_matmul": LinalgProgram(
        {"x": "32x128xi8", "w": "128x192xi8"},
        "32x192xi32",
        "%zx = arith.constant -3 : i32\n%zw = arith.constant 7 : i32\n"
        + _named(
            "quantized_matmul",
            {"x": "32x128xi8", "w": "128x192xi8", "zx": "i32", "zw": "i32"},
            "32x192xi32",
        ),
        lambda x, w: (x + 3) @ (w - 7),
        raised=("subquant.subtract_zero_point", "stablehlo.dot_general"),
    ),
    "quantized_matmul with computed zero points": LinalgProgram(
        {"x": "32x128xi8", "w": "128x192xi8", "zx": "i32", "zw": "i32"},
        "32x192xi32",
        _named(
            "quantized_matmul",
            {"x": "32x128xi8", "w": "128x192xi8", "zx": "i32", "zw": "i32"},
            "32x192xi32",
        ),
        lambda x, w, zx, zw: (x - zx) @ (w - zw),
        raised=("stablehlo.reduce", "stablehlo.dot_general"),
    ),
    "integers with zero points of channels": LinalgProgram(
        {"x": "32x128xi8", "w": "192x128xi8", "z": "192xi32"},
        "32x192xi32",
        _generic(
            "r",
            "m n k: m k, n k, n, m n",
            {"x": "32x128xi8", "w": "192x128xi8", "z": "192xi32"},
            "32x192xi32",
            """
%a = arith.extui %x0 : i8 to i32
%i = arith.extsi %w0 : i8 to i32
%m = arith.subi %i, %z0 : i32
%p = arith.muli %a, %m : i32
%t = arith.addi %out, %p : i32
linalg.yield %t : i32
""",
        ),
        lambda x, w, z: x @ (w - z[:, None]).T,
        unsigned=("x",),
        raised=("stablehlo.reduce", "stablehlo.dot_general"),
    ),
    "matmul of i8": LinalgProgram(
        {"x": "32x128xi8", "w": "128x192xi8"},
        "32x192xi32",
        _named("matmul", {"x": "32x128xi8", "w": "128x192xi8"}, "32x192xi32"),
        lambda x, w: x @ w,
        raised=("stablehlo.dot_general",),
    ),
    "conv_2d_nhwc_hwcf_q": _convolution(
        "conv_2d_nhwc_hwcf_q",
        {"x": "1x12x12x16xi8", "w": "3x3x16x32xi8", "zx": "i32", "zw": "i32"},
        "1x10x10x32xi32",
        lambda x, w: _convolved(x + 5, w),
    ),
    "conv_2d_nhwc_hwcf with strides": _convolution(
        "conv_2d_nhwc_hwcf {strides = dense<2> : tensor<2xi64>}",
        {"x": "1x13x13x16xi8", "w": "3x3x16x32xi8"},
        "1x6x6x32xi32",
        lambda x, w: _convolved(x, w, stride=2),
    ),
    "conv_2d_nchw_fchw with dilations": _convolution(
        "conv_2d_nchw_fchw {dilations = dense<2> : tensor<2xi64>}",
        {"x": "2x16x13x13xi8", "w": "32x16x3x3xi8"},
        "2x32x9x9xi32",
        lambda x, w: _convolved(
            x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), dilation=2
        ).transpose(0, 3, 1, 2),
    ),
    "conv_1d_nwc_wcf": _convolution(
        "conv_1d_nwc_wcf",
        {"x": "1x64x16xi8", "w": "3x16x32xi8"},
        "1x62x32xi32",
        lambda x, w: _convolved(x[:, None], w[None])[:, 0],
    ),
    "depthwise_conv_2d_nhwc_hwc_q": _convolution(
        "depthwise_conv_2d_nhwc_hwc_q",
        {"x": "1x12x12x32xi8", "w": "3x3x32xi8", "zx": "i32", "zw": "i32"},
        "1x10x10x32xi32",
        lambda x, w: _convolved(x + 5, w, product=np.multiply),
    ),
    "a convolution of dequantized operands": LinalgProgram(
        {"x": "1x12x12x16xi8", "w": "3x3x16x32xi8", "s": "32xf32"},
        "1x10x10x32xf32",
        _generic(
            "a",
            "b y x c: b y x c, b y x c",
            {"x": "1x12x12x16xi8"},
            "1x12x12x16xf32",
            """
%q = arith.sitofp %x0 : i8 to f32
%k = arith.constant 0.25 : f32
%p = arith.mulf %q, %k : f32
linalg.yield %p : f32
""",
        )
        + _generic(
            "d",
            "y x c o: y x c o, o, y x c o",
            {"w": "3x3x16x32xi8", "s": "32xf32"},
            "3x3x16x32xf32",
            _SCALED,
        )
        + _named(
            "conv_2d_nhwc_hwcf", {"a": "1x12x12x16xf32", "d": "3x3x16x32xf32"}, "1x10x10x32xf32"
        ),
        lambda x, w, s: _convolved(x * 0.25, w * s),
        raised=("subquant.dequantize", "stablehlo.convolution"),
    ),
    "quantized_batch_matmul": LinalgProgram(
        {"x": "3x16x128xi8", "w": "3x128x160xi8", "zx": "i32"},
        "3x16x160xi32",
        "%zw = arith.constant 2 : i32\n"
        + _named(
            "quantized_batch_matmul",
            {"x": "3x16x128xi8", "w": "3x128x160xi8", "zx": "i32", "zw": "i32"},
            "3x16x160xi32",
        ),
        lambda x, w, zx: (x - zx) @ (w - 2),
        raised=("stablehlo.reduce", "stablehlo.dot_general"),
    ),
}
