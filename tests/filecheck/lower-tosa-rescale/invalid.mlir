// RUN: subquant opt %s --passes lower-tosa-rescale --split-input-file --verify-diagnostics

func.func @multiplier(%x: tensor<4xi32>, %s: tensor<1xi8>) -> tensor<4xi8> {
  %m = "tosa.const"() <{values = dense<-1> : tensor<1xi32>}> : () -> tensor<1xi32>
  %xz = "tosa.const"() <{values = dense<0> : tensor<1xi32>}> : () -> tensor<1xi32>
  %yz = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
  // expected-error @+1 {{'tosa.rescale' op has a multiplier of -1; expected 0 to 2147483647}}
  %y = tosa.rescale %x, %m, %s, %xz, %yz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<4xi32>, tensor<1xi32>, tensor<1xi8>, tensor<1xi32>, tensor<1xi8>) -> tensor<4xi8>
  return %y : tensor<4xi8>
}

// -----

func.func @shift(%x: tensor<4xi32>, %m: tensor<1xi32>) -> tensor<4xi8> {
  %s = "tosa.const"() <{values = dense<63> : tensor<1xi8>}> : () -> tensor<1xi8>
  %xz = "tosa.const"() <{values = dense<0> : tensor<1xi32>}> : () -> tensor<1xi32>
  %yz = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
  // expected-error @+1 {{'tosa.rescale' op has a shift of 63; expected 0 to 62}}
  %y = tosa.rescale %x, %m, %s, %xz, %yz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<4xi32>, tensor<1xi32>, tensor<1xi8>, tensor<1xi32>, tensor<1xi8>) -> tensor<4xi8>
  return %y : tensor<4xi8>
}

// -----

!q = !quant.uniform<i8:f32, 0.5>
func.func @quantized(%x: tensor<4xi32>, %m: tensor<1xi32>, %s: tensor<1xi8>) -> tensor<4x!q> {
  %xz = "tosa.const"() <{values = dense<0> : tensor<1xi32>}> : () -> tensor<1xi32>
  %yz = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
  // expected-error @+1 {{'tosa.rescale' op has elements of type '!quant.uniform<i8:f32, 5.000000e-01>'; run convert-tosa-to-storage first}}
  %y = tosa.rescale %x, %m, %s, %xz, %yz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<4xi32>, tensor<1xi32>, tensor<1xi8>, tensor<1xi32>, tensor<1xi8>) -> tensor<4x!q>
  return %y : tensor<4x!q>
}

// -----

func.func @unranked(%x: tensor<*xi32>, %m: tensor<1xi32>, %s: tensor<1xi8>) -> tensor<*xi8> {
  %xz = "tosa.const"() <{values = dense<0> : tensor<1xi32>}> : () -> tensor<1xi32>
  %yz = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
  // expected-error @+1 {{'tosa.rescale' op has the type 'tensor<*xi32>'; expected a ranked tensor}}
  %y = tosa.rescale %x, %m, %s, %xz, %yz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<*xi32>, tensor<1xi32>, tensor<1xi8>, tensor<1xi32>, tensor<1xi8>) -> tensor<*xi8>
  return %y : tensor<*xi8>
}
