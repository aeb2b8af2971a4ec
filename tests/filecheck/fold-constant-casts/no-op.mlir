// RUN: subquant opt %s --passes fold-constant-casts | filecheck %s

!q = !quant.uniform<i8:f32, 0.5:3>
!r = !quant.uniform<i8:f32, 0.25>
!b = !quant.uniform<i8:f32:0, {1.0, 2.0}>

// CHECK-LABEL: func.func @argument
// CHECK-NEXT: quant.qcast
// CHECK-NEXT: quant.dcast
func.func @argument(%x: tensor<2xf32>) -> tensor<2xf32> {
  %q = quant.qcast %x : tensor<2xf32> to tensor<2x!q>
  %r = quant.dcast %q : tensor<2x!q> to tensor<2xf32>
  return %r : tensor<2xf32>
}

// A scalar.
// CHECK-LABEL: func.func @scalar
// CHECK: quant.qcast
func.func @scalar() -> !q {
  %c = arith.constant 1.5 : f32
  %q = quant.qcast %c : f32 to !q
  return %q : !q
}

// Other parameters.
// CHECK-LABEL: func.func @between
// CHECK: stablehlo.uniform_quantize
func.func @between() -> tensor<2x!r> {
  %c = stablehlo.constant dense<[1, 2]> : tensor<2xi8>
  %q = quant.scast %c : tensor<2xi8> to tensor<2x!q>
  %r = stablehlo.uniform_quantize %q : (tensor<2x!q>) -> tensor<2x!r>
  return %r : tensor<2x!r>
}

// More than 16 KiB of reals.
// CHECK-LABEL: func.func @many_reals
// CHECK: quant.dcast
func.func @many_reals() -> tensor<4097xf32> {
  %c = stablehlo.constant dense<7> : tensor<4097xi8>
  %q = quant.scast %c : tensor<4097xi8> to tensor<4097x!q>
  %r = quant.dcast %q : tensor<4097x!q> to tensor<4097xf32>
  return %r : tensor<4097xf32>
}

// One number, which blocks would make more than 1 MiB of.
// CHECK-LABEL: func.func @splat
// CHECK: quant.qcast
func.func @splat() -> tensor<2x600000x!b> {
  %c = stablehlo.constant dense<7.0> : tensor<2x600000xf32>
  %q = quant.qcast %c : tensor<2x600000xf32> to tensor<2x600000x!b>
  return %q : tensor<2x600000x!b>
}
