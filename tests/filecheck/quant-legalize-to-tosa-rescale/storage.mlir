// RUN: subquant opt %s --passes quant-legalize-to-tosa-rescale --split-input-file | filecheck %s

!x = !quant.uniform<i8:f32, 0.25:-1>
!y = !quant.uniform<i8:f32, 0.75:-2>
!z = !quant.uniform<i8:f32, 1.5:-3>

// The operands to 2**20 steps of 2 * 0.75, the sum from there.
// CHECK-LABEL: func.func @add(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4x!quant{{[^,]+, [^,]+}}, %[[Y:[^:]+]]: tensor
// CHECK-NEXT: %[[XS:.+]] = "subquant.scast"(%[[X]])
// CHECK-NEXT: %[[M1:.+]] = "tosa.const"() <{values = dense<1431655765> : tensor<1xi32>}>
// CHECK-NEXT: %[[K1:.+]] = "tosa.const"() <{values = dense<13> : tensor<1xi8>}>
// CHECK-NEXT: %[[Z1:.+]] = "tosa.const"() <{values = dense<-1> : tensor<1xi8>}>
// CHECK-NEXT: %[[N1:.+]] = "tosa.const"() <{values = dense<0> : tensor<1xi32>}>
// CHECK-NEXT: %[[A:.+]] = tosa.rescale %[[XS]], %[[M1]], %[[K1]], %[[Z1]], %[[N1]] {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : {{.*}} -> tensor<4xi32>
// CHECK-NEXT: %[[YS:.+]] = "subquant.scast"(%[[Y]])
// CHECK-NEXT: %[[M2:.+]] = "tosa.const"() <{values = dense<1073741824> : tensor<1xi32>}>
// CHECK-NEXT: %[[K2:.+]] = "tosa.const"() <{values = dense<11> : tensor<1xi8>}>
// CHECK: %[[B:.+]] = tosa.rescale %[[YS]], %[[M2]], %[[K2]]
// CHECK-NEXT: %[[S:.+]] = stablehlo.add %[[A]], %[[B]] : tensor<4xi32>
// CHECK-NEXT: %[[M3:.+]] = "tosa.const"() <{values = dense<1073741824> : tensor<1xi32>}>
// CHECK-NEXT: %[[K3:.+]] = "tosa.const"() <{values = dense<50> : tensor<1xi8>}>
// CHECK-NEXT: %[[N3:.+]] = "tosa.const"() <{values = dense<0> : tensor<1xi32>}>
// CHECK-NEXT: %[[Z3:.+]] = "tosa.const"() <{values = dense<-3> : tensor<1xi8>}>
// CHECK-NEXT: %[[RS:.+]] = tosa.rescale %[[S]], %[[M3]], %[[K3]], %[[N3]], %[[Z3]] {{.*}} -> tensor<4xi8>
// CHECK-NEXT: %[[R:.+]] = "subquant.scast"(%[[RS]])
// CHECK-NEXT: return %[[R]] : tensor<4x!quant.uniform<i8:f32, 1.500000e+00:-3>>
func.func @add(%x: tensor<4x!x>, %y: tensor<4x!y>) -> tensor<4x!z> {
  %r = stablehlo.add %x, %y : (tensor<4x!x>, tensor<4x!y>) -> tensor<4x!z>
  return %r : tensor<4x!z>
}

// -----

!x = !quant.uniform<u8:f32, 0.5:200>

// Both flags, and the zero point 200 as the bits of an i8.
// CHECK-LABEL: func.func @unsigned(
// CHECK: "tosa.const"() <{values = dense<-56> : tensor<1xi8>}>
// CHECK: tosa.rescale {{.*}} {input_unsigned = true, output_unsigned = false,
// CHECK-NEXT: stablehlo.abs
// CHECK: "tosa.const"() <{values = dense<-56> : tensor<1xi8>}>
// CHECK: tosa.rescale {{.*}} {input_unsigned = false, output_unsigned = true,
func.func @unsigned(%x: tensor<4x!x>) -> tensor<4x!x> {
  %r = stablehlo.abs %x : tensor<4x!x>
  return %r : tensor<4x!x>
}

// -----

!x = !quant.uniform<i8<-127:127>:f32, 0.5:2>

