// RUN: subquant opt %s --passes lower-tosa-variables --split-input-file --verify-diagnostics

// expected-error @+1 {{'tosa.variable' op has a dynamic shape, and a variable is kept between calls in a buffer of one size; give it a static shape}}
tosa.variable @grows : tensor<?x4xi8>

// -----

// expected-error @+1 {{'tosa.variable' op has elements of type '!quant.uniform<i8:f32, 5.000000e-01>'; run convert-tosa-to-storage first}}
tosa.variable @quantized : tensor<4x!quant.uniform<i8:f32, 0.5>>

// -----

// expected-error @+1 {{'tosa.variable' op has elements of type 'ui8'; run convert-tosa-to-storage first}}
tosa.variable @unsigned : tensor<4xui8>
