// RUN: subquant opt %s --passes "verify-quantization,legalize-quant-to-math,convert-quantized-to-storage,check-integer-only" | filecheck %s

// CHECK-LABEL: func.func @table

// CHECK: "stablehlo.gather"
// CHECK-NOT: xf32
// CHECK: return
!x = !quant.uniform<i8:f32, 0.5:3>
func.func @table(%x: tensor<4x!x>) -> tensor<4x!x> {
  %r = stablehlo.tanh %x : tensor<4x!x>
  return %r : tensor<4x!x>
}
