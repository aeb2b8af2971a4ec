// RUN: subquant opt %s --passes expand-sign-extension | filecheck %s

// Zero extension, sign extension from 32 bits and from i1, and loops over wide integers.
// CHECK-LABEL: func.func @f(
// CHECK-NEXT: arith.extui %{{.+}} : i8 to i32
// CHECK-NEXT: arith.extsi %{{.+}} : i32 to i64
// CHECK-NEXT: arith.extsi %{{.+}} : i1 to i32
// CHECK-NEXT: arith.sitofp %{{.+}} : i32 to f32
// CHECK-NEXT: arith.extsi %{{.+}} : tensor<4xi32> to tensor<4xi64>
// CHECK-NEXT: linalg.matmul
func.func @f(%a: i8, %b: i32, %c: i1, %d: tensor<4xi32>, %m: tensor<2x2xi32>) -> (i32, i64, i32, f32, tensor<4xi64>, tensor<2x2xi32>) {
  %r = arith.extui %a : i8 to i32
  %s = arith.extsi %b : i32 to i64
  %t = arith.extsi %c : i1 to i32
  %u = arith.sitofp %b : i32 to f32
  %v = arith.extsi %d : tensor<4xi32> to tensor<4xi64>
  %w = linalg.matmul ins(%m, %m : tensor<2x2xi32>, tensor<2x2xi32>) outs(%m : tensor<2x2xi32>) -> tensor<2x2xi32>
  return %r, %s, %t, %u, %v, %w : i32, i64, i32, f32, tensor<4xi64>, tensor<2x2xi32>
}
