// RUN: subquant opt %s --passes "raise-dequantization{explain=true}" --verify-diagnostics --split-input-file

func.func @divided(%q: tensor<4x8xi8>, %s: tensor<8xf32>) -> tensor<4x8xf32> {
  %0 = stablehlo.convert %q : (tensor<4x8xi8>) -> tensor<4x8xf32>
  %1 = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<8xf32>) -> tensor<4x8xf32>
  // expected-remark @+1 {{'stablehlo.divide' op is left alone: divides, which rounds otherwise than a multiplication by the inverse}}
  %2 = stablehlo.divide %0, %1 : tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}

// -----

func.func @wraps(%q: tensor<4x8xi8>, %z: tensor<4x8xi8>) -> tensor<4x8xf32> {
  // expected-remark @+1 {{'stablehlo.subtract' op is left alone: subtracts in i8, which wraps; convert to a wider type first}}
  %0 = stablehlo.subtract %q, %z : tensor<4x8xi8>
  %1 = stablehlo.convert %0 : (tensor<4x8xi8>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}
