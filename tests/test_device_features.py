"""Control flow, data movement and contractions on each device, against NumPy.

All functions are in one module, which is compiled once for each device.
"""

from __future__ import annotations

import numpy as np
import pytest

import subquant
from device_values import ALL_DEVICES, F32, PER_TENSOR, PER_TENSOR_PARAMETERS, integers, values
from devices import compile_for
from programs import same_bits
from subquant.errors import UnsupportedError
from subquant.numerics.casts import dequantize, quantize
from subquant.numerics.parameters import QuantizationParameters, StorageType
from subquant.runtime import Executable

OTHER = "!quant.uniform<i4:f32, 0.5>"

OTHER_PARAMETERS = QuantizationParameters(StorageType(4), F32, scales=np.array(0.5))
CONTROL_FLOW = f"""
!q = tensor<4x{PER_TENSOR}>
!r = tensor<4xf32>
func.func private @step(%q: !q) -> !q {{
  %x = quant.dcast %q : !q to !r
  %h = arith.constant dense<1.25> : !r
  %y = arith.addf %x, %h : !r
  %n = quant.qcast %y : !r to !q
  return %n : !q
}}
func.func private @pick(%q: !q, %s: {PER_TENSOR}) -> ({PER_TENSOR}, !q) {{
  %c = arith.constant 1 : index
  %e = tensor.extract %q[%c] : !q
  %n = tensor.insert %s into %q[%c] : !q
  return %e, %n : {PER_TENSOR}, !q
}}
func.func @call(%q: !q) -> !q {{
  %a = func.call @step(%q) : (!q) -> !q
  %b = func.call @step(%a) : (!q) -> !q
  return %b : !q
}}
func.func @call_scalar(%q: !q, %s: {PER_TENSOR}) -> ({PER_TENSOR}, !q) {{
  %e, %n = func.call @pick(%q, %s) : (!q, {PER_TENSOR}) -> ({PER_TENSOR}, !q)
  return %e, %n : {PER_TENSOR}, !q
}}
func.func @loop(%q: !q, %n: index) -> !q {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%a = %q) -> (!q) {{
    %b = func.call @step(%a) : (!q) -> !q
    scf.yield %b : !q
  }}
  return %r : !q
}}
func.func @choose(%c: i1, %a: !q, %b: !q) -> !q {{
  %r = scf.if %c -> (!q) {{
    %s = func.call @step(%a) : (!q) -> !q
    scf.yield %s : !q
  }} else {{
    scf.yield %b : !q
  }}
  return %r : !q
}}
func.func @while(%q: !q, %bound: f32) -> !q {{
  %c0 = arith.constant 0 : index
  %r = scf.while (%a = %q) : (!q) -> !q {{
    %x = quant.dcast %a : !q to !r
    %e = tensor.extract %x[%c0] : !r
    %more = arith.cmpf olt, %e, %bound : f32
    scf.condition(%more) %a : !q
  }} do {{
  ^bb0(%a: !q):
    %b = func.call @step(%a) : (!q) -> !q
    scf.yield %b : !q
  }}
  return %r : !q
}}
func.func @branch(%c: i1, %a: !q, %b: !q) -> !q {{
  cf.cond_br %c, ^one(%a : !q), ^two(%b, %a : !q, !q)
^one(%x: !q):
  %s = func.call @step(%x) : (!q) -> !q
  cf.br ^end(%s : !q)
^two(%y: !q, %z: !q):
  cf.br ^end(%y : !q)
^end(%r: !q):
  return %r : !q
}}
func.func @select(%c: i1, %a: !q, %b: !q) -> !q {{
  %r = arith.select %c, %a, %b : !q
  return %r : !q
}}
"""

