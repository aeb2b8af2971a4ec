// RUN: subquant opt %s --passes expand-sign-extension --split-input-file --verify-diagnostics

// Upstream's MLIR crashes on these.
!q = !quant.uniform<i8:f32, 0.5:3>
func.func @f(%x: tensor<4xi8>, %q: tensor<4x!q>) -> (tensor<4xi32>, tensor<4xi8>) {
  %0 = stablehlo.convert %x : (tensor<4xi8>) -> tensor<4xi32>
  // expected-error @+1 {{'stablehlo.bitcast_convert' op computes with quantized values, which cannot be written as loops over integers; run legalize-quant-to-math and convert-quantized-to-storage before}}
  %1 = stablehlo.bitcast_convert %q : (tensor<4x!q>) -> tensor<4xi8>
  return %0, %1 : tensor<4xi32>, tensor<4xi8>
}

// -----

!q = !quant.uniform<i8:f32, 0.5>
func.func @f(%x: tensor<4xi8>, %a: tensor<2x3x!q>, %b: tensor<3x4x!q>) -> (tensor<4xi32>, tensor<2x4x!q>) {
  %0 = stablehlo.convert %x : (tensor<4xi8>) -> tensor<4xi32>
  // expected-error @+1 {{'stablehlo.dot_general' op computes with quantized values}}
  %1 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<2x3x!q>, tensor<3x4x!q>) -> tensor<2x4x!q>
  return %0, %1 : tensor<4xi32>, tensor<2x4x!q>
}
