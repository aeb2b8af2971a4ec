// RUN: subquant opt %s --passes fold-constant-casts | filecheck %s

!q = !quant.uniform<i8:f32, 0.5:3>
!u = !quant.uniform<u8:f32:0, {0.5:128, 0.25:1}>
!b = !quant.uniform<i7:f16:{0:2, 1:1}, {{1.0:1, 2.0:0}}>

// 1.25 / 0.5 + 3 = 5.5 goes to the even 6; what is beyond the storage saturates; NaN is 0.
// CHECK-LABEL: func.func @per_tensor
// CHECK-NEXT: %[[C:.+]] = stablehlo.constant dense<[6, -128, 127, 0]> : tensor<4xi8>
// CHECK-NEXT: %[[Q:.+]] = "subquant.scast"(%[[C]]) : (tensor<4xi8>) -> tensor<4x![[TYPE:.+]]>
// CHECK-NEXT: return %[[Q]]
func.func @per_tensor() -> tensor<4x!q> {
  %c = stablehlo.constant dense<[1.25, -1000.0, 0x7F800000, 0x7FC00000]> : tensor<4xf32>
  %q = stablehlo.uniform_quantize %c : (tensor<4xf32>) -> tensor<4x!q>
  return %q : tensor<4x!q>
}

// A constant that is transposed first; 128 + 64 / 0.5 is 255 at most, and -1 as a signless byte.
// CHECK-LABEL: func.func @per_axis
// CHECK-NEXT: stablehlo.constant dense<{{\[\[}}-128, -1], [5, 1]]> : tensor<2x2xi8>
// CHECK-NEXT: subquant.scast
// CHECK-NEXT: return
func.func @per_axis() -> tensor<2x2x!u> {
  %c = arith.constant dense<[[0.0, 1.0], [64.0, -0.0]]> : tensor<2x2xf32>
  %t = stablehlo.transpose %c, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
  %q = quant.qcast %t : tensor<2x2xf32> to tensor<2x2x!u>
  return %q : tensor<2x2x!u>
}

// Blocks, of a storage type that StableHLO has no constants of, and the reals of what they are.
// CHECK-LABEL: func.func @blocks
// CHECK-NEXT: %[[Q:.+]] = arith.constant dense<{{\[\[}}2, 1], [63, -2]]> : tensor<2x2xi7>
// CHECK-NEXT: %[[S:.+]] = "subquant.scast"(%[[Q]])
// CHECK: return %[[S]]
func.func @blocks() -> tensor<2x2x!b> {
  %c = stablehlo.constant dense<[[1.0, 2.0], [100.0, -4.0]]> : tensor<2x2xf16>
  %q = quant.qcast %c : tensor<2x2xf16> to tensor<2x2x!b>
  return %q : tensor<2x2x!b>
}

// What is cast there and back has its error.
// CHECK-LABEL: func.func @back
// CHECK-NEXT: %[[C:.+]] = stablehlo.constant dense<[1.500000e+00, -6.550000e+01]> : tensor<2xf32>
// CHECK-NEXT: return %[[C]]
func.func @back() -> tensor<2xf32> {
  %c = stablehlo.constant dense<[1.3, -1000.0]> : tensor<2xf32>
  %q = quant.qcast %c : tensor<2xf32> to tensor<2x!q>
  %r = quant.dcast %q : tensor<2x!q> to tensor<2xf32>
  return %r : tensor<2xf32>
}
