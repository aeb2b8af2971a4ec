// RUN: subquant opt %s --passes tosa-rescale-legalize-to-stablehlo --split-input-file | filecheck %s

// CHECK-LABEL: func.func @single(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xi8>) -> tensor<4xi32> {
// CHECK-NEXT: %[[V:.+]] = stablehlo.convert %[[X]] : (tensor<4xi8>) -> tensor<4xi64>
// CHECK-NEXT: %[[Z:.+]] = stablehlo.constant dense<-1> : tensor<4xi64>
// CHECK-NEXT: %[[D:.+]] = stablehlo.subtract %[[V]], %[[Z]] : tensor<4xi64>
// CHECK-NEXT: %[[M:.+]] = stablehlo.constant dense<1431655765> : tensor<4xi64>
// CHECK-NEXT: %[[P:.+]] = stablehlo.multiply %[[D]], %[[M]] : tensor<4xi64>
// CHECK-NEXT: %[[H:.+]] = stablehlo.constant dense<4096> : tensor<4xi64>
// CHECK-NEXT: %[[T:.+]] = stablehlo.add %[[P]], %[[H]] : tensor<4xi64>
// CHECK-NEXT: %[[K:.+]] = stablehlo.constant dense<13> : tensor<4xi64>
// CHECK-NEXT: %[[S:.+]] = stablehlo.shift_right_arithmetic %[[T]], %[[K]] : tensor<4xi64>
// CHECK: stablehlo.minimum
// CHECK: %[[C:.+]] = stablehlo.maximum
// CHECK-NEXT: %[[R:.+]] = stablehlo.convert %[[C]] : (tensor<4xi64>) -> tensor<4xi32>
// CHECK-NEXT: return %[[R]]
func.func @single(%x: tensor<4xi8>) -> tensor<4xi32> {
  %m = "tosa.const"() <{values = dense<1431655765> : tensor<1xi32>}> : () -> tensor<1xi32>
  %k = "tosa.const"() <{values = dense<13> : tensor<1xi8>}> : () -> tensor<1xi8>
  %xz = "tosa.const"() <{values = dense<-1> : tensor<1xi8>}> : () -> tensor<1xi8>
  %rz = "tosa.const"() <{values = dense<0> : tensor<1xi32>}> : () -> tensor<1xi32>
  %r = tosa.rescale %x, %m, %k, %xz, %rz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<4xi8>, tensor<1xi32>, tensor<1xi8>, tensor<1xi8>, tensor<1xi32>) -> tensor<4xi32>
  return %r : tensor<4xi32>
}

// -----

// 2**30 with the sign of the value, for the channel whose shift is more than 31.
// CHECK-LABEL: func.func @double_per_channel(
// CHECK: %[[SIGN:.+]] = stablehlo.compare GE,
// CHECK-NEXT: stablehlo.constant dense<1073741824> : tensor<i64>
// CHECK-NEXT: %[[UP:.+]] = stablehlo.dynamic_broadcast_in_dim
// CHECK-NEXT: stablehlo.constant dense<-1073741824> : tensor<i64>
// CHECK-NEXT: %[[DOWN:.+]] = stablehlo.dynamic_broadcast_in_dim
// CHECK-NEXT: %[[NUDGE:.+]] = stablehlo.select %[[SIGN]], %[[UP]], %[[DOWN]] : tensor<?x2xi1>, tensor<?x2xi64>
// CHECK-NEXT: stablehlo.constant dense<[true, false]> : tensor<2xi1>
// CHECK-NEXT: %[[LARGE:.+]] = stablehlo.dynamic_broadcast_in_dim
// CHECK-NEXT: %[[SOME:.+]] = stablehlo.select %[[LARGE]], %[[NUDGE]],
// CHECK: stablehlo.add %{{.+}}, %[[SOME]] : tensor<?x2xi64>
// CHECK: stablehlo.convert %{{.+}} : (tensor<?x2xi64>) -> tensor<?x2xi8>
func.func @double_per_channel(%x: tensor<?x2xi32>) -> tensor<?x2xi8> {
  %m = "tosa.const"() <{values = dense<[1431655765, 1073741824]> : tensor<2xi32>}> : () -> tensor<2xi32>
  %k = "tosa.const"() <{values = dense<[40, 20]> : tensor<2xi8>}> : () -> tensor<2xi8>
  %xz = "tosa.const"() <{values = dense<0> : tensor<1xi32>}> : () -> tensor<1xi32>
  %rz = "tosa.const"() <{values = dense<7> : tensor<1xi8>}> : () -> tensor<1xi8>
  %r = tosa.rescale %x, %m, %k, %xz, %rz {input_unsigned = false, output_unsigned = false, per_channel = true, rounding_mode = DOUBLE_ROUND, scale32 = true} : (tensor<?x2xi32>, tensor<2xi32>, tensor<2xi8>, tensor<1xi32>, tensor<1xi8>) -> tensor<?x2xi8>
  return %r : tensor<?x2xi8>
}

