// RUN: subquant opt %s --passes convert-tosa-to-storage --split-input-file | filecheck %s

// Casts where another dialect gives or takes the quantized value, none between TOSA's operations;
// a clamp to a narrow storage range.
// CHECK-LABEL: func.func @quantized(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4x!quant.uniform<i8:f32, 5.000000e-01:3>>
// CHECK: %[[STORED:.+]] = quant.scast %[[X]] : tensor<4x!quant.uniform<i8:f32, 5.000000e-01:3>> to tensor<4xi8>
// CHECK: %[[Y:.+]] = tosa.rescale %[[STORED]], {{.+}} -> tensor<4xi8>
// CHECK: %[[CLAMPED:.+]] = tosa.clamp %[[Y]] {max_val = 127 : i8, min_val = -127 : i8} : (tensor<4xi8>) -> tensor<4xi8>
// CHECK: %[[MAX:.+]] = tosa.maximum %[[CLAMPED]], %[[CLAMPED]] : (tensor<4xi8>, tensor<4xi8>) -> tensor<4xi8>
// CHECK: %[[RESULT:.+]] = quant.scast %[[MAX]] : tensor<4xi8> to tensor<4x!quant.uniform<i8<-127:127>:f32, 2.500000e-01>>
// CHECK: return %[[RESULT]]
!q = !quant.uniform<i8:f32, 0.5:3>
!n = !quant.uniform<i8<-127:127>:f32, 0.25>
func.func @quantized(%x: tensor<4x!q>, %m: tensor<1xi32>, %s: tensor<1xi8>) -> tensor<4x!n> {
  %xz = "tosa.const"() <{values = dense<3> : tensor<1xi8>}> : () -> tensor<1xi8>
  %yz = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
  %y = tosa.rescale %x, %m, %s, %xz, %yz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<4x!q>, tensor<1xi32>, tensor<1xi8>, tensor<1xi8>, tensor<1xi8>) -> tensor<4x!n>
  %z = tosa.maximum %y, %y : (tensor<4x!n>, tensor<4x!n>) -> tensor<4x!n>
  return %z : tensor<4x!n>
}

// -----

// Unsigned integers: everywhere, and the signature is kept.
// CHECK: tosa.variable @state = dense<[-56, 7]> : tensor<2xi8>
// CHECK-LABEL: func.func @unsigned() -> tensor<2xi8> attributes {subquant.function_type = () -> tensor<2xui8>} {
// CHECK: %[[READ:.+]] = tosa.variable_read @state : tensor<2xi8>
// CHECK: return %[[READ]] : tensor<2xi8>
tosa.variable @state = dense<[200, 7]> : tensor<2xui8>
func.func @unsigned() -> tensor<2xui8> {
  %0 = tosa.variable_read @state : tensor<2xui8>
  return %0 : tensor<2xui8>
}

// -----

// A variable without a first value starts at what stands for 0.
// CHECK: tosa.variable @state = dense<3> : tensor<2xi8>
// CHECK-LABEL: func.func @variable(
// CHECK: %[[READ:.+]] = tosa.variable_read @state : tensor<2xi8>
// CHECK: quant.scast %[[READ]]
!q = !quant.uniform<i8:f32, 0.5:3>
tosa.variable @state : tensor<2x!q>
func.func @variable() -> tensor<2x!q> {
  %0 = tosa.variable_read @state : tensor<2x!q>
  return %0 : tensor<2x!q>
}

// -----

// Inside the regions of TOSA's operations.
// CHECK-LABEL: func.func @regions(
// CHECK: tosa.cond_if
// CHECK: tosa.yield %{{.+}} : tensor<2xi8>
// CHECK: tosa.yield %{{.+}} : tensor<2xi8>
!q = !quant.uniform<i8:f32, 0.5:3>
func.func @regions(%c: tensor<i1>, %x: tensor<2x!q>, %y: tensor<2x!q>) -> tensor<2x!q> {
  %0 = tosa.cond_if %c : tensor<i1> -> tensor<2x!q> {
    tosa.yield %x : tensor<2x!q>
  } else {
    %m = tosa.maximum %x, %y : (tensor<2x!q>, tensor<2x!q>) -> tensor<2x!q>
    tosa.yield %m : tensor<2x!q>
  }
  return %0 : tensor<2x!q>
}
