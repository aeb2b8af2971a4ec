// RUN: subquant opt %s --passes fold-constant-casts --verify-diagnostics

!q = !quant.uniform<i8:f32, 1.0e-38>
func.func @subnormal() -> tensor<2x!q> {
  %c = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
  // expected-error @+1 {{'quant.qcast' op has the scale 1e-38, expected more than 2.35099e-38: IREE's runtimes flush subnormal f32 values to zero; use a wider expressed type}}
  %q = quant.qcast %c : tensor<2xf32> to tensor<2x!q>
  return %q : tensor<2x!q>
}
