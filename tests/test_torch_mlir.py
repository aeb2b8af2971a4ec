"""Operators that torch-mlir lowers wrongly: each test fails when torch-mlir is mended.

Then the rewrite that the test names may go.
"""

from __future__ import annotations

from subquant.compiler.mlir_client import optimize

LOWERING = (
    "torchdynamo-export-to-torch-backend-pipeline,func.func(convert-torch-to-stablehlo),"
    "func.func(convert-torch-to-arith),canonicalize"
)


def lowered(function: str) -> str:
    """Return a function of the torch dialect after torch-mlir's passes alone."""
    return optimize(function.encode(), "-", LOWERING).text or ""


def test_remainders_still_have_the_sign_of_the_dividend() -> None:
    """`transforms.torch.remainders` corrects them."""
    tensor = "!torch.vtensor<[4],f32>"
    text = lowered(f"""
func.func @main(%x: {tensor}, %y: {tensor}) -> {tensor} {{
  %0 = torch.aten.remainder.Tensor %x, %y : {tensor}, {tensor} -> {tensor}
  return %0 : {tensor}
}}
""")
    assert "remainder" in text
    assert not any(name in text for name in ("compare", "select", "floor", "sign"))


def test_negative_indices_still_are_clamped() -> None:
    """`transforms.torch.negative_indices` makes them positive."""
    table, indices = "!torch.vtensor<[5,2],f32>", "!torch.vtensor<[3],si64>"
    result, listed = "!torch.vtensor<[3,2],f32>", "!torch.list<optional<vtensor>>"
    text = lowered(f"""
func.func @main(%x: {table}, %i: {indices}) -> {result} {{
  %0 = torch.prim.ListConstruct %i : ({indices}) -> {listed}
  %1 = torch.aten.index.Tensor %x, %0 : {table}, {listed} -> {result}
  return %1 : {result}
}}
""")
    assert "stablehlo.gather" in text
    assert not any(name in text for name in ("compare", "select", "maximum", "add"))


def test_negative_integers_still_lose_their_sign() -> None:
    """`transforms.torch.hidden_constants` hides them."""
    scalar = "!torch.vtensor<[],f32>"
    text = lowered(f"""
func.func @main() -> {scalar} {{
  %c = torch.vtensor.literal(dense<1.0> : tensor<f32>) : {scalar}
  %two = torch.constant.int -2
  %one = torch.constant.int 1
  %0 = torch.aten.mul.Scalar %c, %two : {scalar}, !torch.int -> {scalar}
  return %0 : {scalar}
}}
""")
    assert "dense<1.84467441E+19>" in text  # expected -2.0


def test_divisions_of_constants_still_have_no_sign() -> None:
    """`transforms.torch.hidden_constants` hides them: 127 / -2 is 0 in torch-mlir."""
    tensor = "!torch.vtensor<[],si32>"
    text = lowered(f"""
func.func @main() -> {tensor} {{
  %x = torch.vtensor.literal(dense<127> : tensor<si32>) : {tensor}
  %y = torch.vtensor.literal(dense<-2> : tensor<si32>) : {tensor}
  %mode = torch.constant.str "trunc"
  %0 = torch.aten.div.Tensor_mode %x, %y, %mode : {tensor}, {tensor}, !torch.str -> {tensor}
  return %0 : {tensor}
}}
""")
    assert "dense<0>" in text


def test_output_paddings_still_are_reversed() -> None:
    """`transforms.torch.output_paddings` reverses them before."""
    images, weight = "!torch.vtensor<[1,1,?,?],f32>", "!torch.vtensor<[1,1,3,3],f32>"
    pair, sizes = "(!torch.int, !torch.int)", "!torch.list<int>"
    text = lowered(f"""
func.func @main(%x: {images}, %w: {weight}) -> {images} {{
  %two = torch.constant.int 2
  %one = torch.constant.int 1
  %zero = torch.constant.int 0
  %true = torch.constant.bool true
  %none = torch.constant.none
  %stride = torch.prim.ListConstruct %two, %two : {pair} -> {sizes}
  %padding = torch.prim.ListConstruct %zero, %zero : {pair} -> {sizes}
  %dilation = torch.prim.ListConstruct %one, %one : {pair} -> {sizes}
  %rows = torch.prim.ListConstruct %one, %zero : {pair} -> {sizes}
  %0 = torch.aten.convolution %x, %w, %none, %stride, %padding, %dilation, %true, %rows, %one
      : {images}, {weight}, !torch.none, {sizes}, {sizes}, {sizes}, !torch.bool, {sizes}, !torch.int
      -> {images}
  return %0 : {images}
}}
""")
    assert "pad = [[2, 2], [2, 3]]" in text  # expected [[2, 3], [2, 2]]


