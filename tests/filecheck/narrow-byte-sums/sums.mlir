// RUN: subquant opt %s --passes narrow-byte-sums | filecheck %s

// Fixed-point multipliers of 64 bits.
// CHECK-LABEL: func.func @fixed_point(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xi8>, %[[Y:[^:]+]]: tensor<4xi8>)
// CHECK-NOT: i64
// CHECK: stablehlo.multiply {{.+}} : tensor<4xi32>
// CHECK: stablehlo.multiply {{.+}} : tensor<4xi32>
// CHECK: stablehlo.shift_right_arithmetic
// CHECK-NOT: stablehlo.shift_right_arithmetic
// CHECK: stablehlo.convert {{.+}} : (tensor<4xi32>) -> tensor<4xi8>
// CHECK-NEXT: return
func.func @fixed_point(%x: tensor<4xi8>, %y: tensor<4xi8>) -> tensor<4xi8> {
  %mx = stablehlo.constant dense<1310720123> : tensor<4xi64>
  %my = stablehlo.constant dense<1971322880> : tensor<4xi64>
  %half = stablehlo.constant dense<1073741824> : tensor<4xi64>
  %shift = stablehlo.constant dense<31> : tensor<4xi64>
  %low = stablehlo.constant dense<-128> : tensor<4xi64>
  %high = stablehlo.constant dense<127> : tensor<4xi64>
  %0 = stablehlo.convert %x : (tensor<4xi8>) -> tensor<4xi64>
  %1 = stablehlo.multiply %0, %mx : tensor<4xi64>
  %2 = stablehlo.convert %y : (tensor<4xi8>) -> tensor<4xi64>
  %3 = stablehlo.multiply %2, %my : tensor<4xi64>
  %4 = stablehlo.add %1, %3 : tensor<4xi64>
  %5 = stablehlo.add %4, %half : tensor<4xi64>
  %6 = stablehlo.shift_right_arithmetic %5, %shift : tensor<4xi64>
  %7 = stablehlo.clamp %low, %6, %high : tensor<4xi64>
  %8 = stablehlo.convert %7 : (tensor<4xi64>) -> tensor<4xi8>
  return %8 : tensor<4xi8>
}

// Bytes without a sign; what else is computed of them is not touched.
// CHECK-LABEL: func.func @unsigned(
// CHECK-NOT: i64
// CHECK: stablehlo.convert %arg0 : (tensor<2x3xi8>) -> tensor<2x3xi32>
// CHECK: stablehlo.and {{.+}} : tensor<2x3xi32>
// CHECK-NOT: i64
// CHECK: return
func.func @unsigned(%x: tensor<2x3xi8>, %y: tensor<2x3xi8>) -> tensor<2x3xi8> {
  %mask = stablehlo.constant dense<255> : tensor<2x3xi64>
  %m = stablehlo.constant dense<1234567890> : tensor<2x3xi64>
  %shift = stablehlo.constant dense<31> : tensor<2x3xi64>
  %high = stablehlo.constant dense<255> : tensor<2x3xi64>
  %0 = stablehlo.convert %x : (tensor<2x3xi8>) -> tensor<2x3xi64>
  %1 = stablehlo.convert %y : (tensor<2x3xi8>) -> tensor<2x3xi64>
  %2 = stablehlo.and %0, %mask : tensor<2x3xi64>
  %3 = stablehlo.and %1, %mask : tensor<2x3xi64>
  %4 = stablehlo.multiply %2, %m : tensor<2x3xi64>
  %5 = stablehlo.multiply %3, %m : tensor<2x3xi64>
  %6 = stablehlo.add %4, %5 : tensor<2x3xi64>
  %7 = stablehlo.shift_right_arithmetic %6, %shift : tensor<2x3xi64>
  %8 = stablehlo.minimum %7, %high : tensor<2x3xi64>
  %9 = stablehlo.convert %8 : (tensor<2x3xi64>) -> tensor<2x3xi8>
  return %9 : tensor<2x3xi8>
}

// Numbers that are broadcast, even twice, and constants of arith.
// CHECK-LABEL: func.func @broadcast(
// CHECK-NOT: i64
// CHECK: stablehlo.shift_right_arithmetic {{.+}} : tensor<2x3xi32>
// CHECK-NOT: i64
// CHECK: return
func.func @broadcast(%x: tensor<2x3xi8>, %y: tensor<2x3xi8>) -> tensor<2x3xi8> {
  %one = arith.constant dense<1234567890> : tensor<i64>
  %line = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<i64>) -> tensor<3xi64>
  %m = stablehlo.broadcast_in_dim %line, dims = [1] : (tensor<3xi64>) -> tensor<2x3xi64>
  %shift = arith.constant dense<32> : tensor<2x3xi64>
  %0 = stablehlo.convert %x : (tensor<2x3xi8>) -> tensor<2x3xi64>
  %1 = stablehlo.convert %y : (tensor<2x3xi8>) -> tensor<2x3xi64>
  %2 = stablehlo.multiply %0, %m : tensor<2x3xi64>
  %3 = stablehlo.multiply %1, %m : tensor<2x3xi64>
  %4 = stablehlo.add %2, %3 : tensor<2x3xi64>
  %5 = stablehlo.shift_right_arithmetic %4, %shift : tensor<2x3xi64>
  %low = stablehlo.constant dense<-128> : tensor<2x3xi64>
  %high = stablehlo.constant dense<127> : tensor<2x3xi64>
  %6 = stablehlo.clamp %low, %5, %high : tensor<2x3xi64>
  %7 = stablehlo.convert %6 : (tensor<2x3xi64>) -> tensor<2x3xi8>
  return %7 : tensor<2x3xi8>
}
