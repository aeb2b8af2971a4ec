// RUN: subquant opt %s --passes lower-tosa --split-input-file --verify-diagnostics

func.func @custom(%x: tensor<4xi32>) -> tensor<4xi32> {
  // expected-error @+1 {{failed to legalize operation 'tosa.custom'}}
  %0 = tosa.custom %x {operator_name = "own", domain_name = "mine", implementation_attrs = ""} : (tensor<4xi32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}

// -----

// lower-tosa-variables comes first.
tosa.variable @state : tensor<4xi8>
func.func @read() -> tensor<4xi8> {
  // expected-error @+1 {{failed to legalize operation 'tosa.variable_read'}}
  %0 = tosa.variable_read @state : tensor<4xi8>
  return %0 : tensor<4xi8>
}

// -----

func.func @images(%x: tensor<1x?x3x2xi8>, %w: tensor<3x4x3x2xi8>, %b: tensor<3xi32>) -> tensor<1x?x7x3xi32> {
  %z = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
  // expected-error @+1 {{has images or a kernel of dynamic shape; only the batch may be dynamic}}
  %0 = tosa.transpose_conv2d %x, %w, %b, %z, %z {acc_type = i32, out_pad = array<i64: 0, 0, 0, 0>, stride = array<i64: 2, 2>} : (tensor<1x?x3x2xi8>, tensor<3x4x3x2xi8>, tensor<3xi32>, tensor<1xi8>, tensor<1xi8>) -> tensor<1x?x7x3xi32>
  return %0 : tensor<1x?x7x3xi32>
}
