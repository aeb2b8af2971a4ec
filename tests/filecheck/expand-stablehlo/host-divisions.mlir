// RUN: subquant opt %s --passes expand-stablehlo | filecheck %s

// Divisions of the host are checked, as IREE's VM ends the process; constant divisors are not.
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[N:[^: ]+]]: i64, %[[D:[^: ]+]]: i64
// CHECK: %[[OK:[^: ]+]] = arith.cmpi ne, %[[D]], %{{.*}} : i64
// CHECK-NEXT: cf.assert %[[OK]], "'arith.divsi' op{{.*}}: the divisor must not be 0"
// CHECK-NEXT: arith.divsi %[[N]], %[[D]] : i64
// CHECK-NOT: cf.assert
// CHECK: arith.remui
// CHECK: linalg.generic
// CHECK-NOT: cf.assert
func.func @main(%n: i64, %d: i64, %x: tensor<4xi32>, %y: tensor<4xi32>) -> (i64, i64, tensor<4xi32>) {
  %0 = arith.divsi %n, %d : i64
  %three = arith.constant 3 : i64
  %1 = arith.remui %n, %three : i64
  %empty = tensor.empty() : tensor<4xi32>
  %2 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x, %y : tensor<4xi32>, tensor<4xi32>) outs(%empty : tensor<4xi32>) {
  ^bb0(%a: i32, %b: i32, %out: i32):
    %3 = arith.divsi %a, %b : i32
    linalg.yield %3 : i32
  } -> tensor<4xi32>
  return %0, %1, %2 : i64, i64, tensor<4xi32>
}
