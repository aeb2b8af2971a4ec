// RUN: subquant opt %s --passes isolate-contraction-operands | filecheck %s

#x = affine_map<(i, j, k, l) -> (i + k, l)>
#w = affine_map<(i, j, k, l) -> (k, l, j)>
#y = affine_map<(i, j, k, l) -> (i, j)>

// Loops that give each element a scalar become fills, which IREE copies into each dispatch.
// CHECK-LABEL: func.func @convolutions
// CHECK: %[[ZERO:.+]] = arith.constant 0 : i32
// CHECK: %[[FILL:.+]] = linalg.fill ins(%[[ZERO]] : i32)
// CHECK: linalg.generic {{.+}} outs(%[[FILL]] : tensor<6x4xi32>)
// CHECK: linalg.generic {{.+}} outs(%[[FILL]] : tensor<6x4xi32>)
// CHECK: %[[OTHER:.+]] = linalg.fill ins(%[[ZERO]] : i32)
// CHECK: linalg.generic {{.+}} outs(%[[OTHER]] : tensor<6x5xi32>)
// CHECK-NOT: _barrier
// CHECK-NOT: _barrier
func.func @convolutions(%x: tensor<8x3xi32>, %w: tensor<3x3x4xi32>, %v: tensor<3x3x5xi32>) -> (tensor<6x4xi32>, tensor<6x4xi32>, tensor<6x5xi32>) {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<6x4xi32>
  %0 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} outs(%e : tensor<6x4xi32>) {
  ^bb0(%a: i32):
    linalg.yield %zero : i32
  } -> tensor<6x4xi32>
  %1 = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%x, %w : tensor<8x3xi32>, tensor<3x3x4xi32>) outs(%0 : tensor<6x4xi32>) {
  ^bb0(%a: i32, %b: i32, %c: i32):
    %p = arith.muli %a, %b : i32
    %s = arith.addi %c, %p : i32
    linalg.yield %s : i32
  } -> tensor<6x4xi32>
  %2 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} outs(%e : tensor<6x4xi32>) {
  ^bb0(%a: i32):
    linalg.yield %zero : i32
  } -> tensor<6x4xi32>
  %3 = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%x, %w : tensor<8x3xi32>, tensor<3x3x4xi32>) outs(%2 : tensor<6x4xi32>) {
  ^bb0(%a: i32, %b: i32, %c: i32):
    %p = arith.muli %a, %a : i32
    %s = arith.addi %c, %p : i32
    linalg.yield %s : i32
  } -> tensor<6x4xi32>
  %f = tensor.empty() : tensor<6x5xi32>
  %4 = linalg.generic {indexing_maps = [affine_map<(i, j) -> ()>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%zero : i32) outs(%f : tensor<6x5xi32>) {
  ^bb0(%a: i32, %b: i32):
    linalg.yield %a : i32
  } -> tensor<6x5xi32>
  %5 = linalg.generic {indexing_maps = [#x, #w, #y], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%x, %v : tensor<8x3xi32>, tensor<3x3x5xi32>) outs(%4 : tensor<6x5xi32>) {
  ^bb0(%a: i32, %b: i32, %c: i32):
    %p = arith.muli %a, %b : i32
    %s = arith.addi %c, %p : i32
    linalg.yield %s : i32
  } -> tensor<6x5xi32>
  return %1, %3, %5 : tensor<6x4xi32>, tensor<6x4xi32>, tensor<6x5xi32>
}
