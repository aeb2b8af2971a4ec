// RUN: subquant opt %s --passes correct-zero-points --split-input-file | filecheck %s
// RUN: subquant opt %s --passes "correct-zero-points{style=inside}" --split-input-file | filecheck %s --check-prefix INSIDE
// RUN: subquant opt %s --passes "correct-zero-points{style=mixed}" --split-input-file | filecheck %s --check-prefix MIXED

!x = !quant.uniform<i8:f32, 0.5:3>
!w = !quant.uniform<i8:f32, 0.25:-2>

// The sums of rows and columns, each times the zero point of the other, and their product.
// CHECK-LABEL: func.func @both(
// CHECK: %[[X:.+]] = "subquant.scast"(%arg0)
// CHECK: %[[W:.+]] = "subquant.scast"(%arg1)
// CHECK: %[[DOT:.+]] = stablehlo.dot_general %[[X]], %[[W]], contracting_dims = [1] x [0] : (tensor<2x8xi8>, tensor<8x4xi8>) -> tensor<2x4xi32>
// CHECK: stablehlo.reduce({{.+}}across dimensions = [1]
// CHECK: stablehlo.subtract %[[DOT]]
// CHECK: stablehlo.reduce({{.+}}across dimensions = [0]
// CHECK: stablehlo.constant dense<-48> : tensor<2x4xi32>
// CHECK: stablehlo.add
// CHECK-NOT: subquant.subtract_zero_point

// INSIDE-LABEL: func.func @both(
// INSIDE: stablehlo.subtract
// INSIDE: stablehlo.subtract
// INSIDE: stablehlo.dot_general {{.+}} : (tensor<2x8xi32>, tensor<8x4xi32>) -> tensor<2x4xi32>
// INSIDE-NEXT: return
func.func @both(%x: tensor<2x8x!x>, %w: tensor<8x4x!w>) -> tensor<2x4xi32> {
  %a = "subquant.subtract_zero_point"(%x) : (tensor<2x8x!x>) -> tensor<2x8xi32>
  %b = "subquant.subtract_zero_point"(%w) : (tensor<8x4x!w>) -> tensor<8x4xi32>
  %acc = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<2x8xi32>, tensor<8x4xi32>) -> tensor<2x4xi32>
  return %acc : tensor<2x4xi32>
}

// -----

!x = !quant.uniform<u8:f32, 0.5:131>
!w = !quant.uniform<i8:f32, 0.25>

// The sums of a constant are known: 3 * (1 + 2) and 3 * (3 - 5), and unsigned storage is shifted.
// CHECK-LABEL: func.func @constant(
// CHECK: stablehlo.xor
// CHECK: stablehlo.dot_general {{.+}} : (tensor<2x2xi8>, tensor<2x2xi8>) -> tensor<2x2xi32>
// CHECK: stablehlo.constant dense<[9, -6]> : tensor<2xi32>
// CHECK-NOT: stablehlo.reduce
// CHECK: stablehlo.subtract
func.func @constant(%x: tensor<2x2x!x>) -> tensor<2x2xi32> {
  %c = stablehlo.constant dense<[[1, 3], [2, -5]]> : tensor<2x2xi8>
  %w = "subquant.scast"(%c) : (tensor<2x2xi8>) -> tensor<2x2x!w>
  %a = "subquant.subtract_zero_point"(%x) : (tensor<2x2x!x>) -> tensor<2x2xi32>
  %b = "subquant.subtract_zero_point"(%w) : (tensor<2x2x!w>) -> tensor<2x2xi32>
  %acc = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<2x2xi32>, tensor<2x2xi32>) -> tensor<2x2xi32>
  return %acc : tensor<2x2xi32>
}

// -----

!x = !quant.uniform<i8:f32, 0.5:3>
!w = !quant.uniform<u8:f32, 0.25:130>

// Sums of unsigned constants, less the shift: 3 * (200 + 2 - 256) and 3 * (3 + 255 - 256).
// CHECK-LABEL: func.func @unsigned_constant(
// CHECK: stablehlo.constant dense<[-162, 6]> : tensor<2xi32>
func.func @unsigned_constant(%x: tensor<2x2x!x>) -> tensor<2x2xi32> {
  %c = stablehlo.constant dense<[[200, 3], [2, 255]]> : tensor<2x2xi8>
  %w = "subquant.scast"(%c) : (tensor<2x2xi8>) -> tensor<2x2x!w>
  %a = "subquant.subtract_zero_point"(%x) : (tensor<2x2x!x>) -> tensor<2x2xi32>
  %b = "subquant.subtract_zero_point"(%w) : (tensor<2x2x!w>) -> tensor<2x2xi32>
  %acc = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<2x2xi32>, tensor<2x2xi32>) -> tensor<2x2xi32>
  return %acc : tensor<2x2xi32>
}

// -----

!x = !quant.uniform<i8:f32, 0.5:3>
!w = !quant.uniform<i8:f32:3, {0.25, 0.5}>

