// RUN: subquant opt %s --passes lower-tosa-rescale --split-input-file | filecheck %s

// One multiplier and shift: constants of the body.
// CHECK-LABEL: func.func @per_tensor(
// CHECK: linalg.generic {{.+}} ins(%{{.+}} : tensor<4xi32>) outs(%{{.+}} : tensor<4xi8>) {
// CHECK: ^bb0(%[[X:[^:]+]]: i32, %{{.+}}: i8):
// CHECK: %[[WIDE:.+]] = arith.extsi %[[X]] : i32 to i64
// CHECK: arith.muli
// CHECK: arith.shrsi
// CHECK: arith.minsi
// CHECK: arith.maxsi
// CHECK: %[[Y:.+]] = arith.trunci %{{.+}} : i64 to i8
// CHECK: linalg.yield %[[Y]] : i8
func.func @per_tensor(%x: tensor<4xi32>) -> tensor<4xi8> {
  %m = "tosa.const"() <{values = dense<1073741824> : tensor<1xi32>}> : () -> tensor<1xi32>
  %s = "tosa.const"() <{values = dense<30> : tensor<1xi8>}> : () -> tensor<1xi8>
  %xz = "tosa.const"() <{values = dense<0> : tensor<1xi32>}> : () -> tensor<1xi32>
  %yz = "tosa.const"() <{values = dense<-128> : tensor<1xi8>}> : () -> tensor<1xi8>
  %y = tosa.rescale %x, %m, %s, %xz, %yz {input_unsigned = false, output_unsigned = false, per_channel = false, rounding_mode = SINGLE_ROUND, scale32 = true} : (tensor<4xi32>, tensor<1xi32>, tensor<1xi8>, tensor<1xi32>, tensor<1xi8>) -> tensor<4xi8>
  return %y : tensor<4xi8>
}

// -----

// One for each index of the last axis: further inputs of the loop.
// CHECK: #[[ID:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK: #[[LAST:.+]] = affine_map<(d0, d1) -> (d1)>
// CHECK-LABEL: func.func @per_channel(
// CHECK-SAME: %[[X:[^:]+]]: tensor<?x2xi32>)
// CHECK: %[[M:.+]] = arith.constant dense<[1073741824, 1518500250]> : tensor<2xi32>
// CHECK: %[[S:.+]] = arith.constant dense<[30, 40]> : tensor<2xi32>
// CHECK: %[[DIM:.+]] = tensor.dim %[[X]]
// CHECK: %[[EMPTY:.+]] = tensor.empty(%[[DIM]]) : tensor<?x2xi8>
// CHECK: linalg.generic {indexing_maps = [#[[ID]], #[[LAST]], #[[LAST]], #[[ID]]], iterator_types = ["parallel", "parallel"]} ins(%[[X]], %[[M]], %[[S]] : tensor<?x2xi32>, tensor<2xi32>, tensor<2xi32>) outs(%[[EMPTY]] : tensor<?x2xi8>)
// Double rounding: 2**30 with the sign of the value, for shifts above 31.
// CHECK: %[[LARGE:.+]] = arith.cmpi sgt
// CHECK: %[[NUDGE:.+]] = arith.select %{{.+}}, %{{.+}}, %{{.+}} : i64
// CHECK: arith.select %[[LARGE]], %[[NUDGE]], %{{.+}} : i64
func.func @per_channel(%x: tensor<?x2xi32>) -> tensor<?x2xi8> {
  %m = "tosa.const"() <{values = dense<[1073741824, 1518500250]> : tensor<2xi32>}> : () -> tensor<2xi32>
  %s = "tosa.const"() <{values = dense<[30, 40]> : tensor<2xi8>}> : () -> tensor<2xi8>
  %xz = "tosa.const"() <{values = dense<0> : tensor<1xi32>}> : () -> tensor<1xi32>
  %yz = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
  %y = tosa.rescale %x, %m, %s, %xz, %yz {input_unsigned = false, output_unsigned = false, per_channel = true, rounding_mode = DOUBLE_ROUND, scale32 = true} : (tensor<?x2xi32>, tensor<2xi32>, tensor<2xi8>, tensor<1xi32>, tensor<1xi8>) -> tensor<?x2xi8>
  return %y : tensor<?x2xi8>
}

// -----

// Unsigned values, and their zero points, are extended as such; what is no constant is an input.
// CHECK-LABEL: func.func @unsigned(
// CHECK: ^bb0(%[[X:[^:]+]]: i8, %[[ZERO_POINT:[^:]+]]: i8, %{{.+}}: i8):
// CHECK: arith.extui %[[X]] : i8 to i64
// CHECK: arith.extui %[[ZERO_POINT]] : i8 to i64
func.func @unsigned(%x: tensor<4xi8>, %xz: tensor<1xi8>) -> tensor<4xi8> {
  %m = "tosa.const"() <{values = dense<16384> : tensor<1xi16>}> : () -> tensor<1xi16>
  %s = "tosa.const"() <{values = dense<14> : tensor<1xi8>}> : () -> tensor<1xi8>
  %yz = "tosa.const"() <{values = dense<-128> : tensor<1xi8>}> : () -> tensor<1xi8>
  %y = tosa.rescale %x, %m, %s, %xz, %yz {input_unsigned = true, output_unsigned = false, per_channel = false, rounding_mode = INEXACT_ROUND, scale32 = false} : (tensor<4xi8>, tensor<1xi16>, tensor<1xi8>, tensor<1xi8>, tensor<1xi8>) -> tensor<4xi8>
  return %y : tensor<4xi8>
}
