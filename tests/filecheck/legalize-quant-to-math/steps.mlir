// RUN: subquant opt %s --passes legalize-quant-to-math | filecheck %s

!x = !quant.uniform<i8:f32, 0.5:3>
!y = !quant.uniform<i8:f32, 0.25>
!r = !quant.uniform<i8:f32, 1.0:-1>
!x64 = !quant.uniform<i8:f64, 0.1>
!y64 = !quant.uniform<i8:f64, 0.3>

// Differences and one requantization; zero points and rounding are left to the passes after it.
// CHECK-LABEL: func.func @add
// CHECK: %[[X:.*]] = "subquant.subtract_zero_point"(%arg0)
// CHECK: %[[Y:.*]] = "subquant.subtract_zero_point"(%arg1)
// CHECK: "subquant.requantize_2"(%[[X]], %[[Y]]) {bounds = array<i64: 131, 128>
// CHECK-SAME: scales = [dense<5.000000e-01> : tensor<f64>, dense<2.500000e-01> : tensor<f64>]}
// CHECK-NOT: stablehlo.add
func.func @add(%x: tensor<4x!x>, %y: tensor<4x!y>) -> tensor<4x!r> {
  %s = stablehlo.add %x, %y : (tensor<4x!x>, tensor<4x!y>) -> tensor<4x!r>
  return %s : tensor<4x!r>
}

// A product of two scales of f64 is no f64 number: both are kept.
// CHECK-LABEL: func.func @multiply
// CHECK: stablehlo.multiply
// CHECK: "subquant.requantize"
// CHECK-SAME: scales = [
// CHECK-SAME: [dense<1.000000e-01> : tensor<f64>, dense<3.000000e-01> : tensor<f64>]]
func.func @multiply(%x: tensor<4x!x64>, %y: tensor<4x!y64>) -> tensor<4x!x64> {
  %s = stablehlo.multiply %x, %y : (tensor<4x!x64>, tensor<4x!y64>) -> tensor<4x!x64>
  return %s : tensor<4x!x64>
}

// Differences of 32 bits are contracted in two parts each, and requantized in one sum.
// CHECK-LABEL: func.func @wide_dot
// CHECK-COUNT-4: stablehlo.dot_general
// CHECK: "subquant.requantize_4"
func.func @wide_dot(%x: tensor<2x8x!quant.uniform<i32:f32, 0.5>>,
                    %y: tensor<8x3x!quant.uniform<i32:f32, 0.25>>) -> tensor<2x3x!r> {
  %s = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<2x8x!quant.uniform<i32:f32, 0.5>>, tensor<8x3x!quant.uniform<i32:f32, 0.25>>)
     -> tensor<2x3x!r>
  return %s : tensor<2x3x!r>
}

!q = !quant.uniform<i8:f32, 0.5:3>

// Positions along a static axis are less than its extent, along a dynamic one what i32 holds.
// CHECK-LABEL: func.func @positions(
// CHECK: stablehlo.iota dim = 1 : tensor<2x5xi32>
// CHECK: "subquant.requantize"{{.+}}bounds = array<i64: 5>
// CHECK: stablehlo.dynamic_iota %arg0, dim = 0 : (tensor<1xi32>) -> tensor<?xi32>
// CHECK: "subquant.requantize"{{.+}}bounds = array<i64: 2147483647>
func.func @positions(%n: tensor<1xi32>) -> (tensor<2x5x!q>, tensor<?x!q>) {
  %a = stablehlo.iota dim = 1 : tensor<2x5x!q>
  %b = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi32>) -> tensor<?x!q>
  return %a, %b : tensor<2x5x!q>, tensor<?x!q>
}
