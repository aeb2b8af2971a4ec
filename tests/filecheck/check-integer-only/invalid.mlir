// RUN: subquant opt %s --passes check-integer-only --split-input-file --verify-diagnostics

func.func @between(%x: tensor<4xi32>) -> tensor<4xi32> {
  %0 = stablehlo.convert %x : (tensor<4xi32>) -> tensor<4xf32>
  // expected-error @+1 {{'stablehlo.tanh' op computes with floats between quantized values, and --integer-only allows none}}
  %1 = stablehlo.tanh %0 : tensor<4xf32>
  %2 = stablehlo.convert %1 : (tensor<4xf32>) -> tensor<4xi32>
  return %2 : tensor<4xi32>
}

// -----

// The predicate that decides between integers was made of reals.
func.func @compared(%x: tensor<4xi32>, %y: tensor<4xf32>) -> tensor<4xi32> {
  // expected-error @+1 {{'stablehlo.convert' op computes with floats between quantized values}}
  %0 = stablehlo.convert %x : (tensor<4xi32>) -> tensor<4xf32>
  %1 = stablehlo.compare LT, %0, %y, FLOAT : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %2 = stablehlo.select %1, %x, %x : tensor<4xi1>, tensor<4xi32>
  return %2 : tensor<4xi32>
}
