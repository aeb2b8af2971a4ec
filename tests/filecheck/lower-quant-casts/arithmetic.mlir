// RUN: subquant opt %s --passes "lower-quant-casts" --split-input-file | filecheck %s

// 2147483647 is no f32: the clamp uses 2147483520, and a select after the conversion the bound.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @i32_in_f32(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xf32>) -> tensor<4x!quant.uniform<i32:f32, 2.000000e+00>> {
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4xi32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[X]] : tensor<4xf32>) outs(%[[EMPTY]] : tensor<4xi32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: f32, %[[OUT:[^:]+]]: i32):
// CHECK-NEXT: %[[C:.+]] = arith.constant 2.000000e+00 : f32
// CHECK-NEXT: %[[DIVF:.+]] = arith.divf %[[IN]], %[[C]] : f32
// CHECK-NEXT: %[[C2:.+]] = arith.constant -2.14748365E+9 : f32
// CHECK-NEXT: %[[CMPF:.+]] = arith.cmpf olt, %[[DIVF]], %[[C2]] : f32
// CHECK-NEXT: %[[C3:.+]] = arith.constant 2.14748352E+9 : f32
// CHECK-NEXT: %[[CMPF2:.+]] = arith.cmpf ogt, %[[DIVF]], %[[C3]] : f32
// CHECK-NEXT: %[[SELECT:.+]] = arith.select %[[CMPF]], %[[C2]], %[[DIVF]] : f32
// CHECK-NEXT: %[[SELECT2:.+]] = arith.select %[[CMPF2]], %[[C3]], %[[SELECT]] : f32
// CHECK-NEXT: %[[CMPF3:.+]] = arith.cmpf uno, %[[DIVF]], %[[DIVF]] : f32
// CHECK-NEXT: %[[ROUNDEVEN:.+]] = math.roundeven %[[SELECT2]] : f32
// CHECK-NEXT: %[[C4:.+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT: %[[SELECT3:.+]] = arith.select %[[CMPF3]], %[[C4]], %[[ROUNDEVEN]] : f32
// CHECK-NEXT: %[[FPTOSI:.+]] = arith.fptosi %[[SELECT3]] : f32 to i32
// CHECK-NEXT: %[[C5:.+]] = arith.constant 2147483647 : i32
// CHECK-NEXT: %[[SELECT4:.+]] = arith.select %[[CMPF2]], %[[C5]], %[[FPTOSI]] : i32
// CHECK-NEXT: linalg.yield %[[SELECT4]] : i32
// CHECK-NEXT: } -> tensor<4xi32>
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[GENERIC]] : tensor<4xi32> to tensor<4x!quant.uniform<i32:f32, 2.000000e+00>>
// CHECK-NEXT: return %[[SCAST]] : tensor<4x!quant.uniform<i32:f32, 2.000000e+00>>
!q = !quant.uniform<i32:f32, 2.0>
func.func @i32_in_f32(%x: tensor<4xf32>) -> tensor<4x!q> {
  %q = quant.qcast %x : tensor<4xf32> to tensor<4x!q>
  return %q : tensor<4x!q>
}

// -----

// Both bounds of u32; the upper one is -1 as signless bits.
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
// CHECK-NEXT: %[[C3:.+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT: %[[CMPF:.+]] = arith.cmpf olt, %[[ADDF]], %[[C3]] : f32
// CHECK-NEXT: %[[C4:.+]] = arith.constant 4.29496704E+9 : f32
// CHECK-NEXT: %[[CMPF2:.+]] = arith.cmpf ogt, %[[ADDF]], %[[C4]] : f32
// CHECK-NEXT: %[[SELECT:.+]] = arith.select %[[CMPF]], %[[C3]], %[[ADDF]] : f32
// CHECK-NEXT: %[[SELECT2:.+]] = arith.select %[[CMPF2]], %[[C4]], %[[SELECT]] : f32
// CHECK-NEXT: %[[CMPF3:.+]] = arith.cmpf uno, %[[ADDF]], %[[ADDF]] : f32
// CHECK-NEXT: %[[ROUNDEVEN:.+]] = math.roundeven %[[SELECT2]] : f32
// CHECK-NEXT: %[[SELECT3:.+]] = arith.select %[[CMPF3]], %[[C3]], %[[ROUNDEVEN]] : f32
// CHECK-NEXT: %[[FPTOUI:.+]] = arith.fptoui %[[SELECT3]] : f32 to i32
// CHECK-NEXT: %[[C6:.+]] = arith.constant -1 : i32
// CHECK-NEXT: %[[SELECT4:.+]] = arith.select %[[CMPF2]], %[[C6]], %[[FPTOUI]] : i32
// CHECK-NEXT: linalg.yield %[[SELECT4]] : i32
// CHECK-NEXT: } -> tensor<4xi32>
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[GENERIC]] : tensor<4xi32> to tensor<4x!quant.uniform<u32:f32, 2.000000e+00:5>>
// CHECK-NEXT: return %[[SCAST]] : tensor<4x!quant.uniform<u32:f32, 2.000000e+00:5>>
!q = !quant.uniform<u32:f32, 2.0:5>
func.func @u32_in_f32(%x: tensor<4xf32>) -> tensor<4x!q> {
  %q = quant.qcast %x : tensor<4xf32> to tensor<4x!q>
  return %q : tensor<4x!q>
}

