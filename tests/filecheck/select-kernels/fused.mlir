// RUN: subquant opt %s --passes "select-kernels{instructions=portable explain=true}" 2>&1 | filecheck %s

// Two products and a copy of the activations are one dispatch. The first product is multiplied
// again, and used elsewhere, so that it is a result; what reads it is moved behind the dispatch.
// CHECK: remark: 'stablehlo.dot_general' op is computed by a kernel (portable), in one dispatch with 3 other calls of kernels
// CHECK: remark: 'stablehlo.dot_general' op is computed by a kernel (portable), in one dispatch with 3 other calls of kernels
// CHECK: func.func @fused(
// CHECK: memref.alloca() {{.*}} : memref<256xi8>
// CHECK: memref.alloca() {{.*}} : memref<1024xi8>
// CHECK: memref.view {{.*}} : memref<1024xi8> to memref<256xi32>
// CHECK: memref.view {{.*}} : memref<256xi8> to memref<1x4x64xi8>
// CHECK: memref.view {{.*}} : memref<256xi8> to memref<4x16xi32>
// CHECK: memref.view {{.*}} : memref<512xi8> to memref<1x4x32xi32>
// CHECK-LABEL: func.func @main(
// CHECK: %[[Y:.*]]:2 = "flow.dispatch"({{.*}}) {entry_points = [@fused::@fused]
// CHECK: stablehlo.reshape %[[Y]]#0
// CHECK: stablehlo.negate
// CHECK-NOT: flow.dispatch
// CHECK: return
func.func @main(%x: tensor<4x64xi8>) -> (tensor<4x64xi32>, tensor<4x32xi32>) {
  %w = stablehlo.constant dense<1> : tensor<64x64xi8>
  %v = stablehlo.constant dense<2> : tensor<64x32xi8>
  %sums = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<4x64xi8>, tensor<64x64xi8>) -> tensor<4x64xi32>
  %shift = stablehlo.constant dense<7> : tensor<4x64xi32>
  %small = stablehlo.shift_right_arithmetic %sums, %shift : tensor<4x64xi32>
  %bytes = stablehlo.convert %small : (tensor<4x64xi32>) -> tensor<4x64xi8>
  %wide = stablehlo.convert %bytes : (tensor<4x64xi8>) -> tensor<4x64xi32>
  %minus = stablehlo.negate %wide : tensor<4x64xi32>
  %y = stablehlo.dot_general %bytes, %v, contracting_dims = [1] x [0]
      : (tensor<4x64xi8>, tensor<64x32xi8>) -> tensor<4x32xi32>
  return %minus, %y : tensor<4x64xi32>, tensor<4x32xi32>
}
