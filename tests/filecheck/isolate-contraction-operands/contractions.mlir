// RUN: subquant opt %s --passes isolate-contraction-operands | filecheck %s

// CHECK-LABEL: func.func @contractions(
// CHECK: %[[F:.*]] = arith.sitofp
// CHECK: %[[B:.*]] = "iree_tensor_ext.compute_barrier.start"(%[[F]])
// CHECK: linalg.matmul ins(%[[B]], %arg1
// CHECK: %[[C:.*]] = "iree_tensor_ext.compute_barrier.start"(%[[F]])
// CHECK: stablehlo.dot_general %[[C]], %arg1
func.func @contractions(%q: tensor<2x3xi8>, %b: tensor<3x4xf32>, %o: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {
  %f = arith.sitofp %q : tensor<2x3xi8> to tensor<2x3xf32>
  %r = linalg.matmul ins(%f, %b : tensor<2x3xf32>, tensor<3x4xf32>) outs(%o : tensor<2x4xf32>) -> tensor<2x4xf32>
  %s = stablehlo.dot_general %f, %b, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  return %r, %s : tensor<2x4xf32>, tensor<2x4xf32>
}

// What IREE could compute when it compiles is kept from it.
// CHECK-LABEL: func.func @known(
// CHECK: %[[F:.*]] = arith.sitofp
// CHECK: %[[B:.*]] = "util.optimization_barrier"(%[[F]])
// CHECK: linalg.matmul ins(%arg0, %[[B]]
func.func @known(%a: tensor<2x3xf32>, %o: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %q = arith.constant dense<[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]> : tensor<3x4xi8>
  %f = arith.sitofp %q : tensor<3x4xi8> to tensor<3x4xf32>
  %r = linalg.matmul ins(%a, %f : tensor<2x3xf32>, tensor<3x4xf32>) outs(%o : tensor<2x4xf32>) -> tensor<2x4xf32>
  return %r : tensor<2x4xf32>
}
