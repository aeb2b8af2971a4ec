// RUN: subquant opt %s --passes "lower-unranked-tensors" --split-input-file | filecheck %s

// Operands and results of calls are pairs as well.
// CHECK-LABEL: func.func private @helper(
// CHECK-SAME: %[[ARG0:[^:]+]]: tensor<?xf32>, %[[ARG1:[^:]+]]: tensor<?xi64>, %[[ARG2:[^:]+]]: index) -> (index, tensor<?xf32>, tensor<?xi64>) {
// CHECK: return %[[ARG2]], %[[ARG0]], %[[ARG1]] : index, tensor<?xf32>, tensor<?xi64>
// CHECK-LABEL: func.func private @elsewhere(
// CHECK-SAME: tensor<?xf32>, tensor<?xi64>) -> (tensor<?xf32>, tensor<?xi64>)
// CHECK-LABEL: func.func @calls(
// CHECK-SAME: %[[ARG0:[^:]+]]: index, %[[ARG1:[^:]+]]: tensor<?xf32>, %[[ARG2:[^:]+]]: tensor<?xi64>) -> (tensor<?xf32>, tensor<?xi64>, index) attributes {subquant.function_type = (index, tensor<*xf32>) -> (tensor<*xf32>, index)} {
// CHECK: %[[CALL:.+]]:3 = call @helper(%[[ARG1]], %[[ARG2]], %[[ARG0]]) : (tensor<?xf32>, tensor<?xi64>, index) -> (index, tensor<?xf32>, tensor<?xi64>)
// CHECK-NEXT: %[[CALL2:.+]]:2 = call @elsewhere(%[[CALL]]#1, %[[CALL]]#2) : (tensor<?xf32>, tensor<?xi64>) -> (tensor<?xf32>, tensor<?xi64>)
// CHECK-NEXT: return %[[CALL2]]#0, %[[CALL2]]#1, %[[CALL]]#0 : tensor<?xf32>, tensor<?xi64>, index
func.func private @helper(%x: tensor<*xf32>, %n: index) -> (index, tensor<*xf32>) {
  return %n, %x : index, tensor<*xf32>
}
func.func private @elsewhere(tensor<*xf32>) -> tensor<*xf32>
func.func @calls(%n: index, %x: tensor<*xf32>) -> (tensor<*xf32>, index) {
  %m, %y = call @helper(%x, %n) : (tensor<*xf32>, index) -> (index, tensor<*xf32>)
  %z = call @elsewhere(%y) : (tensor<*xf32>) -> tensor<*xf32>
  return %z, %m : tensor<*xf32>, index
}
