// RUN: subquant opt %s --passes "quant-legalize-to-tosa-rescale{rounding=double}" | filecheck %s --check-prefix=DOUBLE
// RUN: subquant opt %s --passes "quant-legalize-to-tosa-rescale{rounding=inexact scale32=false}" | filecheck %s --check-prefix=SHORT
// RUN: subquant opt %s --passes "quant-legalize-to-tosa-rescale{types=quantized}" | filecheck %s --check-prefix=QUANTIZED
// RUN: not subquant opt %s --passes "quant-legalize-to-tosa-rescale{rounding=double scale32=false}" 2>&1 | filecheck %s --check-prefix=NO-DOUBLE
// RUN: not subquant opt %s --passes "quant-legalize-to-tosa-rescale{rounding=up}" 2>&1 | filecheck %s --check-prefix=ROUNDING
// RUN: not subquant opt %s --passes "quant-legalize-to-tosa-rescale{types=real}" 2>&1 | filecheck %s --check-prefix=TYPES

// NO-DOUBLE: error: TOSA has no double rounding with scale32=false; use rounding=single
// ROUNDING: error: option 'rounding' of quant-legalize-to-tosa-rescale must be one of single, double, inexact, got 'up'
// TYPES: error: option 'types' of quant-legalize-to-tosa-rescale must be one of storage, quantized, got 'real'

!x = !quant.uniform<i8:f32, 0.25:-1>
!y = !quant.uniform<i8:f32, 0.75:-2>

// DOUBLE-LABEL: func.func @compare(
// DOUBLE: rounding_mode = DOUBLE_ROUND, scale32 = true
// SHORT-LABEL: func.func @compare(
// SHORT: values = dense<21845> : tensor<1xi16>
// SHORT: values = dense<4> : tensor<1xi8>
// SHORT: rounding_mode = INEXACT_ROUND, scale32 = false
// SHORT: values = dense<16384> : tensor<1xi16>
// SHORT: values = dense<2> : tensor<1xi8>
// QUANTIZED-LABEL: func.func @compare(
// QUANTIZED-SAME: %[[X:[^:]+]]: tensor<4x!quant{{[^,]+, [^,]+}}, %[[Y:[^:]+]]: tensor
// QUANTIZED: %[[A:.+]] = tosa.rescale %[[X]], {{.*}} : (tensor<4x!quant.uniform<i8:f32, 2.500000e-01:-1>>, {{.*}} -> tensor<4xi32>
// QUANTIZED: %[[B:.+]] = tosa.rescale %[[Y]],
// QUANTIZED-NEXT: stablehlo.compare GE, %[[A]], %[[B]], SIGNED : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
func.func @compare(%x: tensor<4x!x>, %y: tensor<4x!y>) -> tensor<4xi1> {
  %r = stablehlo.compare GE, %x, %y, TOTALORDER : (tensor<4x!x>, tensor<4x!y>) -> tensor<4xi1>
  return %r : tensor<4xi1>
}

// The dividend has 23 more bits than it needs; the factor is 0.25 / (0.75 * 0.25) / 2**23.
// QUANTIZED-LABEL: func.func @divide(
// QUANTIZED: values = dense<7> : tensor<1xi8>
// QUANTIZED: %[[A:.+]] = tosa.rescale
// QUANTIZED: %[[B:.+]] = tosa.rescale
// QUANTIZED: %[[ZERO:.+]] = stablehlo.compare EQ, %[[B]],
// QUANTIZED: %[[SAFE:.+]] = stablehlo.select %[[ZERO]], %{{.+}}, %[[B]]
// QUANTIZED-NEXT: %[[Q:.+]] = stablehlo.divide %[[A]], %[[SAFE]] : tensor<4xi32>
// QUANTIZED: values = dense<1431655765> : tensor<1xi32>
// QUANTIZED: values = dense<53> : tensor<1xi8>
// QUANTIZED: %[[R:.+]] = tosa.rescale %[[Q]],
// QUANTIZED: stablehlo.select %[[ZERO]],
func.func @divide(%x: tensor<4x!x>, %y: tensor<4x!y>) -> tensor<4x!x> {
  %r = stablehlo.divide %x, %y : (tensor<4x!x>, tensor<4x!y>) -> tensor<4x!x>
  return %r : tensor<4x!x>
}
