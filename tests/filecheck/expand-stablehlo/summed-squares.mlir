// RUN: subquant opt %s --passes "expand-stablehlo{separate_squares=true}" | filecheck %s

// CHECK-LABEL: func.func @squares
// CHECK: %[[SQUARES:.+]] = stablehlo.multiply %arg0, %arg0 : tensor<16x8xf32>
// CHECK: %[[MAGNITUDES:.+]] = stablehlo.abs %[[SQUARES]] : tensor<16x8xf32>
// CHECK: stablehlo.reduce(%[[MAGNITUDES]] init: %{{.+}}) applies stablehlo.add
func.func @squares(%x: tensor<16x8xf32>) -> tensor<16xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.multiply %x, %x : tensor<16x8xf32>
  %r = stablehlo.reduce(%s init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<16x8xf32>, tensor<f32>) -> tensor<16xf32>
  return %r : tensor<16xf32>
}

// Products of other operands, integers, whose squares may wrap, and other reductions stay.
// CHECK-LABEL: func.func @others
// CHECK-NOT: stablehlo.abs
// CHECK: return
func.func @others(%x: tensor<16x8xf32>, %y: tensor<16x8xf32>, %i: tensor<16x8xi32>) -> (tensor<16xf32>, tensor<16xf32>, tensor<16xi32>, tensor<16xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %none = stablehlo.constant dense<0> : tensor<i32>
  %p = stablehlo.multiply %x, %y : tensor<16x8xf32>
  %products = stablehlo.reduce(%p init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<16x8xf32>, tensor<f32>) -> tensor<16xf32>
  %s = stablehlo.multiply %x, %x : tensor<16x8xf32>
  %maximum = stablehlo.reduce(%s init: %zero) applies stablehlo.maximum across dimensions = [1] : (tensor<16x8xf32>, tensor<f32>) -> tensor<16xf32>
  %j = stablehlo.multiply %i, %i : tensor<16x8xi32>
  %integers = stablehlo.reduce(%j init: %none) applies stablehlo.add across dimensions = [1] : (tensor<16x8xi32>, tensor<i32>) -> tensor<16xi32>
  %plain = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<16x8xf32>, tensor<f32>) -> tensor<16xf32>
  return %products, %maximum, %integers, %plain : tensor<16xf32>, tensor<16xf32>, tensor<16xi32>, tensor<16xf32>
}

// So do the squares of up to 8 rows: their order of additions does not depend on the number of rows.
// CHECK-LABEL: func.func @few_rows
// CHECK-NOT: stablehlo.abs
// CHECK: return
func.func @few_rows(%x: tensor<8x32xf32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.multiply %x, %x : tensor<8x32xf32>
  %r = stablehlo.reduce(%s init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x32xf32>, tensor<f32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}
