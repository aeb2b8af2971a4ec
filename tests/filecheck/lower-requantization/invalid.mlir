// RUN: subquant opt %s --passes lower-requantization --split-input-file --verify-diagnostics
// RUN: not subquant opt %s --passes "lower-requantization{requantization=float}" 2>&1 | filecheck %s

// CHECK: option 'requantization' of lower-requantization must be one of exact, fixed-point, got 'float'
func.func @case_0(%acc: tensor<4xi8>) -> tensor<4xi8> {
  // expected-error @+1 {{operands must be ranked tensors of i32 or i64, all of one type, got 'tensor<4xi8>'}}
  %s = "subquant.requantize"(%acc) {scales = [dense<0.5> : tensor<f64>], bounds = array<i64: 9>, quantized_type = !quant.uniform<i8:f32, 0.5>} : (tensor<4xi8>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

func.func @case_1(%acc: tensor<4xi32>) -> tensor<4xi8> {
  // expected-error @+1 {{attribute 'quantized_type' must be a quantized type, got 'i8'}}
  %s = "subquant.requantize"(%acc) {scales = [dense<0.5> : tensor<f64>], bounds = array<i64: 9>, quantized_type = i8} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

func.func @case_2(%acc: tensor<4xi32>) -> tensor<4xi16> {
  // expected-error @+1 {{result must have the type 'tensor<4xi8>', got 'tensor<4xi16>'}}
  %s = "subquant.requantize"(%acc) {scales = [dense<0.5> : tensor<f64>], bounds = array<i64: 9>, quantized_type = !quant.uniform<i8:f32, 0.5>} : (tensor<4xi32>) -> tensor<4xi16>
  return %s : tensor<4xi16>
}

// -----

func.func @case_3(%acc: tensor<4xi32>) -> tensor<4xi8> {
  // expected-error @+1 {{attribute 'bounds' must be array<i64: ...> with 1 entries}}
  %s = "subquant.requantize"(%acc) {scales = [dense<0.5> : tensor<f64>], bounds = array<i64: 9, 9>, quantized_type = !quant.uniform<i8:f32, 0.5>} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

func.func @case_4(%acc: tensor<4xi32>) -> tensor<4xi8> {
  // expected-error @+1 {{bounds must not be negative}}
  %s = "subquant.requantize"(%acc) {scales = [dense<0.5> : tensor<f64>], bounds = array<i64: -9>, quantized_type = !quant.uniform<i8:f32, 0.5>} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

func.func @case_5(%acc: tensor<4xi32>) -> tensor<4xi8> {
  // expected-error @+1 {{attribute 'scales' must be an array of 1 dense attributes}}
  %s = "subquant.requantize"(%acc) {scales = [], bounds = array<i64: 9>, quantized_type = !quant.uniform<i8:f32, 0.5>} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

func.func @case_6(%acc: tensor<4xi32>) -> tensor<4xi8> {
  // expected-error @+1 {{scales must be dense f64 attributes}}
  %s = "subquant.requantize"(%acc) {scales = [dense<0.5> : tensor<f32>], bounds = array<i64: 9>, quantized_type = !quant.uniform<i8:f32, 0.5>} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

func.func @case_7(%acc: tensor<4xi32>) -> tensor<4xi8> {
  // expected-error @+1 {{scales of the shape 3 must have rank 0, or for each axis of 'tensor<4xi32>' its extent, 1, or a number of blocks that divides it}}
  %s = "subquant.requantize"(%acc) {scales = [dense<0.5> : tensor<3xf64>], bounds = array<i64: 9>, quantized_type = !quant.uniform<i8:f32, 0.5>} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

func.func @case_8(%acc: tensor<4xi32>) -> tensor<4xi8> {
  // expected-error @+1 {{scales of one term must be finite, not 0 and of one sign}}
  %s = "subquant.requantize"(%acc) {scales = [dense<0.0> : tensor<f64>], bounds = array<i64: 9>, quantized_type = !quant.uniform<i8:f32, 0.5>} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

func.func @case_9(%acc: tensor<4xi32>) -> tensor<4xi8> {
  // expected-error @+1 {{scales of one term must be finite, not 0 and of one sign}}
  %s = "subquant.requantize"(%acc) {scales = [dense<[1.0, -1.0, 1.0, 1.0]> : tensor<4xf64>], bounds = array<i64: 9>, quantized_type = !quant.uniform<i8:f32, 0.5>} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

func.func @case_10(%acc: tensor<?xi32>) -> tensor<?xi8> {
  // expected-error @+1 {{attribute 'quantized_type' has blocks, and operands of 'tensor<?xi32>' no static shape}}
  %s = "subquant.requantize"(%acc) {scales = [dense<0.5> : tensor<f64>], bounds = array<i64: 9>, quantized_type = !quant.uniform<i8:f32:{0:2}, {0.5, 1.0}>} : (tensor<?xi32>) -> tensor<?xi8>
  return %s : tensor<?xi8>
}

// -----

func.func @case_11(%acc: tensor<4xi32>) -> tensor<4xi8> {
  // expected-error @+1 {{scales and zero points have the shape 2, expected 4}}
  %s = "subquant.requantize"(%acc) {scales = [dense<0.5> : tensor<f64>], bounds = array<i64: 9>, quantized_type = !quant.uniform<i8:f32:0, {0.5, 1.0}>} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}
