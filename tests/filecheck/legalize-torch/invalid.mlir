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

// -----

func.func @pool(%x: !torch.vtensor<[1,1,8,8],f32>) -> !torch.vtensor<[1,1,4,4],f32> {
  %three = torch.constant.int 3
  %two = torch.constant.int 2
  %one = torch.constant.int 1
  %zero = torch.constant.int 0
  %true = torch.constant.bool true
  %kernel = torch.prim.ListConstruct %three, %three : (!torch.int, !torch.int) -> !torch.list<int>
  %stride = torch.prim.ListConstruct %two, %two : (!torch.int, !torch.int) -> !torch.list<int>
  %padding = torch.prim.ListConstruct %zero, %zero : (!torch.int, !torch.int) -> !torch.list<int>
  %dilation = torch.prim.ListConstruct %one, %one : (!torch.int, !torch.int) -> !torch.list<int>
  // expected-error @+1 {{has ceil_mode, which torch-mlir lowers with wrong padding}}
  %0 = torch.aten.max_pool2d %x, %kernel, %stride, %padding, %dilation, %true : !torch.vtensor<[1,1,8,8],f32>, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool -> !torch.vtensor<[1,1,4,4],f32>
  return %0 : !torch.vtensor<[1,1,4,4],f32>
}
