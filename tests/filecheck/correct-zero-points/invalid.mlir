// RUN: subquant opt %s --passes correct-zero-points --split-input-file --verify-diagnostics
// RUN: not subquant opt %s --passes "correct-zero-points{style=outside}" 2>&1 | filecheck %s

// CHECK: option 'style' of correct-zero-points must be one of after, inside, mixed, got 'outside'
func.func @real(%x: tensor<4xf32>) -> tensor<4xi32> {
  // expected-error @+1 {{'subquant.subtract_zero_point' op operand must be a quantized ranked tensor, got 'tensor<4xf32>'}}
  %a = "subquant.subtract_zero_point"(%x) : (tensor<4xf32>) -> tensor<4xi32>
  return %a : tensor<4xi32>
}

// -----

!b = !quant.uniform<i8:f32:{0:2}, {1.0, 2.0}>
func.func @blocks(%x: tensor<?x!b>) -> tensor<?xi32> {
  // expected-error @+1 {{operand has blocks and no static shape}}
  %a = "subquant.subtract_zero_point"(%x) : (tensor<?x!b>) -> tensor<?xi32>
  return %a : tensor<?xi32>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>
func.func @narrow(%x: tensor<4x!q>) -> tensor<4xi8> {
  // expected-error @+1 {{result must have the type 'tensor<4xi32>', got 'tensor<4xi8>'}}
  %a = "subquant.subtract_zero_point"(%x) : (tensor<4x!q>) -> tensor<4xi8>
  return %a : tensor<4xi8>
}
