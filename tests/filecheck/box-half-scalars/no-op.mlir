// RUN: subquant opt %s --passes box-half-scalars | filecheck %s

// Other scalars, tensors, private functions and declarations.
// CHECK-LABEL: func.func @public(
// CHECK-SAME: f32, %{{[^:]+}}: tensor<f16>, %{{[^:]+}}: f64) -> tensor<4xbf16> {
// CHECK-LABEL: func.func private @private(
// CHECK-SAME: f16) -> bf16 {
// CHECK-LABEL: func.func private @declared(f16) -> bf16
func.func @public(%x: f32, %y: tensor<f16>, %z: f64) -> tensor<4xbf16> {
  %h = tensor.extract %y[] : tensor<f16>
  %b = call @private(%h) : (f16) -> bf16
  %r = tensor.splat %b : tensor<4xbf16>
  return %r : tensor<4xbf16>
}
func.func private @private(%x: f16) -> bf16 {
  %r = func.call @declared(%x) : (f16) -> bf16
  return %r : bf16
}
func.func private @declared(f16) -> bf16