SCALARS = f"""
func.func @scalar(%x: f32) -> {PER_TENSOR} {{
  %q = quant.qcast %x : f32 to {PER_TENSOR}
  return %q : {PER_TENSOR}
}}
func.func @scalar_back(%q: {PER_TENSOR}) -> f32 {{
  %x = quant.dcast %q : {PER_TENSOR} to f32
  return %x : f32
}}
func.func @requantize_in_body(%x: tensor<3x5xi8>) -> tensor<3x5xi4> {{
  %e = tensor.empty() : tensor<3x5xi4>
  %r = linalg.generic {{
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}}
      ins(%x : tensor<3x5xi8>) outs(%e : tensor<3x5xi4>) {{
  ^bb0(%a: i8, %o: i4):
    %q = quant.scast %a : i8 to {PER_TENSOR}
    %f = quant.dcast %q : {PER_TENSOR} to f32
    %n = quant.qcast %f : f32 to {OTHER}
    %s = quant.scast %n : {OTHER} to i4
    linalg.yield %s : i4
  }} -> tensor<3x5xi4>
  return %r : tensor<3x5xi4>
}}
"""

MOVES = f"""
func.func @slice(%q: tensor<4x6x{PER_TENSOR}>) -> tensor<2x3x{PER_TENSOR}> {{
  %r = tensor.extract_slice %q[1, 1] [2, 3] [1, 2]
      : tensor<4x6x{PER_TENSOR}> to tensor<2x3x{PER_TENSOR}>
  return %r : tensor<2x3x{PER_TENSOR}>
}}
func.func @insert(%p: tensor<2x3x{PER_TENSOR}>, %q: tensor<4x6x{PER_TENSOR}>)
    -> tensor<4x6x{PER_TENSOR}> {{
  %r = tensor.insert_slice %p into %q[1, 2] [2, 3] [1, 1]
      : tensor<2x3x{PER_TENSOR}> into tensor<4x6x{PER_TENSOR}>
  return %r : tensor<4x6x{PER_TENSOR}>
}}
func.func @reshape(%q: tensor<4x6x{OTHER}>) -> tensor<2x12x{OTHER}> {{
  %a = tensor.collapse_shape %q [[0, 1]] : tensor<4x6x{OTHER}> into tensor<24x{OTHER}>
  %b = tensor.expand_shape %a [[0, 1]] output_shape [2, 12]
      : tensor<24x{OTHER}> into tensor<2x12x{OTHER}>
  return %b : tensor<2x12x{OTHER}>
}}
func.func @concat(%p: tensor<2x3x{OTHER}>, %q: tensor<2x4x{OTHER}>) -> tensor<2x7x{OTHER}> {{
  %r = tensor.concat dim(1) %p, %q
      : (tensor<2x3x{OTHER}>, tensor<2x4x{OTHER}>) -> tensor<2x7x{OTHER}>
  return %r : tensor<2x7x{OTHER}>
}}
func.func @moved_then_dequantized(%q: tensor<?x6x{PER_TENSOR}>, %n: index) -> tensor<?x6xf32> {{
  %s = tensor.extract_slice %q[1, 0] [%n, 6] [1, 1]
      : tensor<?x6x{PER_TENSOR}> to tensor<?x6x{PER_TENSOR}>
  %x = quant.dcast %s : tensor<?x6x{PER_TENSOR}> to tensor<?x6xf32>
  return %x : tensor<?x6xf32>
}}
"""
DOTS = [(1, 1, 1), (7, 7, 7), (1, 256, 64), (64, 64, 64)]


