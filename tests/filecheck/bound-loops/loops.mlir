// RUN: subquant opt %s --passes bound-loops | filecheck %s

// CHECK: "util.global"() {initial_value = 9223372036854775807 : i64, is_mutable, sym_name = "__subquant_most_iterations", sym_visibility = "private", type = i64} : () -> ()

// CHECK-LABEL: func.func @reduce
// CHECK-SAME: %[[X:[^:]+]]: tensor<2x?x3xf32>
// CHECK: %[[KNOWN:.+]] = arith.constant 6 : i64
// CHECK: %[[DIM:.+]] = tensor.dim %[[X]], %c1 : tensor<2x?x3xf32>
// CHECK: %[[EXTENT:.+]] = arith.index_cast %[[DIM]] : index to i64
// CHECK: %[[COUNT:.+]] = arith.muli %[[KNOWN]], %[[EXTENT]] : i64
// CHECK: %[[MOST:.+]] = "util.global.load"() {global = @__subquant_most_iterations} : () -> i64
// CHECK: %[[FITS:.+]] = arith.cmpi sle, %[[COUNT]], %[[MOST]] : i64
// CHECK: cf.assert %[[FITS]], "the loops of 'stablehlo.reduce' at {{.+}}:19:24 run more than 65535 times
// CHECK: stablehlo.reduce
func.func @reduce(%x: tensor<2x?x3xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // Extents that are known are split before.
  // The place of the next line is in the message.
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1, 2] : (tensor<2x?x3xf32>, tensor<f32>) -> tensor<2xf32>
  return %s : tensor<2xf32>
}

// CHECK-LABEL: func.func @rows
// CHECK-NOT: cf.assert
// CHECK: return
func.func @rows(%x: tensor<?x3xf32>) -> tensor<?xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x3xf32>, tensor<f32>) -> tensor<?xf32>
  return %s : tensor<?xf32>
}

// CHECK-LABEL: func.func @matmul
// CHECK: tensor.dim %arg0, %c1
// CHECK: cf.assert {{.+}}'linalg.matmul'
func.func @matmul(%a: tensor<2x?xf32>, %b: tensor<?x4xf32>, %c: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %0 = linalg.matmul ins(%a, %b : tensor<2x?xf32>, tensor<?x4xf32>) outs(%c : tensor<2x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// CHECK-LABEL: func.func @__subquant_bound_loops(
// CHECK-SAME: %[[N:.+]]: i64) {
// CHECK-NEXT: "util.global.store"(%[[N]]) {global = @__subquant_most_iterations} : (i64) -> ()
// CHECK-NEXT: return
