// RUN: subquant opt %s --passes "expand-stablehlo{split_sums=true}" | filecheck %s

// CHECK-LABEL: func.func @reduce
// CHECK: %[[PARTS:.+]] = stablehlo.reshape %arg0 : (tensor<70000xf32>) -> tensor<10x7000xf32>
// CHECK: %[[ALONE:.+]] = "util.optimization_barrier"(%[[PARTS]])
// CHECK: %[[SUMS:.+]] = stablehlo.reduce(%[[ALONE]] init: %{{.+}}) applies stablehlo.add across dimensions = [1]
// CHECK: %[[SUMS2:.+]] = "util.optimization_barrier"(%[[SUMS]]) : (tensor<10xf32>)
// CHECK: stablehlo.reduce(%[[SUMS2]] init: %{{.+}}) applies stablehlo.add across dimensions = [0]
func.func @reduce(%x: tensor<70000xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<70000xf32>, tensor<f32>) -> tensor<f32>
  return %s : tensor<f32>
}

// CHECK-LABEL: func.func @dot
// CHECK: stablehlo.dot_general {{.+}}, batching_dims = [1] x [0], contracting_dims = [2] x [1] : (tensor<2x4x17500xf32>, tensor<4x17500x8xf32>) -> tensor<4x2x8xf32>
func.func @dot(%a: tensor<2x70000xf32>, %b: tensor<70000x8xf32>) -> tensor<2x8xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<2x70000xf32>, tensor<70000x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// Few elements stay together.
// CHECK-LABEL: func.func @short
// CHECK-NOT: reshape
// CHECK: return
func.func @short(%x: tensor<8192xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8192xf32>, tensor<f32>) -> tensor<f32>
  return %s : tensor<f32>
}
