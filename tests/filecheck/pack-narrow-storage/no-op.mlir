// RUN: subquant opt %s --passes pack-narrow-storage | filecheck %s

// Bytes that were written as bytes; other widths, an odd extent, a dynamic shape, a scalar.
// CHECK-NOT: flow.tensor.bitcast
func.func @bytes(%q: tensor<4x8xi8>) -> tensor<4x8xi8> {
  return %q : tensor<4x8xi8>
}
func.func @others(%a: tensor<4x3xi8>, %b: tensor<?x4xi8>, %c: tensor<4xi8>, %d: i8, %e: tensor<i8>, %f: tensor<4x0xi8>)
    attributes {subquant.function_type = (tensor<4x3xi4>, tensor<?x4xi4>, tensor<4xi5>, i4, tensor<i4>, tensor<4x0xi4>) -> ()} {
  return
}
// Called in the module, or not to be called from outside.
func.func @called(%a: tensor<4xi8>) attributes {subquant.function_type = (tensor<4xi4>) -> ()} {
  return
}
func.func private @hidden(%a: tensor<4xi8>) attributes {subquant.function_type = (tensor<4xi4>) -> ()} {
  call @called(%a) : (tensor<4xi8>) -> ()
  return
}
