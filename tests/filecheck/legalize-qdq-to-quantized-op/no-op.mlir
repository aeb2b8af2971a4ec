// RUN: subquant opt %s --passes "legalize-qdq-to-quantized-op{explain=true}" --split-input-file --verify-diagnostics

!q = !quant.uniform<i8:f32, 0.5:3>

// No casts, and a quantized operation.
func.func @plain(%x: tensor<4xf32>, %q: tensor<4x!q>) -> (tensor<4xf32>, tensor<4x!q>) {
  %y = stablehlo.add %x, %x : tensor<4xf32>
  %r = stablehlo.add %q, %q : tensor<4x!q>
  return %y, %r : tensor<4xf32>, tensor<4x!q>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>

func.func @operand_is_not_dequantized(%x: tensor<4xf32>, %q: tensor<4x!q>) -> tensor<4x!q> {
  %a = stablehlo.uniform_dequantize %q : (tensor<4x!q>) -> tensor<4xf32>
  // expected-remark @+1 {{'stablehlo.add' op is left alone: operand 1 is not dequantized}}
  %s = stablehlo.add %a, %x : tensor<4xf32>
  %r = stablehlo.uniform_quantize %s : (tensor<4xf32>) -> tensor<4x!q>
  return %r : tensor<4x!q>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>

func.func @result_is_not_quantized(%q: tensor<4x!q>) -> tensor<4xf32> {
  %a = stablehlo.uniform_dequantize %q : (tensor<4x!q>) -> tensor<4xf32>
  // expected-remark @+1 {{'stablehlo.abs' op is left alone: result is not quantized}}
  %s = stablehlo.abs %a : tensor<4xf32>
  return %s : tensor<4xf32>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>

func.func @result_has_other_uses(%q: tensor<4x!q>) -> (tensor<4x!q>, tensor<4xf32>) {
  %a = stablehlo.uniform_dequantize %q : (tensor<4x!q>) -> tensor<4xf32>
  // expected-remark @+1 {{result is also used by 'func.return' without being quantized, so that the float operation has to stay}}
  %s = stablehlo.abs %a : tensor<4xf32>
  %r = stablehlo.uniform_quantize %s : (tensor<4xf32>) -> tensor<4x!q>
  return %r, %s : tensor<4x!q>, tensor<4xf32>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>
!p = !quant.uniform<i8:f32, 2.0>

func.func @result_is_quantized_in_two_ways(%q: tensor<4x!q>) -> (tensor<4x!q>, tensor<4x!p>) {
  %a = stablehlo.uniform_dequantize %q : (tensor<4x!q>) -> tensor<4xf32>
  // expected-remark @+1 {{result is quantized in two ways, to !quant.uniform<i8:f32, }}
  %s = stablehlo.abs %a : tensor<4xf32>
  %r = stablehlo.uniform_quantize %s : (tensor<4xf32>) -> tensor<4x!q>
  %t = stablehlo.uniform_quantize %s : (tensor<4xf32>) -> tensor<4x!p>
  return %r, %t : tensor<4x!q>, tensor<4x!p>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>
!narrow = !quant.uniform<i8<-127:127>:f32, 0.5>
!wide = !quant.uniform<i32:f32, 0.5>

// Element-wise operations other than add have one storage type and range.
func.func @types_differ(%q: tensor<4x!q>, %n: tensor<4x!narrow>) -> (tensor<4x!wide>, tensor<4x!q>) {
  %a = stablehlo.uniform_dequantize %q : (tensor<4x!q>) -> tensor<4xf32>
  %b = stablehlo.uniform_dequantize %n : (tensor<4x!narrow>) -> tensor<4xf32>
  // expected-remark @+1 {{operand 0 and result must have one storage type, storage range and expressed type, got !quant.uniform<i8:f32, 5.000000e-01:3> and !quant.uniform<i32:f32, 5.000000e-01> (C1)}}
  %m = stablehlo.multiply %a, %a : tensor<4xf32>
  %r = stablehlo.uniform_quantize %m : (tensor<4xf32>) -> tensor<4x!wide>
  // expected-remark @+1 {{operand 0 and operand 1 must have one storage type, storage range and expressed type}}
  %d = stablehlo.maximum %a, %b : tensor<4xf32>
  %t = stablehlo.uniform_quantize %d : (tensor<4xf32>) -> tensor<4x!q>
  return %r, %t : tensor<4x!wide>, tensor<4x!q>
}

// -----

!axis = !quant.uniform<i8:f32:0, {1.0, 2.0, 3.0, 4.0}>

func.func @per_axis(%q: tensor<4x!axis>) -> tensor<4x!axis> {
  %a = stablehlo.uniform_dequantize %q : (tensor<4x!axis>) -> tensor<4xf32>
  // expected-remark @+1 {{operand 0 must be quantized per tensor, got !quant.uniform<i8:f32:0,}}
  %s = stablehlo.abs %a : tensor<4xf32>
  %r = stablehlo.uniform_quantize %s : (tensor<4xf32>) -> tensor<4x!axis>
  return %r : tensor<4x!axis>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>
!p = !quant.uniform<i8:f32, 2.0>

// An operation that moves elements does not requantize them.
func.func @moved_elements_keep_their_type(%q: tensor<2x4x!q>) -> tensor<4x2x!p> {
  %a = stablehlo.uniform_dequantize %q : (tensor<2x4x!q>) -> tensor<2x4xf32>
  // expected-remark @+1 {{operand 0 and result must have one element type, got !quant.uniform<i8:f32, 5.000000e-01:3> and !quant.uniform<i8:f32, 2.000000e+00> (C1)}}
  %s = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x4xf32>) -> tensor<4x2xf32>
  %r = stablehlo.uniform_quantize %s : (tensor<4x2xf32>) -> tensor<4x2x!p>
  return %r : tensor<4x2x!p>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>
!w = !quant.uniform<i8:f32, 2.0:1>
!k = !quant.uniform<i8:f32:0, {1.0, 2.0, 3.0, 4.0}>
!n = !quant.uniform<i8:f32:1, {1.0, 2.0}>
!u = !quant.uniform<i8:f32, 2.0>

func.func @dot_general(%q: tensor<3x4x!q>, %w: tensor<4x2x!w>, %k: tensor<4x2x!k>, %u: tensor<4x2x!u>, %l: tensor<4x2x!n>) -> (tensor<3x2x!q>, tensor<3x2x!q>, tensor<3x2x!n>) {
  %a = stablehlo.uniform_dequantize %q : (tensor<3x4x!q>) -> tensor<3x4xf32>
  %b = stablehlo.uniform_dequantize %w : (tensor<4x2x!w>) -> tensor<4x2xf32>
  %c = stablehlo.uniform_dequantize %k : (tensor<4x2x!k>) -> tensor<4x2xf32>
  %d = stablehlo.uniform_dequantize %u : (tensor<4x2x!u>) -> tensor<4x2xf32>
  // expected-remark @+1 {{the zero point of operand 1 must be 0, got !quant.uniform<i8:f32, 2.000000e+00:1> (C15)}}
  %s = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
  %r = stablehlo.uniform_quantize %s : (tensor<3x2xf32>) -> tensor<3x2x!q>
  // expected-remark @+1 {{operand 1 must not be quantized along a dimension that is contracted, got dimension 0 (C16)}}
  %t = stablehlo.dot_general %a, %c, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
  %v = stablehlo.uniform_quantize %t : (tensor<3x2xf32>) -> tensor<3x2x!q>
  // expected-remark @+1 {{result must be quantized per tensor because operand 1 is, got !quant.uniform<i8:f32:1, {1.000000e+00,2.000000e+00}> (C19)}}
  %x = stablehlo.dot_general %a, %d, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
  %y = stablehlo.uniform_quantize %x : (tensor<3x2xf32>) -> tensor<3x2x!n>
  return %r, %v, %y : tensor<3x2x!q>, tensor<3x2x!q>, tensor<3x2x!n>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>
!block = !quant.uniform<i8:f32:{0:2, 1:1}, {{1.0, 2.0}, {3.0, 4.0}}>

// No StableHLO operation accepts a sub-channel type, not even one that only moves elements.
func.func @sub_channel(%q: tensor<3x4x!q>, %w: tensor<4x2x!block>) -> (tensor<3x2x!q>, tensor<4x2x!block>, tensor<4x2x!q>) {
  %a = stablehlo.uniform_dequantize %q : (tensor<3x4x!q>) -> tensor<3x4xf32>
  %b = quant.dcast %w : tensor<4x2x!block> to tensor<4x2xf32>
  // expected-remark @+1 {{'stablehlo.dot_general' op is left alone: operand 1 has a sub-channel type, which no StableHLO operation accepts}}
  %s = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
  %r = quant.qcast %s : tensor<3x2xf32> to tensor<3x2x!q>
  // expected-remark @+1 {{'stablehlo.reverse' op is left alone: operand 0 has a sub-channel type}}
  %t = stablehlo.reverse %b, dims = [0] : tensor<4x2xf32>
  %u = quant.qcast %t : tensor<4x2xf32> to tensor<4x2x!block>
  // expected-remark @+1 {{'quant.qcast' op is left alone: operand 0 has a sub-channel type}}
  %v = quant.qcast %b : tensor<4x2xf32> to tensor<4x2x!q>
  return %r, %u, %v : tensor<3x2x!q>, tensor<4x2x!block>, tensor<4x2x!q>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>

// What acts on stored bits, passes values on, or has no quantized form.
func.func @no_float_form(%q: tensor<4x!q>) -> (tensor<4x!q>, tensor<4x!q>, tensor<4xi32>) {
  %a = stablehlo.uniform_dequantize %q : (tensor<4x!q>) -> tensor<4xf32>
  // expected-remark @+1 {{'stablehlo.bitcast_convert' op is left alone: it acts on stored bits, which a float does not have}}
  %b = stablehlo.bitcast_convert %a : (tensor<4xf32>) -> tensor<4xf32>
  %r = stablehlo.uniform_quantize %b : (tensor<4xf32>) -> tensor<4x!q>
  // expected-remark @+1 {{'stablehlo.optimization_barrier' op is left alone: it passes values on, quantized or not}}
  %c = stablehlo.optimization_barrier %a : tensor<4xf32>
  %s = stablehlo.uniform_quantize %c : (tensor<4xf32>) -> tensor<4x!q>
  // expected-remark @+1 {{'stablehlo.convert' op is left alone: the specification gives it no quantized types}}
  %d = stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xi32>
  return %r, %s, %d : tensor<4x!q>, tensor<4x!q>, tensor<4xi32>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>
!narrow = !quant.uniform<i4:f32, 0.5>

// A result must not be narrower than what is reduced, and everything in the body needs a type.
func.func @reductions(%q: tensor<4x!q>, %i: tensor<!q>) -> (tensor<!narrow>, tensor<!q>, tensor<!q>) {
  %x = stablehlo.uniform_dequantize %q : (tensor<4x!q>) -> tensor<4xf32>
  %z = stablehlo.uniform_dequantize %i : (tensor<!q>) -> tensor<f32>
  // expected-remark @+1 {{result must have a storage type at least as wide as operand 0, got !quant.uniform<i4:f32, 5.000000e-01> and !quant.uniform<i8:f32, 5.000000e-01:3> (C6)}}
  %s = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %r = stablehlo.uniform_quantize %s : (tensor<f32>) -> tensor<!narrow>
  // expected-remark @+1 {{'stablehlo.reduce' op is left alone: 'stablehlo.constant' in its body has no quantized form}}
  %t = stablehlo.reduce(%x init: %z) across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    reducer(%a: tensor<f32>, %b: tensor<f32>) {
      %c = stablehlo.constant dense<2.0> : tensor<f32>
      %d = stablehlo.multiply %a, %c : tensor<f32>
      %e = stablehlo.add %d, %b : tensor<f32>
      stablehlo.return %e : tensor<f32>
    }
  %u = stablehlo.uniform_quantize %t : (tensor<f32>) -> tensor<!q>
  // expected-remark @+1 {{'stablehlo.reduce' op is left alone: 'stablehlo.multiply' in its body has operand 1 that is not quantized}}
  %v = stablehlo.reduce(%x init: %z) across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    reducer(%a: tensor<f32>, %b: tensor<f32>) {
      // expected-remark @+1 {{'stablehlo.multiply' op is left alone: operand 0 is not dequantized}}
      %d = stablehlo.multiply %a, %z : tensor<f32>
      %e = stablehlo.add %d, %b : tensor<f32>
      stablehlo.return %e : tensor<f32>
    }
  %w = stablehlo.uniform_quantize %v : (tensor<f32>) -> tensor<!q>
  return %r, %u, %w : tensor<!narrow>, tensor<!q>, tensor<!q>
}
