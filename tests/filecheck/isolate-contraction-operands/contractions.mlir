// RUN: subquant opt %s --passes isolate-contraction-operands | filecheck %s

// CHECK-LABEL: func.func @contractions(
// CHECK: %[[F:.*]] = arith.sitofp
// CHECK: %[[B:.*]] = "util.optimization_barrier"(%[[F]])
// CHECK: linalg.matmul ins(%[[B]], %arg1
// CHECK: %[[C:.*]] = "util.optimization_barrier"(%[[F]])
// CHECK: stablehlo.dot_general %[[C]], %arg1
func.func @contractions(%q: tensor<2x3xi8>, %b: tensor<3x4xf32>, %o: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {
  %f = arith.sitofp %q : tensor<2x3xi8> to tensor<2x3xf32>
  %r = linalg.matmul ins(%f, %b : tensor<2x3xf32>, tensor<3x4xf32>) outs(%o : tensor<2x4xf32>) -> tensor<2x4xf32>
  %s = stablehlo.dot_general %f, %b, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  return %r, %s : tensor<2x4xf32>, tensor<2x4xf32>
}