// -----

// A difference of 32-bit values needs i64.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @difference_in_i64(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4x!quant.uniform<u32:f32, 2.000000e+00:5>>) -> tensor<4xf32> {
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[Q]] : tensor<4x!quant.uniform<u32:f32, 2.000000e+00:5>> to tensor<4xi32>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[SCAST]] : tensor<4xi32>) outs(%[[EMPTY]] : tensor<4xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i32, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[EXTUI:.+]] = arith.extui %[[IN]] : i32 to i64
// CHECK-NEXT: %[[C:.+]] = arith.constant 5 : i64
// CHECK-NEXT: %[[SUBI:.+]] = arith.subi %[[EXTUI]], %[[C]] : i64
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[SUBI]] : i64 to f32
// CHECK-NEXT: %[[C2:.+]] = arith.constant 2.000000e+00 : f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[C2]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<4xf32>
// CHECK-NEXT: return %[[GENERIC]] : tensor<4xf32>
!q = !quant.uniform<u32:f32, 2.0:5>
func.func @difference_in_i64(%q: tensor<4x!q>) -> tensor<4xf32> {
  %y = quant.dcast %q : tensor<4x!q> to tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// bf16 is computed in f32, and each result is rounded to nearest even on its bits.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @quantize_bf16(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xbf16>) -> tensor<4x!quant.uniform<i8:bf16, 2.000000e+00>> {
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4xi8>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[X]] : tensor<4xbf16>) outs(%[[EMPTY]] : tensor<4xi8>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: bf16, %[[OUT:[^:]+]]: i8):
// CHECK-NEXT: %[[EXTF:.+]] = arith.extf %[[IN]] : bf16 to f32
// CHECK-NEXT: %[[C:.+]] = arith.constant 2.000000e+00 : f32
// CHECK-NEXT: %[[DIVF:.+]] = arith.divf %[[EXTF]], %[[C]] : f32
// CHECK-NEXT: %[[BITCAST:.+]] = arith.bitcast %[[DIVF]] : f32 to i32
// CHECK-NEXT: %[[C2:.+]] = arith.constant 16 : i32
// CHECK-NEXT: %[[SHRSI:.+]] = arith.shrsi %[[BITCAST]], %[[C2]] : i32
// CHECK-NEXT: %[[C3:.+]] = arith.constant 1 : i32
// CHECK-NEXT: %[[ANDI:.+]] = arith.andi %[[SHRSI]], %[[C3]] : i32
// CHECK-NEXT: %[[C4:.+]] = arith.constant 32767 : i32
// CHECK-NEXT: %[[ADDI:.+]] = arith.addi %[[ANDI]], %[[C4]] : i32
// CHECK-NEXT: %[[ADDI2:.+]] = arith.addi %[[BITCAST]], %[[ADDI]] : i32
// CHECK-NEXT: %[[C5:.+]] = arith.constant -65536 : i32
// CHECK-NEXT: %[[ANDI2:.+]] = arith.andi %[[ADDI2]], %[[C5]] : i32
// CHECK-NEXT: %[[BITCAST2:.+]] = arith.bitcast %[[ANDI2]] : i32 to f32
// CHECK-NEXT: %[[CMPF:.+]] = arith.cmpf uno, %[[DIVF]], %[[DIVF]] : f32
// CHECK-NEXT: %[[SELECT:.+]] = arith.select %[[CMPF]], %[[DIVF]], %[[BITCAST2]] : f32
// CHECK-NEXT: %[[C6:.+]] = arith.constant -1.280000e+02 : f32
// CHECK-NEXT: %[[CMPF2:.+]] = arith.cmpf olt, %[[SELECT]], %[[C6]] : f32
// CHECK-NEXT: %[[C7:.+]] = arith.constant 1.270000e+02 : f32
// CHECK-NEXT: %[[CMPF3:.+]] = arith.cmpf ogt, %[[SELECT]], %[[C7]] : f32
// CHECK-NEXT: %[[SELECT2:.+]] = arith.select %[[CMPF2]], %[[C6]], %[[SELECT]] : f32
// CHECK-NEXT: %[[SELECT3:.+]] = arith.select %[[CMPF3]], %[[C7]], %[[SELECT2]] : f32
// CHECK-NEXT: %[[CMPF4:.+]] = arith.cmpf uno, %[[SELECT]], %[[SELECT]] : f32
// CHECK-NEXT: %[[ROUNDEVEN:.+]] = math.roundeven %[[SELECT3]] : f32
// CHECK-NEXT: %[[C8:.+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT: %[[SELECT4:.+]] = arith.select %[[CMPF4]], %[[C8]], %[[ROUNDEVEN]] : f32
// CHECK-NEXT: %[[FPTOSI:.+]] = arith.fptosi %[[SELECT4]] : f32 to i32
// CHECK-NEXT: %[[TRUNCI:.+]] = arith.trunci %[[FPTOSI]] : i32 to i8
// CHECK-NEXT: linalg.yield %[[TRUNCI]] : i8
// CHECK-NEXT: } -> tensor<4xi8>
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[GENERIC]] : tensor<4xi8> to tensor<4x!quant.uniform<i8:bf16, 2.000000e+00>>
// CHECK-NEXT: return %[[SCAST]] : tensor<4x!quant.uniform<i8:bf16, 2.000000e+00>>
!q = !quant.uniform<i8:bf16, 2.0>
func.func @quantize_bf16(%x: tensor<4xbf16>) -> tensor<4x!q> {
  %q = quant.qcast %x : tensor<4xbf16> to tensor<4x!q>
  return %q : tensor<4x!q>
}

