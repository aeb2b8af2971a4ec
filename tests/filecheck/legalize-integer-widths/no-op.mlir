// RUN: subquant opt %s --passes legalize-integer-widths | filecheck %s

// Containers, booleans, indices and integers wider than 64 bits stay, and so do their loops.
// CHECK-LABEL: func.func @f(
// CHECK-SAME: i1, %{{[^:]+}}: tensor<4xi8>, %{{[^:]+}}: i16, %{{[^:]+}}: i32, %{{[^:]+}}: i64, %{{[^:]+}}: i128, %{{[^:]+}}: index
// CHECK-NEXT: arith.addi %{{.+}} : tensor<4xi8>
// CHECK-NEXT: arith.extui %{{.+}} : i1 to i8
// CHECK-NEXT: arith.extui %{{.+}} : i64 to i128
// CHECK-NEXT: linalg.matmul
// CHECK: return
func.func @f(%a: i1, %b: tensor<4xi8>, %c: i16, %d: i32, %e: i64, %f: i128, %g: index, %m: tensor<2x2xi8>, %o: tensor<2x2xi32>) -> (tensor<4xi8>, i8, i128, tensor<2x2xi32>) {
  %r = arith.addi %b, %b : tensor<4xi8>
  %s = arith.extui %a : i1 to i8
  %t = arith.extui %e : i64 to i128
  %u = linalg.matmul ins(%m, %m : tensor<2x2xi8>, tensor<2x2xi8>) outs(%o : tensor<2x2xi32>) -> tensor<2x2xi32>
  return %r, %s, %t, %u : tensor<4xi8>, i8, i128, tensor<2x2xi32>
}
