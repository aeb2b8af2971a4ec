// RUN: subquant opt %s --passes add-fenced-functions --split-input-file | filecheck %s

// Functions of a module that has many are left alone.
// CHECK-NOT: $async
// CHECK: // -----
func.func @a(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }
func.func @b(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }
func.func @c(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }
func.func @d(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }
func.func @e(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }

// -----

// What lays a weight out is called once.
// CHECK-NOT: @f$laid_out_1$async
// CHECK: func.func @f$async
// CHECK: func.func @f$laid_out$async
// CHECK-NOT: $async
func.func @f(%x: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }
func.func @f$laid_out(%x: tensor<4xf32>, %w: tensor<4xf32>, %l: tensor<2x2xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }
func.func @f$laid_out_1(%w: tensor<4xf32>) -> tensor<2x2xf32> {
  %0 = tensor.expand_shape %w [[0, 1]] output_shape [2, 2] : tensor<4xf32> into tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}
func.func @g(%x: tensor<4xf32>, %n: i32) -> i32 { return %n : i32 }