def test_windows_that_end_outside_still_are_lost() -> None:
    """`importers.torch.pooling` pads the input for ``ceil_mode``."""
    images, result = "!torch.vtensor<[1,1,8,8],f32>", "!torch.vtensor<[1,1,4,4],f32>"
    pair, sizes = "(!torch.int, !torch.int)", "!torch.list<int>"
    text = lowered(f"""
func.func @main(%x: {images}) -> {result} {{
  %three = torch.constant.int 3
  %two = torch.constant.int 2
  %one = torch.constant.int 1
  %zero = torch.constant.int 0
  %true = torch.constant.bool true
  %kernel = torch.prim.ListConstruct %three, %three : {pair} -> {sizes}
  %stride = torch.prim.ListConstruct %two, %two : {pair} -> {sizes}
  %padding = torch.prim.ListConstruct %zero, %zero : {pair} -> {sizes}
  %dilation = torch.prim.ListConstruct %one, %one : {pair} -> {sizes}
  %0 = torch.aten.max_pool2d %x, %kernel, %stride, %padding, %dilation, %true
      : {images}, {sizes}, {sizes}, {sizes}, {sizes}, !torch.bool -> {result}
  return %0 : {result}
}}
""")
    assert "padding = dense<[[0, 0], [0, 0], [1, 1], [1, 1]]>" in text  # expected [0, 1]


def test_strides_that_are_left_out_still_are_1() -> None:
    """`importers.torch.pooling` gives the sizes of the kernel."""
    images, result = "!torch.vtensor<[1,1,8,8],f32>", "!torch.vtensor<[1,1,4,4],f32>"
    indices, sizes = "!torch.vtensor<[1,1,4,4],si64>", "!torch.list<int>"
    text = lowered(f"""
func.func @main(%x: {images}) -> {indices} {{
  %two = torch.constant.int 2
  %one = torch.constant.int 1
  %zero = torch.constant.int 0
  %false = torch.constant.bool false
  %kernel = torch.prim.ListConstruct %two, %two : (!torch.int, !torch.int) -> {sizes}
  %stride = torch.prim.ListConstruct : () -> {sizes}
  %padding = torch.prim.ListConstruct %zero, %zero : (!torch.int, !torch.int) -> {sizes}
  %dilation = torch.prim.ListConstruct %one, %one : (!torch.int, !torch.int) -> {sizes}
  %0, %1 = torch.aten.max_pool2d_with_indices %x, %kernel, %stride, %padding, %dilation, %false
      : {images}, {sizes}, {sizes}, {sizes}, {sizes}, !torch.bool -> {result}, {indices}
  return %1 : {indices}
}}
""")
    assert "stablehlo.reduce_window" not in text  # the module is invalid, and has no text


def test_nan_still_equals_itself() -> None:
    """`importers.torch.indexing` compares by ``isnan``."""
    tensor, mask = "!torch.vtensor<[4],f32>", "!torch.vtensor<[4],i1>"
    text = lowered(f"""
func.func @main(%x: {tensor}) -> {mask} {{
  %0 = torch.aten.eq.Tensor %x, %x : {tensor}, {tensor} -> {mask}
  return %0 : {mask}
}}
""")
    assert "dense<true>" in text


def test_sorts_still_give_nan_no_position() -> None:
    """`transforms.torch.sort_order` makes them stable, and compares with NaN."""
    tensor, indices = "!torch.vtensor<[4],f32>", "!torch.vtensor<[4],si64>"
    text = lowered(f"""
func.func @main(%x: {tensor}) -> {tensor} {{
  %zero = torch.constant.int 0
  %false = torch.constant.bool false
  %0, %1 = torch.aten.sort %x, %zero, %false
      : {tensor}, !torch.int, !torch.bool -> {tensor}, {indices}
  return %0 : {tensor}
}}
""")
    assert text.count("stablehlo.compare") == 1
    assert "is_stable = true" not in text


def test_bytes_still_are_shifted_with_their_sign() -> None:
    """`importers.torch.integer_promotion` shifts them as i32."""
    tensor = "!torch.vtensor<[4],ui8>"
    text = lowered(f"""
func.func @main(%x: {tensor}, %y: {tensor}) -> {tensor} {{
  %0 = torch.aten.bitwise_right_shift.Tensor %x, %y : {tensor}, {tensor} -> {tensor}
  return %0 : {tensor}
}}
""")
    assert "shift_right_arithmetic" in text


def test_maxima_of_bytes_still_begin_with_128() -> None:
    """`importers.torch.integer_promotion` computes them in i32."""
    tensor, result = "!torch.vtensor<[4],ui8>", "!torch.vtensor<[],ui8>"
    text = lowered(f"""
func.func @main(%x: {tensor}) -> {result} {{
  %zero = torch.constant.int 0
  %false = torch.constant.bool false
  %axes = torch.prim.ListConstruct %zero : (!torch.int) -> !torch.list<int>
  %0 = torch.aten.amax %x, %axes, %false
      : {tensor}, !torch.list<int>, !torch.bool -> {result}
  return %0 : {result}
}}
""")
    assert "dense<128>" in text