// -----

// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @dequantize_bf16(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4x!quant.uniform<i4:bf16, 2.000000e+00>>) -> tensor<4xbf16> {
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[Q]] : tensor<4x!quant.uniform<i4:bf16, 2.000000e+00>> to tensor<4xi4>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4xbf16>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[SCAST]] : tensor<4xi4>) outs(%[[EMPTY]] : tensor<4xbf16>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i4, %[[OUT:[^:]+]]: bf16):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN]] : i4 to i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[EXTSI]] : i32 to f32
// CHECK-NEXT: %[[BITCAST:.+]] = arith.bitcast %[[SITOFP]] : f32 to i32
// CHECK-NEXT: %[[C:.+]] = arith.constant 16 : i32
// CHECK-NEXT: %[[SHRSI:.+]] = arith.shrsi %[[BITCAST]], %[[C]] : i32
// CHECK-NEXT: %[[C2:.+]] = arith.constant 1 : i32
// CHECK-NEXT: %[[ANDI:.+]] = arith.andi %[[SHRSI]], %[[C2]] : i32
// CHECK-NEXT: %[[C3:.+]] = arith.constant 32767 : i32
// CHECK-NEXT: %[[ADDI:.+]] = arith.addi %[[ANDI]], %[[C3]] : i32
// CHECK-NEXT: %[[ADDI2:.+]] = arith.addi %[[BITCAST]], %[[ADDI]] : i32
// CHECK-NEXT: %[[C4:.+]] = arith.constant -65536 : i32
// CHECK-NEXT: %[[ANDI2:.+]] = arith.andi %[[ADDI2]], %[[C4]] : i32
// CHECK-NEXT: %[[BITCAST2:.+]] = arith.bitcast %[[ANDI2]] : i32 to f32
// CHECK-NEXT: %[[CMPF:.+]] = arith.cmpf uno, %[[SITOFP]], %[[SITOFP]] : f32
// CHECK-NEXT: %[[SELECT:.+]] = arith.select %[[CMPF]], %[[SITOFP]], %[[BITCAST2]] : f32
// CHECK-NEXT: %[[C5:.+]] = arith.constant 2.000000e+00 : f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SELECT]], %[[C5]] : f32
// CHECK-NEXT: %[[BITCAST3:.+]] = arith.bitcast %[[MULF]] : f32 to i32
// CHECK-NEXT: %[[SHRSI2:.+]] = arith.shrsi %[[BITCAST3]], %[[C]] : i32
// CHECK-NEXT: %[[ANDI3:.+]] = arith.andi %[[SHRSI2]], %[[C2]] : i32
// CHECK-NEXT: %[[ADDI3:.+]] = arith.addi %[[ANDI3]], %[[C3]] : i32
// CHECK-NEXT: %[[ADDI4:.+]] = arith.addi %[[BITCAST3]], %[[ADDI3]] : i32
// CHECK-NEXT: %[[ANDI4:.+]] = arith.andi %[[ADDI4]], %[[C4]] : i32
// CHECK-NEXT: %[[BITCAST4:.+]] = arith.bitcast %[[ANDI4]] : i32 to f32
// CHECK-NEXT: %[[CMPF2:.+]] = arith.cmpf uno, %[[MULF]], %[[MULF]] : f32
// CHECK-NEXT: %[[SELECT2:.+]] = arith.select %[[CMPF2]], %[[MULF]], %[[BITCAST4]] : f32
// CHECK-NEXT: %[[TRUNCF:.+]] = arith.truncf %[[SELECT2]] : f32 to bf16
// CHECK-NEXT: linalg.yield %[[TRUNCF]] : bf16
// CHECK-NEXT: } -> tensor<4xbf16>
// CHECK-NEXT: return %[[GENERIC]] : tensor<4xbf16>
!q = !quant.uniform<i4:bf16, 2.0>
func.func @dequantize_bf16(%q: tensor<4x!q>) -> tensor<4xbf16> {
  %y = quant.dcast %q : tensor<4x!q> to tensor<4xbf16>
  return %y : tensor<4xbf16>
}

