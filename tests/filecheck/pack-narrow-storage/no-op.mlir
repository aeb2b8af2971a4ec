// RUN: subquant opt %s --passes pack-narrow-storage | filecheck %s

// Bytes that were written as bytes; other widths, an extent that is no multiple of 64, a dynamic shape, a scalar.
// CHECK-NOT: flow.tensor.bitcast
func.func @bytes(%q: tensor<4x8xi8>) -> tensor<4x8xi8> {
  return %q : tensor<4x8xi8>
}
func.func @others(%a: tensor<4x96xi8>, %b: tensor<?x64xi8>, %c: tensor<64xi8>, %d: i8, %e: tensor<i8>, %f: tensor<4x0xi8>)
    attributes {subquant.function_type = (tensor<4x96xi4>, tensor<?x64xi4>, tensor<64xi5>, i4, tensor<i4>, tensor<4x0xi4>) -> ()} {
  return
}
// Called in the module, or not to be called from outside.
func.func @called(%a: tensor<64xi8>) attributes {subquant.function_type = (tensor<64xi4>) -> ()} {
  return
}
func.func private @hidden(%a: tensor<64xi8>) attributes {subquant.function_type = (tensor<64xi4>) -> ()} {
  call @called(%a) : (tensor<64xi8>) -> ()
  return
}
