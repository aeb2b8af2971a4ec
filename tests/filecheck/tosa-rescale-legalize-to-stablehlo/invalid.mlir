// RUN: subquant opt %s --passes tosa-rescale-legalize-to-stablehlo --split-input-file --verify-diagnostics

func.func @wide(%x: tensor<4xi48>, %m: tensor<1xi16>, %k: tensor<1xi8>, %xz: tensor<1xi48>, %rz: tensor<1xi32>) -> tensor<4xi32> {
  // expected-error @+1 {{'tosa.rescale' op has elements of type 'i48', expected integers of 2 to 32 bits; StableHLO has none between 32 and 64}}
  %r = tosa.rescale %x, %m, %k, %xz, %rz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = false} : (tensor<4xi48>, tensor<1xi16>, tensor<1xi8>, tensor<1xi48>, tensor<1xi32>) -> tensor<4xi32>
  return %r : tensor<4xi32>
}

// -----

func.func @odd(%x: tensor<4xi12>, %m: tensor<1xi32>, %k: tensor<1xi8>, %xz: tensor<1xi12>, %rz: tensor<1xi32>) -> tensor<4xi32> {
  // expected-error @+1 {{'tosa.rescale' op has elements of type 'i12', and StableHLO has no integers of 12 bits; use 2, 4, 8, 16 or 32}}
  %r = tosa.rescale %x, %m, %k, %xz, %rz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<4xi12>, tensor<1xi32>, tensor<1xi8>, tensor<1xi12>, tensor<1xi32>) -> tensor<4xi32>
  return %r : tensor<4xi32>
}

// -----

func.func @unranked(%x: tensor<*xi8>, %m: tensor<1xi32>, %k: tensor<1xi8>, %xz: tensor<1xi8>, %rz: tensor<1xi32>) -> tensor<*xi32> {
  // expected-error @+1 {{'tosa.rescale' op has a value of type 'tensor<*xi8>'; expected a ranked tensor}}
  %r = tosa.rescale %x, %m, %k, %xz, %rz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<*xi8>, tensor<1xi32>, tensor<1xi8>, tensor<1xi8>, tensor<1xi32>) -> tensor<*xi32>
  return %r : tensor<*xi32>
}

// -----

func.func @shift(%x: tensor<4xi8>, %m: tensor<1xi32>, %xz: tensor<1xi8>, %rz: tensor<1xi32>) -> tensor<4xi32> {
  %k = "tosa.const"() <{values = dense<63> : tensor<1xi8>}> : () -> tensor<1xi8>
  // expected-error @+1 {{'tosa.rescale' op has a shift of 63, expected 0 to 62}}
  %r = tosa.rescale %x, %m, %k, %xz, %rz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<4xi8>, tensor<1xi32>, tensor<1xi8>, tensor<1xi8>, tensor<1xi32>) -> tensor<4xi32>
  return %r : tensor<4xi32>
}

// -----

func.func @multiplier(%x: tensor<4xi8>, %k: tensor<1xi8>, %xz: tensor<1xi8>, %rz: tensor<1xi32>) -> tensor<4xi32> {
  %m = "tosa.const"() <{values = dense<-5> : tensor<1xi32>}> : () -> tensor<1xi32>
  // expected-error @+1 {{'tosa.rescale' op has a multiplier of -5, expected 0 to 2147483647}}
  %r = tosa.rescale %x, %m, %k, %xz, %rz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<4xi8>, tensor<1xi32>, tensor<1xi8>, tensor<1xi8>, tensor<1xi32>) -> tensor<4xi32>
  return %r : tensor<4xi32>
}

// -----

func.func @unsigned(%x: tensor<4xi32>, %m: tensor<1xi32>, %k: tensor<1xi8>, %z: tensor<1xi32>) -> tensor<4xi32> {
  // expected-error @+1 {{'tosa.rescale' op scales unsigned 32-bit values with multipliers of 31 bits, whose products need more than 64 bits; rescale signed values, or use scale32 = false}}
  %r = tosa.rescale %x, %m, %k, %z, %z {input_unsigned = true, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<4xi32>, tensor<1xi32>, tensor<1xi8>, tensor<1xi32>, tensor<1xi32>) -> tensor<4xi32>
  return %r : tensor<4xi32>
}
