// RUN: subquant opt %s --passes legalize-torch --split-input-file --verify-diagnostics

func.func @operator(%x: !torch.vtensor<[4,4],f32>) -> !torch.vtensor<[4,4],f32> {
  // expected-error @+1 {{the program has the operator aten.special_bessel_j0, which torch-mlir does not lower to StableHLO}}
  %0 = torch.operator "torch.aten.special_bessel_j0"(%x) : (!torch.vtensor<[4,4],f32>) -> !torch.vtensor<[4,4],f32>
  return %0 : !torch.vtensor<[4,4],f32>
}

// -----

func.func @types(%x: !torch.vtensor<[4,4],f32>, %y: !torch.vtensor<[4,4],si8>) -> !torch.vtensor<[4,4],f32> {
  // expected-error @+1 {{matmul: input datatypes mismatched}}
  %0 = torch.aten.mm %x, %y : !torch.vtensor<[4,4],f32>, !torch.vtensor<[4,4],si8> -> !torch.vtensor<[4,4],f32>
  return %0 : !torch.vtensor<[4,4],f32>
}