// TOSA has no ranges: rescale to i32, clamp less the zero point, add it.
// CHECK-LABEL: func.func @narrow_range(
// CHECK: %[[S:.+]] = stablehlo.abs %{{.+}} : tensor<4xi32>
// CHECK: %[[R:.+]] = tosa.rescale %[[S]], {{.*}} -> tensor<4xi32>
// CHECK-NEXT: %[[L:.+]] = stablehlo.constant dense<-129> : tensor<4xi32>
// CHECK-NEXT: %[[RL:.+]] = stablehlo.maximum %[[R]], %[[L]] : tensor<4xi32>
// CHECK-NEXT: %[[G:.+]] = stablehlo.constant dense<125> : tensor<4xi32>
// CHECK-NEXT: %[[RG:.+]] = stablehlo.minimum %[[RL]], %[[G]] : tensor<4xi32>
// CHECK-NEXT: %[[Z:.+]] = stablehlo.constant dense<2> : tensor<4xi32>
// CHECK-NEXT: %[[RZ:.+]] = stablehlo.add %[[RG]], %[[Z]] : tensor<4xi32>
// CHECK-NEXT: %{{.+}} = stablehlo.convert %[[RZ]] : (tensor<4xi32>) -> tensor<4xi8>
func.func @narrow_range(%x: tensor<4x!x>) -> tensor<4x!x> {
  %r = stablehlo.abs %x : tensor<4x!x>
  return %r : tensor<4x!x>
}

// -----

!x = !quant.uniform<i4:f32, 0.5:2>

// TOSA has no i4 here: the difference is taken outside, and 1 is no rescale.
// CHECK-LABEL: func.func @four_bits(
// CHECK: stablehlo.convert %{{.+}} : (tensor<4xi4>) -> tensor<4xi32>
// CHECK: %[[A:.+]] = stablehlo.subtract
// CHECK: %[[B:.+]] = stablehlo.subtract
// CHECK-NEXT: stablehlo.multiply %[[A]], %[[B]] : tensor<4xi32>
// CHECK: tosa.rescale {{.*}} -> tensor<4xi32>
// CHECK: stablehlo.convert %{{.+}} : (tensor<4xi32>) -> tensor<4xi4>
func.func @four_bits(%x: tensor<4x!x>) -> tensor<4x!x> {
  %r = stablehlo.multiply %x, %x : tensor<4x!x>
  return %r : tensor<4x!x>
}

// -----

!x = !quant.uniform<i8:f32:0, {0.5,1.0}>
!y = !quant.uniform<i8:f32:0, {1.0,0.25}>

// Channels are the last axis of TOSA.
// CHECK-LABEL: func.func @per_axis(
// CHECK-SAME: %[[X:[^:]+]]: tensor<2x3x
// CHECK: %[[T:.+]] = stablehlo.transpose %{{.+}}, dims = [1, 0] : (tensor<2x3xi8>) -> tensor<3x2xi8>
// CHECK-NEXT: %[[M:.+]] = "tosa.const"() <{values = dense<1073741824> : tensor<2xi32>}>
// CHECK-NEXT: %[[K:.+]] = "tosa.const"() <{values = dense<[12, 11]> : tensor<2xi8>}>
// CHECK: %[[R:.+]] = tosa.rescale %[[T]], %[[M]], %[[K]], {{.*}}per_channel = true{{.*}} -> tensor<3x2xi32>
// CHECK-NEXT: stablehlo.transpose %[[R]], dims = [1, 0] : (tensor<3x2xi32>) -> tensor<2x3xi32>
func.func @per_axis(%x: tensor<2x3x!x>, %y: tensor<2x3x!y>) -> tensor<2x3x!y> {
  %r = stablehlo.add %x, %y : (tensor<2x3x!x>, tensor<2x3x!y>) -> tensor<2x3x!y>
  return %r : tensor<2x3x!y>
}

// -----

!x = !quant.uniform<u16:f32, 0.5>

// The product of unsigned 16 bits is taken in 64; beyond 32 bits it saturates the result anyway.
// CHECK-LABEL: func.func @sixteen_bits(
// CHECK: %[[P:.+]] = stablehlo.multiply %{{.+}}, %{{.+}} : tensor<?xi64>
// CHECK: stablehlo.maximum %[[P]]
// CHECK: stablehlo.convert %{{.+}} : (tensor<?xi64>) -> tensor<?xi32>
// CHECK: tosa.rescale {{.*}} -> tensor<?xi16>
func.func @sixteen_bits(%x: tensor<?x!x>) -> tensor<?x!x> {
  %r = stablehlo.multiply %x, %x : tensor<?x!x>
  return %r : tensor<?x!x>
}
