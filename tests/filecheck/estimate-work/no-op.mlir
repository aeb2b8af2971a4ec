// RUN: subquant opt %s --passes estimate-work | filecheck %s

// What is not known is not estimated: dynamic shapes, loops, other dialects, recursion.
// CHECK-NOT: subquant.work

func.func @dynamic(%x: tensor<?xf32>) -> tensor<?xf32> {
  %y = stablehlo.add %x, %x : tensor<?xf32>
  return %y : tensor<?xf32>
}

func.func @loop(%x: tensor<i32>) -> tensor<i32> {
  %y = stablehlo.while(%i = %x) : tensor<i32>
    cond {
      %more = stablehlo.compare LT, %i, %x : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %next = stablehlo.add %i, %i : tensor<i32>
      stablehlo.return %next : tensor<i32>
    }
  return %y : tensor<i32>
}

func.func @other(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %z = tensor.extract %zero[] : tensor<f32>
  %y = linalg.fill ins(%z : f32) outs(%x : tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

func.func @itself(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = func.call @itself(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
