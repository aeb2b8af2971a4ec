// RUN: subquant opt %s --passes convert-tosa-to-storage --split-input-file --verify-diagnostics

!q = !quant.uniform<i8:f32, 0.5>
func.func @arithmetic(%x: tensor<4x!q>) -> tensor<4x!q> {
  // expected-error @+1 {{'tosa.add' op computes with the storage of 'tensor<4x!quant.uniform<i8:f32, 5.000000e-01>>' as if it were the value it stands for; rescale its operands to i32 first (tosa.rescale)}}
  %0 = tosa.add %x, %x : (tensor<4x!q>, tensor<4x!q>) -> tensor<4x!q>
  return %0 : tensor<4x!q>
}

// -----

func.func @unsigned_arithmetic(%x: tensor<4xui8>) -> tensor<4xf32> {
  // expected-error @+1 {{'tosa.cast' op computes with the storage of 'tensor<4xui8>' as if}}
  %0 = tosa.cast %x : (tensor<4xui8>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

!q = !quant.uniform<i8:f32, 0.5>
!r = !quant.uniform<i8:f32, 0.25>
func.func @scales(%x: tensor<4x!q>) -> tensor<4x!r> {
  // expected-error @+1 {{'tosa.identity' op has values of different quantized types, '!quant.uniform<i8:f32, 5.000000e-01>' and '!quant.uniform<i8:f32, 2.500000e-01>'; rescale one of them first (tosa.rescale)}}
  %0 = tosa.identity %x : (tensor<4x!q>) -> tensor<4x!r>
  return %0 : tensor<4x!r>
}

// -----

!w = !quant.uniform<i8:f32:0, {0.5, 0.25}>
func.func @blocks(%x: tensor<2x2x!w>) -> tensor<2x2x!w> {
  // expected-error @+1 {{'tosa.transpose' op may move elements to other blocks of a per-axis type, whose scales stay where they are; use a per-tensor type}}
  %0 = tosa.transpose %x {perms = array<i32: 1, 0>} : (tensor<2x2x!w>) -> tensor<2x2x!w>
  return %0 : tensor<2x2x!w>
}

// -----

!u = !quant.uniform<u8:f32, 0.5>
func.func @unsigned_order(%x: tensor<4x!u>) -> tensor<4x!u> {
  // expected-error @+1 {{'tosa.maximum' op computes with the unsigned storage of 'tensor<4x!quant.uniform<u8:f32, 5.000000e-01>>', and TOSA's integers are signed; rescale it to signed storage first (input_unsigned)}}
  %0 = tosa.maximum %x, %x : (tensor<4x!u>, tensor<4x!u>) -> tensor<4x!u>
  return %0 : tensor<4x!u>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>
func.func @zero_point(%x: tensor<4x!q>, %m: tensor<1xi32>, %s: tensor<1xi8>) -> tensor<4xi32> {
  %xz = "tosa.const"() <{values = dense<4> : tensor<1xi8>}> : () -> tensor<1xi8>
  %yz = "tosa.const"() <{values = dense<0> : tensor<1xi32>}> : () -> tensor<1xi32>
  // expected-error @+1 {{'tosa.rescale' op has the zero point 4 for a value of type 'tensor<4x!quant.uniform<i8:f32, 5.000000e-01:3>>'; expected the constant 3}}
  %y = tosa.rescale %x, %m, %s, %xz, %yz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<4x!q>, tensor<1xi32>, tensor<1xi8>, tensor<1xi8>, tensor<1xi32>) -> tensor<4xi32>
  return %y : tensor<4xi32>
}

// -----

func.func @flag(%x: tensor<4xui8>, %m: tensor<1xi32>, %s: tensor<1xi8>) -> tensor<4xi32> {
  %xz = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
  %yz = "tosa.const"() <{values = dense<0> : tensor<1xi32>}> : () -> tensor<1xi32>
  // expected-error @+1 {{'tosa.rescale' op says input_unsigned = false, and the storage of 'tensor<4xui8>' is unsigned; make them agree}}
  %y = tosa.rescale %x, %m, %s, %xz, %yz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<4xui8>, tensor<1xi32>, tensor<1xi8>, tensor<1xi8>, tensor<1xi32>) -> tensor<4xi32>
  return %y : tensor<4xi32>
}

// -----

func.func @mixed(%x: tensor<4xui8>, %y: tensor<4xi32>) -> (tensor<4xui8>, tensor<4xi32>) {
  // expected-error @+1 {{'stablehlo.add' op has a value of type 'tensor<4xui8>' in a module with TOSA operations, which hold it as a signless integer; put the two in modules of their own}}
  %0 = stablehlo.add %x, %x : tensor<4xui8>
  %1 = tosa.abs %y : (tensor<4xi32>) -> tensor<4xi32>
  return %0, %1 : tensor<4xui8>, tensor<4xi32>
}
