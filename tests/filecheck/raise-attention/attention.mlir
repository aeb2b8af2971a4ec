// RUN: subquant opt %s --passes raise-attention | filecheck %s

// A batch of two axes, keys that are transposed, scores that are scaled, and a reshape after them.
// CHECK-LABEL: func.func @scaled(
// CHECK: %[[HEADS:.+]] = stablehlo.reshape %arg0 : (tensor<2x3x5x8xf32>) -> tensor<6x5x8xf32>
// CHECK: %[[Q:.+]] = stablehlo.transpose %[[HEADS]], dims = [1, 0, 2] : (tensor<6x5x8xf32>) -> tensor<5x6x8xf32>
// CHECK: %[[K:.+]] = stablehlo.transpose %{{.+}}, dims = [2, 0, 1] : (tensor<6x8x7xf32>) -> tensor<7x6x8xf32>
// CHECK: %[[V:.+]] = stablehlo.transpose %arg2, dims = [1, 0, 2] : (tensor<6x7x8xf32>) -> tensor<7x6x8xf32>
// CHECK: %[[Y:.+]] = "subquant.attention"(%[[Q]], %[[K]], %[[V]], %{{.+}}) {causal = false, scale = 2.500000e-01 : f32, softcap = 0.000000e+00 : f32, window = 0 : i64}
// CHECK: stablehlo.transpose %[[Y]], dims = [1, 0, 2] : (tensor<5x6x8xf32>) -> tensor<6x5x8xf32>
// CHECK-NOT: dot_general
func.func @scaled(%q: tensor<2x3x5x8xf32>, %k: tensor<2x3x8x7xf32>, %v: tensor<6x7x8xf32>) -> tensor<6x5x8xf32> {
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %true = stablehlo.constant dense<true> : tensor<i1>
  %quarter = stablehlo.constant dense<0.25> : tensor<2x3x5x7xf32>
  %infinite = stablehlo.constant dense<0xFF800000> : tensor<6x5x7xf32>
  %zeros = stablehlo.constant dense<0.0> : tensor<6x5x7xf32>
  %products = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x5x8xf32>, tensor<2x3x8x7xf32>) -> tensor<2x3x5x7xf32>
  %scaled = stablehlo.multiply %products, %quarter : tensor<2x3x5x7xf32>
  %s = stablehlo.reshape %scaled : (tensor<2x3x5x7xf32>) -> tensor<6x5x7xf32>
  %m = stablehlo.reduce(%s init: %least) applies stablehlo.maximum across dimensions = [2] : (tensor<6x5x7xf32>, tensor<f32>) -> tensor<6x5xf32>
  %mb = stablehlo.broadcast_in_dim %m, dims = [0, 1] : (tensor<6x5xf32>) -> tensor<6x5x7xf32>
  %d = stablehlo.subtract %s, %mb : tensor<6x5x7xf32>
  %e = stablehlo.exponential %d : tensor<6x5x7xf32>
  %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<6x5x7xf32>, tensor<f32>) -> tensor<6x5xf32>
  %tb = stablehlo.broadcast_in_dim %t, dims = [0, 1] : (tensor<6x5xf32>) -> tensor<6x5x7xf32>
  %p = stablehlo.divide %e, %tb : tensor<6x5x7xf32>
  %is = stablehlo.compare EQ, %s, %infinite, FLOAT : (tensor<6x5x7xf32>, tensor<6x5x7xf32>) -> tensor<6x5x7xi1>
  %all = stablehlo.reduce(%is init: %true) applies stablehlo.and across dimensions = [2] : (tensor<6x5x7xi1>, tensor<i1>) -> tensor<6x5xi1>
  %allb = stablehlo.broadcast_in_dim %all, dims = [0, 1] : (tensor<6x5xi1>) -> tensor<6x5x7xi1>
  %w = stablehlo.select %allb, %zeros, %p : tensor<6x5x7xi1>, tensor<6x5x7xf32>
  %y = stablehlo.dot_general %w, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<6x5x7xf32>, tensor<6x7x8xf32>) -> tensor<6x5x8xf32>
  return %y : tensor<6x5x8xf32>
}

// Without the select, a row whose scores are all -inf is NaN: nothing changes.
// CHECK-LABEL: func.func @unsafe(
// CHECK: stablehlo.dot_general
// CHECK: stablehlo.dot_general
// CHECK-NOT: subquant.attention
func.func @unsafe(%q: tensor<6x5x8xf32>, %k: tensor<6x8x7xf32>, %v: tensor<6x7x8xf32>) -> tensor<6x5x8xf32> {
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<6x5x8xf32>, tensor<6x8x7xf32>) -> tensor<6x5x7xf32>
  %m = stablehlo.reduce(%s init: %least) applies stablehlo.maximum across dimensions = [2] : (tensor<6x5x7xf32>, tensor<f32>) -> tensor<6x5xf32>
  %mb = stablehlo.broadcast_in_dim %m, dims = [0, 1] : (tensor<6x5xf32>) -> tensor<6x5x7xf32>
  %d = stablehlo.subtract %s, %mb : tensor<6x5x7xf32>
  %e = stablehlo.exponential %d : tensor<6x5x7xf32>
  %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<6x5x7xf32>, tensor<f32>) -> tensor<6x5xf32>
  %tb = stablehlo.broadcast_in_dim %t, dims = [0, 1] : (tensor<6x5xf32>) -> tensor<6x5x7xf32>
  %p = stablehlo.divide %e, %tb : tensor<6x5x7xf32>
  %y = stablehlo.dot_general %p, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<6x5x7xf32>, tensor<6x7x8xf32>) -> tensor<6x5x8xf32>
  return %y : tensor<6x5x8xf32>
}