// -----

// bf16 constants are widened to f32, which all targets take.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @bf16_scales(
// CHECK-SAME: %[[X:[^:]+]]: tensor<2xbf16>) -> tensor<2x!quant.uniform<i8:bf16:0, {2.000000e+00,4.000000e+00}>> {
// CHECK-NEXT: %[[C:.+]] = arith.constant dense<[2.000000e+00, 4.000000e+00]> : tensor<2xf32>
// CHECK: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[X]], %[[C]] : tensor<2xbf16>, tensor<2xf32>) outs(%{{.+}} : tensor<2xi8>) {
// CHECK: %[[DIVF:.+]] = arith.divf %{{.+}}, %{{.+}} : f32
!q = !quant.uniform<i8:bf16:0, {2.0, 4.0}>
func.func @bf16_scales(%x: tensor<2xbf16>) -> tensor<2x!q> {
  %q = quant.qcast %x : tensor<2xbf16> to tensor<2x!q>
  return %q : tensor<2x!q>
}

// -----

// f16 is computed in f16, and clamped in f32.
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
// CHECK-NEXT: %[[C3:.+]] = arith.constant -1.280000e+02 : f32
// CHECK-NEXT: %[[CMPF:.+]] = arith.cmpf olt, %[[EXTF]], %[[C3]] : f32
// CHECK-NEXT: %[[C4:.+]] = arith.constant 1.270000e+02 : f32
// CHECK-NEXT: %[[CMPF2:.+]] = arith.cmpf ogt, %[[EXTF]], %[[C4]] : f32
// CHECK-NEXT: %[[SELECT:.+]] = arith.select %[[CMPF]], %[[C3]], %[[EXTF]] : f32
// CHECK-NEXT: %[[SELECT2:.+]] = arith.select %[[CMPF2]], %[[C4]], %[[SELECT]] : f32
// CHECK-NEXT: %[[CMPF3:.+]] = arith.cmpf uno, %[[EXTF]], %[[EXTF]] : f32
// CHECK-NEXT: %[[ROUNDEVEN:.+]] = math.roundeven %[[SELECT2]] : f32
// CHECK-NEXT: %[[C5:.+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT: %[[SELECT3:.+]] = arith.select %[[CMPF3]], %[[C5]], %[[ROUNDEVEN]] : f32
// CHECK-NEXT: %[[FPTOSI:.+]] = arith.fptosi %[[SELECT3]] : f32 to i32
// CHECK-NEXT: %[[TRUNCI:.+]] = arith.trunci %[[FPTOSI]] : i32 to i8
// CHECK-NEXT: linalg.yield %[[TRUNCI]] : i8
// CHECK-NEXT: } -> tensor<4xi8>
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[GENERIC]] : tensor<4xi8> to tensor<4x!quant.uniform<i8:f16, 2.000000e+00:5>>
// CHECK-NEXT: %[[SCAST2:.+]] = quant.scast %[[SCAST]] : tensor<4x!quant.uniform<i8:f16, 2.000000e+00:5>> to tensor<4xi8>
// CHECK-NEXT: %[[EMPTY2:.+]] = tensor.empty() : tensor<4xf16>
// CHECK-NEXT: %[[GENERIC2:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[SCAST2]] : tensor<4xi8>) outs(%[[EMPTY2]] : tensor<4xf16>) {
// CHECK-NEXT: ^bb0(%[[IN2:[^:]+]]: i8, %[[OUT2:[^:]+]]: f16):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN2]] : i8 to i32
// CHECK-NEXT: %[[C6:.+]] = arith.constant 5 : i32
// CHECK-NEXT: %[[SUBI:.+]] = arith.subi %[[EXTSI]], %[[C6]] : i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[SUBI]] : i32 to f32
// CHECK-NEXT: %[[TRUNCF:.+]] = arith.truncf %[[SITOFP]] : f32 to f16
// CHECK-NEXT: %[[C7:.+]] = arith.constant 2.000000e+00 : f16
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[TRUNCF]], %[[C7]] : f16
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

