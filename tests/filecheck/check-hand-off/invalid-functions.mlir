// RUN: subquant opt %s --passes "check-hand-off{functions=true}" --split-input-file --verify-diagnostics

func.func @main(%x: tensor<4xf64>) -> tensor<4xf64> {
  // expected-error @+1 {{'stablehlo.sine' op computes sine of f64, which IREE does not do on llvm-cpu; convert the operand to f32}}
  %y = stablehlo.sine %x : tensor<4xf64>
  return %y : tensor<4xf64>
}

// -----

// No result reads the first one, and f32 is no f64.
func.func @main(%x: tensor<4xf64>, %z: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.cosine %x : tensor<4xf64>
  %w = stablehlo.sine %z : tensor<4xf32>
  return %w : tensor<4xf32>
}
