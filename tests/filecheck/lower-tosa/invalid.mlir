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