// -----

!n = !quant.uniform<u8<1:254>:f32, 0.5:128>

// A quantized result says its own sign and range.
// CHECK-LABEL: func.func @narrow_range(
// CHECK: stablehlo.constant dense<128> : tensor<4xi64>
// CHECK: stablehlo.constant dense<254> : tensor<4xi64>
// CHECK: stablehlo.constant dense<1> : tensor<4xi64>
// CHECK: %[[R:.+]] = stablehlo.convert %{{.+}} : (tensor<4xi64>) -> tensor<4xi8>
// CHECK-NEXT: "subquant.scast"(%[[R]]) : (tensor<4xi8>) -> tensor<4x!quant.uniform<u8<1:254>:f32, 5.000000e-01:128>>
func.func @narrow_range(%x: tensor<4xi32>) -> tensor<4x!n> {
  %m = "tosa.const"() <{values = dense<16384> : tensor<1xi16>}> : () -> tensor<1xi16>
  %k = "tosa.const"() <{values = dense<20> : tensor<1xi8>}> : () -> tensor<1xi8>
  %xz = "tosa.const"() <{values = dense<0> : tensor<1xi32>}> : () -> tensor<1xi32>
  %rz = "tosa.const"() <{values = dense<-128> : tensor<1xi8>}> : () -> tensor<1xi8>
  %r = tosa.rescale %x, %m, %k, %xz, %rz {input_unsigned = false, output_unsigned = true, per_channel = false, rounding_mode = INEXACT_ROUND, scale32 = false} : (tensor<4xi32>, tensor<1xi16>, tensor<1xi8>, tensor<1xi32>, tensor<1xi8>) -> tensor<4x!n>
  return %r : tensor<4x!n>
}

// -----

// Multiplier, shift and zero points that are not constants.
// CHECK-LABEL: func.func @values(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xi8>, %[[M:[^:]+]]: tensor<1xi32>, %[[K:[^:]+]]: tensor<1xi8>, %[[Z:[^:]+]]: tensor<1xi8>
// CHECK: stablehlo.convert %[[M]] : (tensor<1xi32>) -> tensor<1xi64>
// CHECK: stablehlo.convert %[[K]] : (tensor<1xi8>) -> tensor<1xi64>
// CHECK: stablehlo.shift_right_arithmetic
func.func @values(%x: tensor<4xi8>, %m: tensor<1xi32>, %k: tensor<1xi8>, %z: tensor<1xi8>) -> tensor<4xi8> {
  %r = tosa.rescale %x, %m, %k, %z, %z {input_unsigned = true, output_unsigned = false, per_channel = false, rounding_mode = DOUBLE_ROUND, scale32 = true} : (tensor<4xi8>, tensor<1xi32>, tensor<1xi8>, tensor<1xi8>, tensor<1xi8>) -> tensor<4xi8>
  return %r : tensor<4xi8>
}