// NaN gives the storage value that is nearest to 0: 10.
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
// CHECK-NEXT: %[[CMPF:.+]] = arith.cmpf olt, %[[ADDF]], %[[C2]] : f64
// CHECK-NEXT: %[[C4:.+]] = arith.constant 2.000000e+02 : f64
// CHECK-NEXT: %[[CMPF2:.+]] = arith.cmpf ogt, %[[ADDF]], %[[C4]] : f64
// CHECK-NEXT: %[[SELECT:.+]] = arith.select %[[CMPF]], %[[C2]], %[[ADDF]] : f64
// CHECK-NEXT: %[[SELECT2:.+]] = arith.select %[[CMPF2]], %[[C4]], %[[SELECT]] : f64
// CHECK-NEXT: %[[CMPF3:.+]] = arith.cmpf uno, %[[ADDF]], %[[ADDF]] : f64
// CHECK-NEXT: %[[ROUNDEVEN:.+]] = math.roundeven %[[SELECT2]] : f64
// CHECK-NEXT: %[[SELECT3:.+]] = arith.select %[[CMPF3]], %[[C2]], %[[ROUNDEVEN]] : f64
// CHECK-NEXT: %[[FPTOSI:.+]] = arith.fptosi %[[SELECT3]] : f64 to i32
// CHECK-NEXT: %[[TRUNCI:.+]] = arith.trunci %[[FPTOSI]] : i32 to i8
// CHECK-NEXT: linalg.yield %[[TRUNCI]] : i8
// CHECK-NEXT: } -> tensor<4xi8>
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[GENERIC]] : tensor<4xi8> to tensor<4x!quant.uniform<u8<10:200>:f64, 2.000000e+00:10>>
// CHECK-NEXT: return %[[SCAST]] : tensor<4x!quant.uniform<u8<10:200>:f64, 2.000000e+00:10>>
!q = !quant.uniform<u8<10:200>:f64, 2.0:10>
func.func @range_without_zero(%x: tensor<4xf64>) -> tensor<4x!q> {
  %q = quant.qcast %x : tensor<4xf64> to tensor<4x!q>
  return %q : tensor<4x!q>
}
