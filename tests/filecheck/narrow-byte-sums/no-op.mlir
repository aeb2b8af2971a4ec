// RUN: subquant opt %s --passes narrow-byte-sums | filecheck %s

// Sums that lie on ties, which are rounded to even numbers: no shift does that.
// CHECK-LABEL: func.func @to_even(
// CHECK: stablehlo.select
func.func @to_even(%x: tensor<4xi8>, %y: tensor<4xi8>) -> tensor<4xi8> {
  %one = stablehlo.constant dense<1> : tensor<4xi64>
  %zero = stablehlo.constant dense<0> : tensor<4xi64>
  %0 = stablehlo.convert %x : (tensor<4xi8>) -> tensor<4xi64>
  %1 = stablehlo.convert %y : (tensor<4xi8>) -> tensor<4xi64>
  %2 = stablehlo.add %0, %1 : tensor<4xi64>
  %3 = stablehlo.shift_right_arithmetic %2, %one : tensor<4xi64>
  %4 = stablehlo.and %2, %one : tensor<4xi64>
  %5 = stablehlo.and %3, %one : tensor<4xi64>
  %6 = stablehlo.and %4, %5 : tensor<4xi64>
  %7 = stablehlo.compare NE, %6, %zero : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi1>
  %8 = stablehlo.select %7, %one, %zero : tensor<4xi1>, tensor<4xi64>
  %9 = stablehlo.add %3, %8 : tensor<4xi64>
  %10 = stablehlo.convert %9 : (tensor<4xi64>) -> tensor<4xi8>
  return %10 : tensor<4xi8>
}

// Few operations; and a value that is read elsewhere.
// CHECK-LABEL: func.func @few(
// CHECK-NOT: stablehlo.constant
// CHECK: return
func.func @few(%x: tensor<4xi8>, %y: tensor<4xi8>) -> tensor<4xi8> {
  %0 = stablehlo.convert %x : (tensor<4xi8>) -> tensor<4xi32>
  %1 = stablehlo.convert %y : (tensor<4xi8>) -> tensor<4xi32>
  %2 = stablehlo.add %0, %1 : tensor<4xi32>
  %3 = stablehlo.convert %2 : (tensor<4xi32>) -> tensor<4xi8>
  return %3 : tensor<4xi8>
}

// CHECK-LABEL: func.func @three(
// CHECK: stablehlo.multiply {{.+}} : tensor<4xi64>
func.func @three(%x: tensor<4xi8>, %y: tensor<4xi8>, %z: tensor<4xi8>) -> tensor<4xi8> {
  %m = stablehlo.constant dense<1310720123> : tensor<4xi64>
  %shift = stablehlo.constant dense<33> : tensor<4xi64>
  %0 = stablehlo.convert %x : (tensor<4xi8>) -> tensor<4xi64>
  %1 = stablehlo.convert %y : (tensor<4xi8>) -> tensor<4xi64>
  %2 = stablehlo.convert %z : (tensor<4xi8>) -> tensor<4xi64>
  %3 = stablehlo.add %0, %1 : tensor<4xi64>
  %4 = stablehlo.add %3, %2 : tensor<4xi64>
  %5 = stablehlo.multiply %4, %m : tensor<4xi64>
  %6 = stablehlo.shift_right_arithmetic %5, %shift : tensor<4xi64>
  %7 = stablehlo.convert %6 : (tensor<4xi64>) -> tensor<4xi8>
  return %7 : tensor<4xi8>
}

// A product of bytes is no line.
// CHECK-LABEL: func.func @product(
// CHECK: stablehlo.multiply {{.+}} : tensor<4xi64>
func.func @product(%x: tensor<4xi8>, %y: tensor<4xi8>) -> tensor<4xi8> {
  %m = stablehlo.constant dense<1310720123> : tensor<4xi64>
  %shift = stablehlo.constant dense<40> : tensor<4xi64>
  %0 = stablehlo.convert %x : (tensor<4xi8>) -> tensor<4xi64>
  %1 = stablehlo.convert %y : (tensor<4xi8>) -> tensor<4xi64>
  %2 = stablehlo.multiply %0, %1 : tensor<4xi64>
  %3 = stablehlo.multiply %2, %m : tensor<4xi64>
  %4 = stablehlo.shift_right_arithmetic %3, %shift : tensor<4xi64>
  %5 = stablehlo.convert %4 : (tensor<4xi64>) -> tensor<4xi8>
  return %5 : tensor<4xi8>
}

// Types that say that they have no sign are read otherwise by each operation.
// CHECK-LABEL: func.func @of_unsigned_types(
// CHECK: stablehlo.multiply {{.+}} : tensor<4xi64>
func.func @of_unsigned_types(%x: tensor<4xui8>, %y: tensor<4xui8>) -> tensor<4xi8> {
  %one = stablehlo.constant dense<1> : tensor<4xi64>
  %m = stablehlo.constant dense<1310720123> : tensor<4xi64>
  %shift = stablehlo.constant dense<33> : tensor<4xi64>
  %0 = stablehlo.convert %x : (tensor<4xui8>) -> tensor<4xi64>
  %1 = stablehlo.convert %y : (tensor<4xui8>) -> tensor<4xi64>
  %2 = stablehlo.add %0, %1 : tensor<4xi64>
  %3 = stablehlo.multiply %2, %m : tensor<4xi64>
  %4 = stablehlo.shift_right_arithmetic %3, %shift : tensor<4xi64>
  %5 = stablehlo.add %4, %4 : tensor<4xi64>
  %6 = stablehlo.shift_right_arithmetic %5, %one : tensor<4xi64>
  %7 = stablehlo.convert %6 : (tensor<4xi64>) -> tensor<4xi8>
  return %7 : tensor<4xi8>
}
