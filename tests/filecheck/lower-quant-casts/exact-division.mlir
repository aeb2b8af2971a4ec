// RUN: subquant opt %s --passes "lower-quant-casts{division=exact}" --split-input-file | filecheck %s

// The quotient of the significands is corrected by its remainder; what is not normal is left
// to the device's own division.
// CHECK-LABEL: func.func @f32(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xf32>) -> tensor<4x!quant.uniform<i8:f32, 3.000000e+00>> {
// CHECK: %[[BITCAST:.+]] = arith.bitcast %{{.+}} : f32 to i32
// CHECK: %[[SHRSI:.+]] = arith.shrsi %[[BITCAST]], %{{.+}} : i32
// CHECK: %[[S:.+]] = arith.constant 12582912 : i32
// CHECK-NEXT: %[[CMPI:.+]] = arith.cmpi slt, %{{.+}}, %[[S]] : i32
// CHECK: %[[SELECT:.+]] = arith.select %[[CMPI]], %{{.+}}, %{{.+}} : i32
// CHECK: %[[SELECT2:.+]] = arith.select %[[CMPI]], %{{.+}}, %{{.+}} : i32
// CHECK: %[[DIVF:.+]] = arith.divf %{{.+}}, %{{.+}} : f32
// CHECK: %[[MULF:.+]] = arith.mulf %[[DIVF]], %{{.+}} : f32
// CHECK-NEXT: %[[FPTOSI:.+]] = arith.fptosi %[[MULF]] : f32 to i32
// CHECK: %[[DIVF2:.+]] = arith.divf %{{.+}}, %{{.+}} : f32
// CHECK-NEXT: %[[FPTOSI2:.+]] = arith.fptosi %[[DIVF2]] : f32 to i32
// CHECK: %[[CMPI2:.+]] = arith.cmpi slt, %{{.+}}, %{{.+}} : i32
// CHECK: %[[SELECT3:.+]] = arith.select %[[CMPI2]], %{{.+}}, %{{.+}} : i32
// CHECK: %[[SELECT4:.+]] = arith.select %[[CMPI2]], %{{.+}}, %{{.+}} : i32
// CHECK-NEXT: %[[CMPI3:.+]] = arith.cmpi sge, %[[SELECT4]], %{{.+}} : i32
// CHECK: %[[SELECT5:.+]] = arith.select %[[CMPI3]], %{{.+}}, %[[SELECT3]] : i32
// CHECK: %[[SELECT6:.+]] = arith.select %[[CMPI3]], %{{.+}}, %[[SELECT4]] : i32
// CHECK: %[[CMPI4:.+]] = arith.cmpi sge, %{{.+}}, %{{.+}} : i32
// CHECK: %[[SELECT7:.+]] = arith.select %[[CMPI4]], %{{.+}}, %[[SELECT5]] : i32
// CHECK: %[[BITCAST3:.+]] = arith.bitcast %{{.+}} : i32 to f32
// CHECK: %[[CMPI5:.+]] = arith.cmpi sge, %{{.+}}, %{{.+}} : i32
// CHECK: %[[CMPI6:.+]] = arith.cmpi slt, %{{.+}}, %{{.+}} : i32
// CHECK: %[[CMPI7:.+]] = arith.cmpi sge, %{{.+}}, %{{.+}} : i32
// CHECK: %[[CMPI8:.+]] = arith.cmpi slt, %{{.+}}, %{{.+}} : i32
// CHECK: %[[DIVF3:.+]] = arith.divf %{{.+}}, %{{.+}} : f32
// CHECK-NEXT: %[[SELECT8:.+]] = arith.select %{{.+}}, %[[BITCAST3]], %[[DIVF3]] : f32
// CHECK: %[[SELECT9:.+]] = arith.select %{{.+}}, %{{.+}}, %[[SELECT8]] : f32
// CHECK-NEXT: %[[SELECT10:.+]] = arith.select %{{.+}}, %{{.+}}, %[[SELECT9]] : f32
// CHECK-NEXT: %[[NAN:.+]] = arith.cmpf uno, %[[SELECT8]], %[[SELECT8]] : f32
// CHECK-NEXT: %[[ROUNDEVEN:.+]] = math.roundeven %[[SELECT10]] : f32
// CHECK: %[[SELECT11:.+]] = arith.select %[[NAN]], %{{.+}}, %[[ROUNDEVEN]] : f32
// CHECK-NEXT: %[[FPTOSI3:.+]] = arith.fptosi %[[SELECT11]] : f32 to i32
!q = !quant.uniform<i8:f32, 3.0>
func.func @f32(%x: tensor<4xf32>) -> tensor<4x!q> {
  %q = quant.qcast %x : tensor<4xf32> to tensor<4x!q>
  return %q : tensor<4x!q>
}

// -----

// f16 is divided in f32 and rounded once more, which gives the same.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @f16(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xf16>) -> tensor<4x!quant.uniform<i8:f16, 3.000000e+00>> {
// CHECK: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[X]] : tensor<4xf16>) outs(%{{.+}} : tensor<4xi8>) {
// CHECK: %[[EXTF:.+]] = arith.extf %{{.+}} : f16 to f32
// CHECK: %[[DIVF:.+]] = arith.divf %{{.+}}, %{{.+}} : f32
// CHECK: %[[DIVF2:.+]] = arith.divf %{{.+}}, %{{.+}} : f32
// CHECK: %[[SCALE:.+]] = arith.constant 3.000000e+00 : f32
// CHECK-NEXT: %[[DIVF3:.+]] = arith.divf %[[EXTF]], %[[SCALE]] : f32
// CHECK: %[[TRUNCF:.+]] = arith.truncf %{{.+}} : f32 to f16
// CHECK-NEXT: %[[EXTF2:.+]] = arith.extf %[[TRUNCF]] : f16 to f32
// CHECK: %[[ROUNDEVEN:.+]] = math.roundeven %{{.+}} : f32
!q = !quant.uniform<i8:f16, 3.0>
func.func @f16(%x: tensor<4xf16>) -> tensor<4x!q> {
  %q = quant.qcast %x : tensor<4xf16> to tensor<4x!q>
  return %q : tensor<4x!q>
}

// -----

// f64 is always divided by the device.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @f64(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xf64>) -> tensor<4x!quant.uniform<i8:f64, 3.000000e+00>> {
// CHECK: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[X]] : tensor<4xf64>) outs(%{{.+}} : tensor<4xi8>) {
// CHECK: %[[DIVF:.+]] = arith.divf %{{.+}}, %{{.+}} : f64
// CHECK: %[[CMPF:.+]] = arith.cmpf olt, %[[DIVF]], %{{.+}} : f64
!q = !quant.uniform<i8:f64, 3.0>
func.func @f64(%x: tensor<4xf64>) -> tensor<4x!q> {
  %q = quant.qcast %x : tensor<4xf64> to tensor<4x!q>
  return %q : tensor<4x!q>
}
