// RUN: subquant opt %s --passes lower-quant-casts | filecheck %s

// Storage casts are left to convert-quantized-to-storage, and nothing is folded.
// CHECK-LABEL: func.func @f(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xi8>
// CHECK-NEXT: %[[Q:.+]] = quant.scast %[[X]] : tensor<4xi8> to tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>
// CHECK-NEXT: %[[S:.+]] = quant.scast %[[Q]] : tensor<4x!quant.uniform<i8:f32, 2.000000e+00>> to tensor<4xi8>
// CHECK-NEXT: %{{.+}} = arith.constant 1 : i8
// CHECK-NEXT: return %[[S]] : tensor<4xi8>
!q = !quant.uniform<i8:f32, 2.0>
func.func @f(%x: tensor<4xi8>) -> tensor<4xi8> {
  %q = quant.scast %x : tensor<4xi8> to tensor<4x!q>
  %s = quant.scast %q : tensor<4x!q> to tensor<4xi8>
  %unused = arith.constant 1 : i8
  return %s : tensor<4xi8>
}
