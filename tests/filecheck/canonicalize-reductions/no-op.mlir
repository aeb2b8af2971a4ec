// RUN: subquant opt %s --passes canonicalize-reductions | filecheck %s

// One type everywhere, and batch_norm, which has no body.
// CHECK-NOT: stablehlo.convert
// CHECK-NOT: stablehlo.uniform_quantize
// CHECK: stablehlo.reduce
// CHECK: stablehlo.scatter
// CHECK: stablehlo.select_and_scatter
// CHECK: stablehlo.batch_norm_training
// CHECK-NOT: stablehlo.convert
// CHECK-NOT: stablehlo.uniform_quantize
!q = !quant.uniform<i8:f32, 0.5:1>
func.func @reduce(%x: tensor<2x8x!q>, %i: tensor<!q>) -> tensor<2x!q> {
  %0 = "stablehlo.reduce"(%x, %i) ({
  ^bb0(%a: tensor<!q>, %b: tensor<!q>):
    %s = stablehlo.add %a, %b : tensor<!q>
    stablehlo.return %s : tensor<!q>
  }) {dimensions = array<i64: 1>} : (tensor<2x8x!q>, tensor<!q>) -> tensor<2x!q>
  return %0 : tensor<2x!q>
}
func.func @scatter(%x: tensor<8xi8>, %n: tensor<2x1xi32>, %u: tensor<2xi8>) -> tensor<8xi8> {
  %0 = "stablehlo.scatter"(%x, %n, %u) ({
  ^bb0(%a: tensor<i8>, %b: tensor<i8>):
    stablehlo.return %b : tensor<i8>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
    : (tensor<8xi8>, tensor<2x1xi32>, tensor<2xi8>) -> tensor<8xi8>
  return %0 : tensor<8xi8>
}
func.func @select_and_scatter(%x: tensor<?xf32>, %y: tensor<?xf32>, %i: tensor<f32>) -> tensor<?xf32> {
  %0 = "stablehlo.select_and_scatter"(%x, %y, %i) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) {window_dimensions = array<i64: 2>} : (tensor<?xf32>, tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
func.func @batch_norm(%x: tensor<2x4x!q>, %s: tensor<4x!q>, %o: tensor<4x!q>) -> (tensor<2x4x!q>, tensor<4x!q>, tensor<4x!q>) {
  %0:3 = "stablehlo.batch_norm_training"(%x, %s, %o) {epsilon = 0.0 : f32, feature_index = 1 : i64}
    : (tensor<2x4x!q>, tensor<4x!q>, tensor<4x!q>) -> (tensor<2x4x!q>, tensor<4x!q>, tensor<4x!q>)
  return %0#0, %0#1, %0#2 : tensor<2x4x!q>, tensor<4x!q>, tensor<4x!q>
}
