// RUN: subquant opt %s --passes "legalize-quantized-op-to-qdq{explain=true}" --split-input-file --verify-diagnostics

!q = !quant.uniform<i8:f32, 0.5:3>
!block = !quant.uniform<i8:f32:{0:2, 1:1}, {{1.0, 2.0}, {3.0, 4.0}}>

// Float operations, and casts.
func.func @casts(%x: tensor<4x2xf32>, %q: tensor<4x!q>, %w: tensor<4x2x!block>) -> (tensor<4x2x!q>, tensor<4xf32>, tensor<4x2xf32>) {
  %y = stablehlo.add %x, %x : tensor<4x2xf32>
  %r = stablehlo.uniform_quantize %y : (tensor<4x2xf32>) -> tensor<4x2x!q>
  %s = stablehlo.uniform_dequantize %q : (tensor<4x!q>) -> tensor<4xf32>
  %t = quant.dcast %w : tensor<4x2x!block> to tensor<4x2xf32>
  return %r, %s, %t : tensor<4x2x!q>, tensor<4xf32>, tensor<4x2xf32>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>

func.func @moves_elements(%q: tensor<4x2x!q>) -> tensor<2x4x!q> {
  // expected-remark @+1 {{'stablehlo.transpose' op is left alone: it only moves elements; with data-movement=true it is expanded}}
  %r = stablehlo.transpose %q, dims = [1, 0] : (tensor<4x2x!q>) -> tensor<2x4x!q>
  return %r : tensor<2x4x!q>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>

func.func @no_float_form(%p: tensor<i1>, %q: tensor<4x!q>) -> (tensor<4x!q>, tensor<4xi8>) {
  // expected-remark @+1 {{'stablehlo.constant' op is left alone: it acts on stored bits, which a float does not have}}
  %c = "stablehlo.constant"() <{value = dense<1> : tensor<4xi8>}> : () -> tensor<4x!q>
  // expected-remark @+1 {{'stablehlo.if' op is left alone: it passes values on, quantized or not}}
  %r = "stablehlo.if"(%p) ({
    stablehlo.return %c : tensor<4x!q>
  }, {
    stablehlo.return %q : tensor<4x!q>
  }) : (tensor<i1>) -> tensor<4x!q>
  // expected-remark @+1 {{'stablehlo.optimization_barrier' op is left alone: it passes values on, quantized or not}}
  %b = stablehlo.optimization_barrier %r : tensor<4x!q>
  // expected-remark @+1 {{'stablehlo.custom_call' op is left alone: it passes values on, quantized or not}}
  %d = stablehlo.custom_call @f(%b) : (tensor<4x!q>) -> tensor<4x!q>
  // expected-remark @+1 {{'stablehlo.dot' op is left alone: it is deprecated; stablehlo-legalize-deprecated-ops writes it as dot_general}}
  %f = stablehlo.dot %d, %d : (tensor<4x!q>, tensor<4x!q>) -> tensor<!q>
  // expected-remark @+1 {{'stablehlo.bitcast_convert' op is left alone: it acts on stored bits, which a float does not have}}
  %e = stablehlo.bitcast_convert %d : (tensor<4x!q>) -> tensor<4xi8>
  return %d, %e : tensor<4x!q>, tensor<4xi8>
}

// -----

!q = !quant.uniform<i8:f32, 0.5>

// A body that holds a constant of stored values stays, and the reduction around it.
func.func @body_without_float_form(%x: tensor<4x!q>, %z: tensor<!q>) -> tensor<!q> {
  // expected-remark @+1 {{'stablehlo.reduce' op is left alone: 'stablehlo.constant' in its body has no float form}}
  %r = stablehlo.reduce(%x init: %z) across dimensions = [0] : (tensor<4x!q>, tensor<!q>) -> tensor<!q>
    reducer(%a: tensor<!q>, %b: tensor<!q>) {
      // expected-remark @+1 {{'stablehlo.constant' op is left alone}}
      %c = "stablehlo.constant"() <{value = dense<1> : tensor<i8>}> : () -> tensor<!q>
      stablehlo.return %c : tensor<!q>
    }
  return %r : tensor<!q>
}
