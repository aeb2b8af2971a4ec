// RUN: subquant opt %s --passes lower-attention | filecheck %s

// Scores of the whole context are masked twice: as scores, and as weights.
// CHECK-LABEL: func.func @window(
// CHECK: %[[LAST:.+]] = stablehlo.constant dense<14> : tensor<i32>
// CHECK: %[[LOW:.+]] = stablehlo.minimum %arg3, %[[LAST]]
// CHECK: %[[POSITION:.+]] = stablehlo.maximum %[[LOW]], %{{.+}} : tensor<i32>
// CHECK: %[[QUERY:.+]] = tensor.expand_shape %arg0 {{.+}} : tensor<2x4x8xf32> into tensor<2x2x2x8xf32>
// CHECK: %[[KEYS:.+]] = stablehlo.convert %arg1 : (tensor<16x2x8xf16>) -> tensor<16x2x8xf32>
// CHECK: %[[SCORES:.+]] = stablehlo.dot_general %[[QUERY]], %[[KEYS]], batching_dims = [1] x [1], contracting_dims = [3] x [2] {{.+}} -> tensor<2x2x2x16xf32>
// CHECK: %[[MASKED:.+]] = linalg.generic {{.+}} ins(%[[SCORES]], %[[POSITION]]
// CHECK-NOT: math.tanh
// CHECK: arith.cmpi sle
// CHECK: arith.constant 5 : i32
// CHECK: arith.cmpi sgt
// CHECK: arith.select
// CHECK: %[[GREATEST:.+]] = stablehlo.reduce(%[[MASKED]]{{.+}} applies stablehlo.maximum across dimensions = [3]
// CHECK: %[[WEIGHTS:.+]] = linalg.generic {{.+}} ins(%[[MASKED]], %[[GREATEST]], %[[POSITION]]
// CHECK: math.exp
// CHECK: arith.select
// CHECK: %[[VALUES:.+]] = linalg.generic {{.+}} ins(%arg2, %[[POSITION]]
// CHECK: arith.extf %{{.+}} : f16 to f32
// CHECK: %[[SUMS:.+]] = stablehlo.dot_general %[[WEIGHTS]], %[[VALUES]], batching_dims = [0] x [1], contracting_dims = [3] x [0]
// CHECK: %[[TOTALS:.+]] = stablehlo.reduce(%[[WEIGHTS]]{{.+}} applies stablehlo.add across dimensions = [3]
// CHECK: linalg.generic {{.+}} ins(%[[SUMS]], %[[TOTALS]]
// CHECK: arith.divf
// CHECK: tensor.collapse_shape {{.+}} : tensor<2x2x2x8xf32> into tensor<2x4x8xf32>
func.func @window(%q: tensor<2x4x8xf32>, %k: tensor<16x2x8xf16>, %v: tensor<16x2x8xf16>, %p: tensor<i32>) -> tensor<2x4x8xf32> {
  %0 = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, window = 5 : i64, softcap = 0.0 : f32}
    : (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>) -> tensor<2x4x8xf32>
  return %0 : tensor<2x4x8xf32>
}

// A window of the whole context is none; the number of queries is known at run time.
// CHECK-LABEL: func.func @dynamic(
// CHECK: %[[COUNT:.+]] = stablehlo.get_dimension_size %arg0, dim = 0
// CHECK: stablehlo.subtract %{{.+}}, %[[COUNT]]
// CHECK: stablehlo.dot_general {{.+}} -> tensor<2x?x2x16xf32>
// CHECK: math.tanh
// CHECK: arith.cmpi sle
// CHECK-NOT: arith.cmpi sgt
// CHECK: return %{{.+}} : tensor<?x4x8xf32>
func.func @dynamic(%q: tensor<?x4x8xf32>, %k: tensor<16x2x8xf32>, %v: tensor<16x2x8xf32>, %p: tensor<i32>) -> tensor<?x4x8xf32> {
  %0 = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, window = 16 : i64, softcap = 30.0 : f32}
    : (tensor<?x4x8xf32>, tensor<16x2x8xf32>, tensor<16x2x8xf32>, tensor<i32>) -> tensor<?x4x8xf32>
  return %0 : tensor<?x4x8xf32>
}
