// RUN: subquant opt %s --passes lower-saturation --split-input-file --verify-diagnostics

func.func @case_0(%x: tensor<4xf32>) -> tensor<4xi8> {
  // expected-error @+1 {{operands must be ranked tensors of i32 or i64}}
  %s = "subquant.saturate"(%x) {range = array<i64: 0, 1>} : (tensor<4xf32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

func.func @case_1(%x: tensor<4xi32>) -> tensor<5xi8> {
  // expected-error @+1 {{result must be a tensor like 'tensor<4xi32>' with a storage type of 2 to 32 bits, got 'tensor<5xi8>'}}
  %s = "subquant.saturate"(%x) {range = array<i64: 0, 1>} : (tensor<4xi32>) -> tensor<5xi8>
  return %s : tensor<5xi8>
}

// -----

func.func @case_2(%x: tensor<4xi32>) -> tensor<4xi64> {
  // expected-error @+1 {{with a storage type of 2 to 32 bits, got 'tensor<4xi64>'}}
  %s = "subquant.saturate"(%x) {range = array<i64: 0, 1>} : (tensor<4xi32>) -> tensor<4xi64>
  return %s : tensor<4xi64>
}

// -----

func.func @case_3(%x: tensor<4xi32>) -> tensor<4xi8> {
  // expected-error @+1 {{attribute 'range' must be array<i64: minimum, maximum>}}
  %s = "subquant.saturate"(%x) {range = array<i64: 0>} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

func.func @case_4(%x: tensor<4xi32>) -> tensor<4xi8> {
  // expected-error @+1 {{range 3:1 must be one that 'i8' can hold, signed or unsigned}}
  %s = "subquant.saturate"(%x) {range = array<i64: 3, 1>} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

func.func @case_5(%x: tensor<4xi32>) -> tensor<4xi8> {
  // expected-error @+1 {{range -1:255 must be one that 'i8' can hold, signed or unsigned}}
  %s = "subquant.saturate"(%x) {range = array<i64: -1, 255>} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}
