// RUN: subquant opt %s --passes pack-narrow-storage | filecheck %s

// Other widths, an axis that does not fill bytes, a dynamic shape, a scalar, no elements.
// CHECK-NOT: subquant.unpack
func.func @others(%a: tensor<4x8xi8>, %b: tensor<4x63xi4>, %c: tensor<?x64xi4>, %d: i4, %e: tensor<i4>, %f: tensor<4x0xi4>, %g: tensor<4x4xi3>, %h: tensor<8xi1>, %i: tensor<8xi7>, %j: tensor<*xi4>) {
  return
}
// Called in the module, or not to be called from outside; a declaration.
func.func @called(%a: tensor<64xi4>) {
  return
}
func.func private @hidden(%a: tensor<64xi4>) {
  call @called(%a) : (tensor<64xi4>) -> ()
  return
}
func.func private @declared(tensor<64xi4>)
// A table; one number for all.
func.func @constants() -> (tensor<2x2xi4>, tensor<512xi4>) {
  %a = arith.constant dense<[[1, 2], [3, 4]]> : tensor<2x2xi4>
  %b = stablehlo.constant dense<5> : tensor<512xi4>
  return %a, %b : tensor<2x2xi4>, tensor<512xi4>
}
// A state.
"util.global"() {initial_value = dense<[1, 2, 3, 4, 5, 6, 7, -8]> : tensor<8xi4>, is_mutable, sym_name = "kept", sym_visibility = "private", type = tensor<8xi4>} : () -> ()
func.func @state(%x: tensor<8xi32>) -> tensor<8xi4> {
  %y = "util.global.load"() {global = @kept} : () -> tensor<8xi4>
  return %y : tensor<8xi4>
}