def dot(m: int, k: int, n: int) -> str:
    """Quantized operands to storage, an integer matmul; and the same dequantized, in f32."""
    a, b, c = f"tensor<{m}x{k}x", f"tensor<{k}x{n}x", f"tensor<{m}x{n}x"
    left = "!quant.uniform<i8:f32, 0.25>"
    zeros = f"""  %z = arith.constant 0 : i32
  %e = tensor.empty() : {c}i32>
  %f = linalg.fill ins(%z : i32) outs(%e : {c}i32>) -> {c}i32>"""
    return f"""
func.func @dot_{m}_{k}_{n}(%a: {a}{left}>, %b: {b}{left}>) -> {c}i32> {{
  %x = quant.scast %a : {a}{left}> to {a}i8>
  %y = quant.scast %b : {b}{left}> to {b}i8>
{zeros}
  %r = linalg.matmul ins(%x, %y : {a}i8>, {b}i8>) outs(%f : {c}i32>) -> {c}i32>
  return %r : {c}i32>
}}
func.func @transposed_{m}_{k}_{n}(%a: {a}{left}>, %b: tensor<{n}x{k}x{OTHER}>) -> {c}i32> {{
  %x = quant.scast %a : {a}{left}> to {a}i8>
  %y = quant.scast %b : tensor<{n}x{k}x{OTHER}> to tensor<{n}x{k}xi4>
{zeros}
  %r = linalg.generic {{indexing_maps = [affine_map<(m, n, k) -> (m, k)>,
      affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%x, %y : {a}i8>, tensor<{n}x{k}xi4>) outs(%f : {c}i32>) {{
  ^bb0(%p: i8, %q: i4, %o: i32):
    %u = arith.extsi %p : i8 to i32
    %v = arith.extsi %q : i4 to i32
    %w = arith.muli %u, %v : i32
    %s = arith.addi %o, %w : i32
    linalg.yield %s : i32
  }} -> {c}i32>
  return %r : {c}i32>
}}
func.func @real_{m}_{k}_{n}(%a: {a}{PER_TENSOR}>, %b: {b}f32>) -> {c}f32> {{
  %x = quant.dcast %a : {a}{PER_TENSOR}> to {a}f32>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : {c}f32>
  %f = linalg.fill ins(%z : f32) outs(%e : {c}f32>) -> {c}f32>
  %r = linalg.matmul ins(%x, %b : {a}f32>, {b}f32>) outs(%f : {c}f32>) -> {c}f32>
  return %r : {c}f32>
}}"""


MODULE = "\n".join([CONTROL_FLOW, SCALARS, MOVES, *(dot(*sizes) for sizes in DOTS)])


@pytest.fixture(scope="module", params=ALL_DEVICES)
def executable(request: pytest.FixtureRequest) -> Executable:
    return compile_for(MODULE, request.getfixturevalue(request.param))


def stepped(stored: np.ndarray, times: int) -> np.ndarray:
    for _ in range(times):
        real = dequantize(stored, PER_TENSOR_PARAMETERS) + np.float32(1.25)
        stored = quantize(real, PER_TENSOR_PARAMETERS)
    return stored


FIRST = np.array([-128, -3, 0, 125], np.int8)
SECOND = np.array([1, 2, 3, 4], np.int8)


@pytest.mark.long
def test_calls_of_private_functions(executable: Executable) -> None:
    np.testing.assert_array_equal(executable.call(FIRST), stepped(FIRST, 2), strict=True)
    assert set(executable.functions).isdisjoint({"step", "pick"})


@pytest.mark.long
def test_calls_with_quantized_scalars(executable: Executable) -> None:
    element, tensor = executable.call_scalar(FIRST, -77)
    assert (element, element.dtype, element.shape) == (-3, np.int8, ())
    np.testing.assert_array_equal(tensor, np.array([-128, -77, 0, 125], np.int8), strict=True)


@pytest.mark.parametrize("times", [0, 1, 3, 60])
def test_a_loop_carries_quantized_values(executable: Executable, times: int) -> None:
    np.testing.assert_array_equal(executable.loop(FIRST, times), stepped(FIRST, times), strict=True)


@pytest.mark.parametrize(("name", "steps"), [("choose", 1), ("branch", 1), ("select", 0)])
def test_branches_on_quantized_values(executable: Executable, name: str, steps: int) -> None:
    chosen = executable[name](True, FIRST, SECOND)
    np.testing.assert_array_equal(chosen, stepped(FIRST, steps), strict=True)
    np.testing.assert_array_equal(executable[name](False, FIRST, SECOND), SECOND, strict=True)


def test_while_on_quantized_values(executable: Executable) -> None:
    times = 0
    while dequantize(stepped(SECOND, times), PER_TENSOR_PARAMETERS)[0] < 7.0:
        times += 1
    assert times > 3
    np.testing.assert_array_equal(executable["while"](SECOND, 7.0), stepped(SECOND, times))


