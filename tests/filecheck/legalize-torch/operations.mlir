// RUN: subquant opt %s --passes legalize-torch --split-input-file | filecheck %s

// CHECK-LABEL: func.func @relu(
// CHECK-SAME: %[[X:[^:]+]]: tensor<?x8xf32>) -> tensor<?x8xf32> {
// CHECK-NOT: torch
// CHECK: stablehlo.maximum
func.func @relu(%x: !torch.vtensor<[?,8],f32>) -> !torch.vtensor<[?,8],f32> attributes {torch.assume_strict_symbolic_shapes} {
  %0 = torch.aten.relu %x : !torch.vtensor<[?,8],f32> -> !torch.vtensor<[?,8],f32>
  return %0 : !torch.vtensor<[?,8],f32>
}

// -----

// A variable, and a resource, which becomes dense elements.
// CHECK-LABEL: "util.global"
// CHECK-LABEL: func.func @count(
// CHECK-SAME: %[[X:[^:]+]]: tensor<2xf32>) -> tensor<2xf32> {
// CHECK-DAG: %[[C:.+]] = stablehlo.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
// CHECK-DAG: %[[OLD:.+]] = "util.global.load"() {global = @sum}
// CHECK: %[[NEW:.+]] = stablehlo.add %[[OLD]], %{{.+}} : tensor<2xf32>
// CHECK: "util.global.store"(%[[NEW]]) {global = @sum}
// CHECK: return %[[NEW]]
"util.global"() {initial_value = dense<0.0> : tensor<2xf32>, is_mutable, sym_name = "sum", sym_visibility = "private", type = tensor<2xf32>} : () -> ()
func.func @count(%x: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {
  %sum = "util.global.load"() {global = @sum} : () -> tensor<2xf32>
  %old = torch_c.from_builtin_tensor %sum : tensor<2xf32> -> !torch.vtensor<[2],f32>
  %c = torch.vtensor.literal(dense_resource<weight> : tensor<2xf32>) : !torch.vtensor<[2],f32>
  %one = torch.constant.int 1
  %0 = torch.aten.mul.Tensor %x, %c : !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
  %1 = torch.aten.add.Tensor %old, %0, %one : !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>, !torch.int -> !torch.vtensor<[2],f32>
  %new = torch_c.to_builtin_tensor %1 : !torch.vtensor<[2],f32> -> tensor<2xf32>
  "util.global.store"(%new) {global = @sum} : (tensor<2xf32>) -> ()
  return %1 : !torch.vtensor<[2],f32>
}
{-#
  dialect_resources: {
    builtin: {
      weight: "0x040000000000803F00000040"
    }
  }
#-}

// -----

// Numbers that PyTorch writes as f64 are constants of the type that they are used in.
// CHECK-LABEL: func.func @scalar(
// CHECK: %[[C:.+]] = stablehlo.constant dense<2.500000e+00> : tensor<f32>
// CHECK-NEXT: %[[B:.+]] = stablehlo.broadcast_in_dim %[[C]]
// CHECK-NEXT: stablehlo.multiply %{{.+}}, %[[B]] : tensor<4xf32>
func.func @scalar(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %c = torch.constant.float 2.5
  %0 = torch.aten.mul.Scalar %x, %c : !torch.vtensor<[4],f32>, !torch.float -> !torch.vtensor<[4],f32>
  return %0 : !torch.vtensor<[4],f32>
}
