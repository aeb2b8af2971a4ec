// RUN: subquant opt %s --passes canonicalize-reductions --split-input-file --verify-diagnostics

func.func @dynamic(%x: tensor<?xi8>, %y: tensor<?xi8>, %i: tensor<i8>) -> tensor<?xi32> {
  // expected-error @+1 {{'stablehlo.select_and_scatter' op has a dynamic shape, got 'tensor<?xi8>' and 'tensor<?xi8>'; selected elements are numbered, which takes static shapes}}
  %0 = "stablehlo.select_and_scatter"(%x, %y, %i) ({
  ^bb0(%a: tensor<i8>, %b: tensor<i8>):
    %c = stablehlo.compare GE, %a, %b : (tensor<i8>, tensor<i8>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }, {
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %c = stablehlo.add %a, %b : tensor<i32>
    stablehlo.return %c : tensor<i32>
  }) {window_dimensions = array<i64: 2>} : (tensor<?xi8>, tensor<?xi8>, tensor<i8>) -> tensor<?xi32>
  return %0 : tensor<?xi32>
}
