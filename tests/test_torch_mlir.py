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
    """`transforms.torch.negative_scalars` writes them as floats."""
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
    """`transforms.torch.unfolded_divisions` hides them: 127 / -2 is 0 in torch-mlir."""
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
