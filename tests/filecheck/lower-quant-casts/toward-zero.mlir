// RUN: subquant opt %s --passes "lower-quant-casts{rounding=toward-zero}" --split-input-file | filecheck %s

// No saturation: unsigned values convert as such.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @u32_in_f32(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xf32>) -> tensor<4x!quant.uniform<u32:f32, 2.000000e+00:5>> {
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4xi32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[X]] : tensor<4xf32>) outs(%[[EMPTY]] : tensor<4xi32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: f32, %[[OUT:[^:]+]]: i32):
// CHECK-NEXT: %[[C:.+]] = arith.constant 2.000000e+00 : f32
// CHECK-NEXT: %[[DIVF:.+]] = arith.divf %[[IN]], %[[C]] : f32
// CHECK-NEXT: %[[C2:.+]] = arith.constant 5.000000e+00 : f32
// CHECK-NEXT: %[[ADDF:.+]] = arith.addf %[[DIVF]], %[[C2]] : f32
// CHECK-NEXT: %[[FPTOUI:.+]] = arith.fptoui %[[ADDF]] : f32 to i32
// CHECK-NEXT: linalg.yield %[[FPTOUI]] : i32
// CHECK-NEXT: } -> tensor<4xi32>
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[GENERIC]] : tensor<4xi32> to tensor<4x!quant.uniform<u32:f32, 2.000000e+00:5>>
// CHECK-NEXT: return %[[SCAST]] : tensor<4x!quant.uniform<u32:f32, 2.000000e+00:5>>
!q = !quant.uniform<u32:f32, 2.0:5>
func.func @u32_in_f32(%x: tensor<4xf32>) -> tensor<4x!q> {
  %q = quant.qcast %x : tensor<4xf32> to tensor<4x!q>
  return %q : tensor<4x!q>
}

// -----

// The subtraction is in the float type, after the conversion.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @f16(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xf16>) -> tensor<4xf16> {
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4xi8>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[X]] : tensor<4xf16>) outs(%[[EMPTY]] : tensor<4xi8>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: f16, %[[OUT:[^:]+]]: i8):
// CHECK-NEXT: %[[C:.+]] = arith.constant 2.000000e+00 : f16
// CHECK-NEXT: %[[DIVF:.+]] = arith.divf %[[IN]], %[[C]] : f16
// CHECK-NEXT: %[[C2:.+]] = arith.constant 5.000000e+00 : f16
// CHECK-NEXT: %[[ADDF:.+]] = arith.addf %[[DIVF]], %[[C2]] : f16
// CHECK-NEXT: %[[EXTF:.+]] = arith.extf %[[ADDF]] : f16 to f32
// CHECK-NEXT: %[[FPTOSI:.+]] = arith.fptosi %[[EXTF]] : f32 to i32
// CHECK-NEXT: %[[TRUNCI:.+]] = arith.trunci %[[FPTOSI]] : i32 to i8
// CHECK-NEXT: linalg.yield %[[TRUNCI]] : i8
// CHECK-NEXT: } -> tensor<4xi8>
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[GENERIC]] : tensor<4xi8> to tensor<4x!quant.uniform<i8:f16, 2.000000e+00:5>>
// CHECK-NEXT: %[[SCAST2:.+]] = quant.scast %[[SCAST]] : tensor<4x!quant.uniform<i8:f16, 2.000000e+00:5>> to tensor<4xi8>
// CHECK-NEXT: %[[EMPTY2:.+]] = tensor.empty() : tensor<4xf16>
// CHECK-NEXT: %[[GENERIC2:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[SCAST2]] : tensor<4xi8>) outs(%[[EMPTY2]] : tensor<4xf16>) {
// CHECK-NEXT: ^bb0(%[[IN2:[^:]+]]: i8, %[[OUT2:[^:]+]]: f16):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN2]] : i8 to i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[EXTSI]] : i32 to f32
// CHECK-NEXT: %[[TRUNCF:.+]] = arith.truncf %[[SITOFP]] : f32 to f16
// CHECK-NEXT: %[[C3:.+]] = arith.constant 5.000000e+00 : f16
// CHECK-NEXT: %[[SUBF:.+]] = arith.subf %[[TRUNCF]], %[[C3]] : f16
// CHECK-NEXT: %[[C4:.+]] = arith.constant 2.000000e+00 : f16
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SUBF]], %[[C4]] : f16
// CHECK-NEXT: linalg.yield %[[MULF]] : f16
// CHECK-NEXT: } -> tensor<4xf16>
// CHECK-NEXT: return %[[GENERIC2]] : tensor<4xf16>
!q = !quant.uniform<i8:f16, 2.0:5>
func.func @f16(%x: tensor<4xf16>) -> tensor<4xf16> {
  %q = quant.qcast %x : tensor<4xf16> to tensor<4x!q>
  %y = quant.dcast %q : tensor<4x!q> to tensor<4xf16>
  return %y : tensor<4xf16>
}

// -----

// A narrowed range is clamped as integers, after the conversion.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @range_without_zero(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xf64>) -> tensor<4x!quant.uniform<u8<10:200>:f64, 2.000000e+00:10>> {
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4xi8>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[X]] : tensor<4xf64>) outs(%[[EMPTY]] : tensor<4xi8>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: f64, %[[OUT:[^:]+]]: i8):
// CHECK-NEXT: %[[C:.+]] = arith.constant 2.000000e+00 : f64
// CHECK-NEXT: %[[DIVF:.+]] = arith.divf %[[IN]], %[[C]] : f64
// CHECK-NEXT: %[[C2:.+]] = arith.constant 1.000000e+01 : f64
// CHECK-NEXT: %[[ADDF:.+]] = arith.addf %[[DIVF]], %[[C2]] : f64
// CHECK-NEXT: %[[FPTOUI:.+]] = arith.fptoui %[[ADDF]] : f64 to i32
// CHECK-NEXT: %[[C3:.+]] = arith.constant 10 : i32
// CHECK-NEXT: %[[MAXUI:.+]] = arith.maxui %[[FPTOUI]], %[[C3]] : i32
// CHECK-NEXT: %[[C4:.+]] = arith.constant 200 : i32
// CHECK-NEXT: %[[MINUI:.+]] = arith.minui %[[MAXUI]], %[[C4]] : i32
// CHECK-NEXT: %[[TRUNCI:.+]] = arith.trunci %[[MINUI]] : i32 to i8
// CHECK-NEXT: linalg.yield %[[TRUNCI]] : i8
// CHECK-NEXT: } -> tensor<4xi8>
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[GENERIC]] : tensor<4xi8> to tensor<4x!quant.uniform<u8<10:200>:f64, 2.000000e+00:10>>
// CHECK-NEXT: return %[[SCAST]] : tensor<4x!quant.uniform<u8<10:200>:f64, 2.000000e+00:10>>
!q = !quant.uniform<u8<10:200>:f64, 2.0:10>
func.func @range_without_zero(%x: tensor<4xf64>) -> tensor<4x!q> {
  %q = quant.qcast %x : tensor<4xf64> to tensor<4x!q>
  return %q : tensor<4x!q>
}