def test_quantized_scalars(executable: Executable) -> None:
    for real in (0.0, 0.125, -0.125, 1e9, -1e9, float("nan"), float("inf")):
        assert executable.scalar(real) == quantize(np.float32(real), PER_TENSOR_PARAMETERS), real
    for stored in (-128, 0, 127):
        assert executable.scalar_back(stored) == np.float32((stored - 3) * 0.25)


def test_casts_of_scalars_in_a_loop_body(executable: Executable) -> None:
    stored = integers((3, 5))
    expected = quantize(dequantize(stored, PER_TENSOR_PARAMETERS), OTHER_PARAMETERS)
    np.testing.assert_array_equal(executable.requantize_in_body(stored), expected, strict=True)


def test_slices_of_quantized_tensors(executable: Executable) -> None:
    tensor, part = integers((4, 6)), integers((2, 3))
    np.testing.assert_array_equal(executable.slice(tensor), tensor[1:3, 1:7:2], strict=True)
    expected = tensor.copy()
    expected[1:3, 2:5] = part
    np.testing.assert_array_equal(executable.insert(part, tensor), expected, strict=True)


def test_reshapes_and_concatenations_of_i4(executable: Executable) -> None:
    tensor = integers((4, 6), -8, 7)
    np.testing.assert_array_equal(executable.reshape(tensor), tensor.reshape(2, 12), strict=True)
    left, right = integers((2, 3), -8, 7), integers((2, 4), -8, 7)
    expected = np.concatenate([left, right], 1)
    np.testing.assert_array_equal(executable.concat(left, right), expected, strict=True)


def test_a_dynamic_slice_is_dequantized(executable: Executable) -> None:
    tensor = integers((9, 6))
    for count in (1, 5, 8):
        expected = dequantize(tensor[1 : 1 + count], PER_TENSOR_PARAMETERS)
        assert same_bits(executable.moved_then_dequantized(tensor, count), expected)


@pytest.mark.parametrize(("m", "k", "n"), DOTS)
def test_integer_contractions_are_exact(executable: Executable, m: int, k: int, n: int) -> None:
    left, right = integers((m, k)), integers((k, n))
    left[0, 0], right[0, 0] = -128, -128
    expected = (left.astype(np.int64) @ right.astype(np.int64)).astype(np.int32)
    got = executable[f"dot_{m}_{k}_{n}"](left, right)
    np.testing.assert_array_equal(got, expected, strict=True)
    weights = integers((n, k), -8, 7)
    expected = (left.astype(np.int64) @ weights.T.astype(np.int64)).astype(np.int32)
    got = executable[f"transposed_{m}_{k}_{n}"](left, weights)
    np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize(("m", "k", "n"), DOTS)
def test_a_dequantized_contraction(executable: Executable, m: int, k: int, n: int) -> None:
    """Within ``(k + 1) * 2**-24 * sum |a| |b|``: for a sum of f32 products in any order.

    ``|fl(sum) - sum| <= k u / (1 - k u) * sum |a_i b_i|`` with ``u = 2**-24`` (Higham, 3.1); the
    bound has k + 1 in place of k, which covers the denominator.
    """
    stored, right = integers((m, k)), values((k, n), 1.0)
    left = dequantize(stored, PER_TENSOR_PARAMETERS).astype(np.float64)
    exact = left @ right.astype(np.float64)
    bound = (k + 1) * 2.0**-24 * (np.abs(left) @ np.abs(right).astype(np.float64))
    assert (np.abs(executable[f"real_{m}_{k}_{n}"](stored, right) - exact) <= bound).all()


def test_an_operation_that_computes_with_quantized_values_is_refused() -> None:
    type_ = f"tensor<4x{PER_TENSOR}>"
    text = f"""func.func @f(%q: {type_}) -> {type_} {{
  %r = "test.neg"(%q) : ({type_}) -> {type_}
  return %r : {type_}
}}"""
    with pytest.raises(UnsupportedError, match="computes with quantized values") as caught:
        subquant.compile(text)
    assert (caught.value.place.line, caught.value.op_name) == (2, "test.neg")