// A convolution is padded with the zero point.
// CHECK-LABEL: func.func @convolution(
// CHECK: stablehlo.constant dense<3> : tensor<i8>
// CHECK: stablehlo.pad
// CHECK: stablehlo.convolution({{.+}}pad = {{\[\[}}0, 0], [0, 0]]
// CHECK: stablehlo.reduce({{.+}}across dimensions = [0, 1, 2]
func.func @convolution(%x: tensor<1x4x4x2x!x>, %w: tensor<3x3x2x2x!w>) -> tensor<1x4x4x2xi32> {
  %a = "subquant.subtract_zero_point"(%x) : (tensor<1x4x4x2x!x>) -> tensor<1x4x4x2xi32>
  %b = "subquant.subtract_zero_point"(%w) : (tensor<3x3x2x2x!w>) -> tensor<3x3x2x2xi32>
  %acc = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x4x4x2xi32>, tensor<3x3x2x2xi32>) -> tensor<1x4x4x2xi32>
  return %acc : tensor<1x4x4x2xi32>
}

// -----

!x = !quant.uniform<i8:f32, 0.5:3>
!w = !quant.uniform<i8:f32, 0.25>

// An axis without elements has none to cut.
// CHECK-LABEL: func.func @nothing_to_cut(
// CHECK: stablehlo.pad {{.+}}, low = [0, 0, 1, 0], high = [0, 0, 1, 0], interior = [0, 0, 0, 0] : (tensor<1x0x4x2xi8>, tensor<i8>) -> tensor<1x0x6x2xi8>
func.func @nothing_to_cut(%x: tensor<1x0x4x2x!x>, %w: tensor<3x3x2x2x!w>) -> tensor<1x0x4x2xi32> {
  %a = "subquant.subtract_zero_point"(%x) : (tensor<1x0x4x2x!x>) -> tensor<1x0x4x2xi32>
  %b = "subquant.subtract_zero_point"(%w) : (tensor<3x3x2x2x!w>) -> tensor<3x3x2x2xi32>
  %acc = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[-1, 0], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x0x4x2xi32>, tensor<3x3x2x2xi32>) -> tensor<1x0x4x2xi32>
  return %acc : tensor<1x0x4x2xi32>
}

// -----

!x = !quant.uniform<i8:f32, 0.5:3>
!w = !quant.uniform<i8:f32, 0.25>

// Padding that cuts more than there is cuts what there is: 2 elements, and 7 where 4 are dilated.
// CHECK-LABEL: func.func @more_than_there_is(
// CHECK: stablehlo.pad {{.+}}, low = [0, 0, 0, 0], high = [0, -2, -7, 0], interior = [0, 0, 1, 0] : (tensor<1x2x4x2xi8>, tensor<i8>) -> tensor<1x0x0x2xi8>
func.func @more_than_there_is(%x: tensor<1x2x4x2x!x>, %w: tensor<3x3x2x2x!w>) -> tensor<1x0x0x2xi32> {
  %a = "subquant.subtract_zero_point"(%x) : (tensor<1x2x4x2x!x>) -> tensor<1x2x4x2xi32>
  %b = "subquant.subtract_zero_point"(%w) : (tensor<3x3x2x2x!w>) -> tensor<3x3x2x2xi32>
  %acc = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[-3, 0], [0, -8]], lhs_dilate = [1, 2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x2x4x2xi32>, tensor<3x3x2x2xi32>) -> tensor<1x0x0x2xi32>
  return %acc : tensor<1x0x0x2xi32>
}

// -----

!x = !quant.uniform<u32:f32, 0.5:3>

// Where no contraction takes it, it is a subtraction, in a type that holds the difference.
// CHECK-LABEL: func.func @alone(
// CHECK: stablehlo.convert {{.+}} -> tensor<4xi64>
// CHECK: stablehlo.subtract {{.+}} : tensor<4xi64>
func.func @alone(%x: tensor<4x!x>) -> tensor<4xi64> {
  %a = "subquant.subtract_zero_point"(%x) : (tensor<4x!x>) -> tensor<4xi64>
  return %a : tensor<4xi64>
}

// -----

!x = !quant.uniform<i8:f32, 0.5:3>
!w = !quant.uniform<u8:f32, 0.25:128>

// Mixed: unsigned weights with the zero point in the middle have none when shifted.
// MIXED-LABEL: func.func @mixed(
// MIXED: stablehlo.subtract
// MIXED: stablehlo.xor
// MIXED: stablehlo.convert {{.+}} : (tensor<8x4xi8>) -> tensor<8x4xi32>
// MIXED-NEXT: stablehlo.dot_general
// MIXED-NEXT: return
func.func @mixed(%x: tensor<2x8x!x>, %w: tensor<8x4x!w>) -> tensor<2x4xi32> {
  %a = "subquant.subtract_zero_point"(%x) : (tensor<2x8x!x>) -> tensor<2x8xi32>
  %b = "subquant.subtract_zero_point"(%w) : (tensor<8x4x!w>) -> tensor<8x4xi32>
  %acc = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<2x8xi32>, tensor<8x4xi32>) -> tensor<2x4xi32>
  return %acc : tensor<2x4xi32>
}
