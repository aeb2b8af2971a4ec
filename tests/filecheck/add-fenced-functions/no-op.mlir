// RUN: subquant opt %s --passes add-fenced-functions | filecheck %s

// CHECK-LABEL: func.func @no_tensor
// CHECK-NEXT: return
func.func @no_tensor(%n: i32, %x: tensor<4xf32>) -> i32 {
  return %n : i32
}

// CHECK-LABEL: func.func private @private
// CHECK-NEXT: return
func.func private @private(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// CHECK-NEXT: }
// CHECK-NEXT: func.func private @declared
func.func private @declared(%x: tensor<4xf32>) -> tensor<4xf32>

// What IREE is told of arguments and results it takes from functions that it writes itself.
// CHECK-LABEL: func.func @of_iree
// CHECK-NEXT: return
func.func @of_iree(%x: tensor<4xf32>, %out: !hal.buffer {iree.abi.output = 0 : index}) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// The names that it would need are taken.
// CHECK-LABEL: func.func @has_one
// CHECK-NEXT: return
func.func @has_one(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// CHECK-LABEL: func.func private @has_one$async
func.func private @has_one$async(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
// CHECK-NOT: hal.
