// RUN: subquant opt %s --passes expand-stablehlo | filecheck %s

// CHECK-LABEL: func.func @plain
// CHECK-NEXT: stablehlo.add %arg0, %arg0 : tensor<4xi8>
// CHECK-NEXT: stablehlo.convolution
// CHECK-NEXT: return
func.func @plain(%x: tensor<4xi8>, %a: tensor<1x5x2xf32>, %k: tensor<3x2x4xf32>) -> tensor<1x3x4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xi8>
  %1 = stablehlo.convolution(%a, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x5x2xf32>, tensor<3x2x4xf32>) -> tensor<1x3x4xf32>
  return %1 : tensor<1x3x4xf32>
}

// Quantized operands are for legalize-quant-to-math.
// CHECK-LABEL: func.func @quantized
// CHECK: "stablehlo.batch_norm_grad"(%arg0, %arg1, %arg1, %arg1, %arg0)
!q = !quant.uniform<i8:f32, 0.05:3>
func.func @quantized(%x: tensor<2x3x!q>, %f: tensor<3x!q>) -> tensor<2x3x!q> {
  %r:3 = "stablehlo.batch_norm_grad"(%x, %f, %f, %f, %x) <{epsilon = 0.5 : f32, feature_index = 1 : i64}> : (tensor<2x3x!q>, tensor<3x!q>, tensor<3x!q>, tensor<3x!q>, tensor<2x3x!q>) -> (tensor<2x3x!q>, tensor<3x!q>, tensor<3x!q>)
  return %r#0 : tensor<2x3x!q>
}

// async_start has to hold its operation, also where that is the identity of one device.
// CHECK-LABEL: func.func @held
// CHECK: stablehlo.async_start
// CHECK: "stablehlo.all_gather"
func.func @held(%x: tensor<2x3xi8>) -> tensor<2x3xi8> {
  %f = "stablehlo.async_start"(%x) ({
    ^bb0(%a: tensor<2x3xi8>):
      %g = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<0> : tensor<1x1xi64>}> : (tensor<2x3xi8>) -> tensor<2x3xi8>
      stablehlo.return %g : tensor<2x3xi8>
  }) : (tensor<2x3xi8>) -> !stablehlo.future<tensor<2x3xi8>>
  %r = "stablehlo.async_done"(%f) : (!stablehlo.future<tensor<2x3xi8>>) -> tensor<2x3xi8>
  return %r : tensor<2x3xi8>
}
