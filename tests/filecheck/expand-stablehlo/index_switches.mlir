// RUN: subquant opt %s --passes expand-stablehlo | filecheck %s

// CHECK-LABEL: func.func @two_cases(
// CHECK-SAME: %[[K:[^:]+]]: index, %[[X:[^:]+]]: tensor<2xf32>, %[[Y:[^:]+]]: tensor<2xf32>, %[[Z:[^:]+]]: tensor<2xf32>
// CHECK: %[[FIRST:.+]] = arith.cmpi eq, %[[K]], %c3 : index
// CHECK: %[[R:.+]] = scf.if %[[FIRST]] -> (tensor<2xf32>) {
// CHECK: scf.yield %[[X]]
// CHECK: } else {
// CHECK: %[[SECOND:.+]] = arith.cmpi eq, %[[K]], %c-1 : index
// CHECK: %[[S:.+]] = scf.if %[[SECOND]] -> (tensor<2xf32>) {
// CHECK: scf.yield %[[Y]]
// CHECK: } else {
// CHECK: scf.yield %[[Z]]
// CHECK: scf.yield %[[S]]
// CHECK: return %[[R]]
func.func @two_cases(%k: index, %x: tensor<2xf32>, %y: tensor<2xf32>, %z: tensor<2xf32>) -> tensor<2xf32> {
  %r = scf.index_switch %k -> tensor<2xf32>
  case 3 { scf.yield %x : tensor<2xf32> }
  case -1 { scf.yield %y : tensor<2xf32> }
  default { scf.yield %z : tensor<2xf32> }
  return %r : tensor<2xf32>
}

// IREE takes one case.
// CHECK-LABEL: func.func @one_case(
// CHECK: scf.index_switch
func.func @one_case(%k: index, %x: tensor<2xf32>, %y: tensor<2xf32>) -> tensor<2xf32> {
  %r = scf.index_switch %k -> tensor<2xf32>
  case 3 { scf.yield %x : tensor<2xf32> }
  default { scf.yield %y : tensor<2xf32> }
  return %r : tensor<2xf32>
}
