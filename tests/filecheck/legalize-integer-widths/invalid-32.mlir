// RUN: subquant opt %s --passes "legalize-integer-widths{containers=32}" --split-input-file --verify-diagnostics

func.func @half(%x: tensor<4xf16>) -> tensor<4xf16> {
  // expected-error @+1 {{'arith.negf' op uses 'f16', which a device with 32-bit storage only does not have; compile for a device that has it (--vulkan-target generic)}}
  %r = arith.negf %x : tensor<4xf16>
  return %r : tensor<4xf16>
}

// -----

func.func @double() -> f64 {
  // expected-error @+1 {{'arith.constant' op uses 'f64'}}
  %r = arith.constant 1.0 : f64
  return %r : f64
}
