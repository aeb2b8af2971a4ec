// RUN: subquant opt %s --passes "quant-legalize-to-tosa-rescale{explain=true}" --split-input-file --verify-diagnostics

!q = !quant.uniform<i8:f32, 0.5:3>

// Nothing quantized, and what is in the table on integers already.
func.func @plain(%x: tensor<4xf32>, %i: tensor<4xi32>) -> (tensor<4xf32>, tensor<4xi32>) {
  %y = stablehlo.add %x, %x : tensor<4xf32>
  %j = stablehlo.maximum %i, %i : tensor<4xi32>
  return %y, %j : tensor<4xf32>, tensor<4xi32>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>

func.func @other_operations(%q: tensor<4x!q>) -> tensor<4x!q> {
  // expected-remark @+1 {{'stablehlo.negate' op is left alone: it is not one that this pass rescales}}
  %r = stablehlo.negate %q : tensor<4x!q>
  return %r : tensor<4x!q>
}

// -----

!q = !quant.uniform<i8:f32, 0.5:3>

func.func @body(%q: tensor<4x!q>, %i: tensor<!q>) -> tensor<!q> {
  // expected-remark @+1 {{'stablehlo.reduce' op is left alone: it is not one that this pass rescales}}
  %r = stablehlo.reduce(%q init: %i) across dimensions = [0] : (tensor<4x!q>, tensor<!q>) -> tensor<!q>
    reducer(%a: tensor<!q>, %b: tensor<!q>) {
      // expected-remark @+1 {{'stablehlo.add' op is left alone: it is in the body of 'stablehlo.reduce'}}
      %s = stablehlo.add %a, %b : tensor<!q>
      // expected-remark @+1 {{'stablehlo.return' op is left alone}}
      stablehlo.return %s : tensor<!q>
    }
  return %r : tensor<!q>
}

// -----

!wide = !quant.uniform<u32:f32, 0.5:3>

func.func @more_than_32_bits(%q: tensor<4x!wide>) -> tensor<4x!wide> {
  // expected-remark @+1 {{'stablehlo.abs' op is left alone: '!quant.uniform<u32:f32, 5.000000e-01:3>' less its zero point needs more than 32 bits}}
  %r = stablehlo.abs %q : tensor<4x!wide>
  return %r : tensor<4x!wide>
}

// -----

!coarse = !quant.uniform<i8:f32, 1.0e6>
!fine = !quant.uniform<i8:f32, 1.0e-6>

func.func @factor(%q: tensor<4x!coarse>) -> tensor<4x!fine> {
  // expected-remark @+1 {{'stablehlo.abs' op is left alone: a factor of 1e+12 between its scales is more than a multiplier of 31 bits and a shift of 2 can be}}
  %r = stablehlo.abs %q : (tensor<4x!coarse>) -> tensor<4x!fine>
  return %r : tensor<4x!fine>
}
