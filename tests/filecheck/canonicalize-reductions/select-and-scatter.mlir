// RUN: subquant opt %s --passes canonicalize-reductions --split-input-file | filecheck %s

// The operand is compared as it is; the source and the init value are converted.
// CHECK-LABEL: func.func @quantized(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4x!quant{{.*}}>, %[[Y:[^:]+]]: tensor<2x!quant{{.*}}>, %[[I:[^:]+]]: tensor<!quant{{.*}}>)
// CHECK-NEXT: %[[WY:.+]] = stablehlo.uniform_quantize %[[Y]]
// CHECK-NEXT: %[[WI:.+]] = stablehlo.uniform_quantize %[[I]]
// CHECK-NEXT: %[[N:.+]] = stablehlo.iota dim = 0 : tensor<4xi32>
// CHECK-NEXT: %[[ANY:.+]] = stablehlo.constant() <{value = dense<1> : tensor<i8>}> : () -> tensor<!quant.uniform<i8:f32, 5.000000e-01:1>>
// CHECK-NEXT: %[[NONE:.+]] = stablehlo.constant dense<-1> : tensor<i32>
// CHECK-NEXT: %[[W:.+]]:2 = "stablehlo.reduce_window"(%[[X]], %[[N]], %[[ANY]], %[[NONE]]) <{padding = dense<{{.*}}>, window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}> ({
// CHECK-NEXT: ^bb0(%[[A:[^:]+]]: tensor<!quant.uniform<i8:f32, 5.000000e-01:1>>, %[[AN:[^:]+]]: tensor<i32>, %[[B:[^:]+]]: tensor<!quant.uniform<i8:f32, 5.000000e-01:1>>, %[[BN:[^:]+]]: tensor<i32>):
// CHECK-NEXT: %[[GE:.+]] = stablehlo.compare GE, %[[A]], %[[B]] : (tensor<!quant.uniform<i8:f32, 5.000000e-01:1>>, tensor<!quant.uniform<i8:f32, 5.000000e-01:1>>) -> tensor<i1>
// CHECK: stablehlo.return
// CHECK: stablehlo.select %{{.+}}, %{{.+}}, %[[W]]#1
// CHECK-NEXT: %[[START:.+]] = stablehlo.broadcast_in_dim %[[WI]], dims = [] {{.*}} -> tensor<5x!quant.uniform<i32:f32, 2.500000e-01>>
// CHECK-NEXT: %[[AT:.+]] = stablehlo.reshape %{{.+}} : (tensor<2xi32>) -> tensor<2x1xi32>
// CHECK-NEXT: %[[S:.+]] = "stablehlo.scatter"(%[[START]], %[[AT]], %[[WY]])
// CHECK: stablehlo.add %{{.+}}, %{{.+}} : tensor<!quant.uniform<i32:f32, 2.500000e-01>>
// CHECK: %[[R:.+]] = stablehlo.slice %[[S]] [0:4]
// CHECK-NEXT: %[[Q:.+]] = stablehlo.uniform_quantize %[[R]] {{.*}} -> tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>
// CHECK-NEXT: return %[[Q]]
!q = !quant.uniform<i8:f32, 0.5:1>
!a = !quant.uniform<i32:f32, 0.25>
!r = !quant.uniform<i8:f32, 2.0>
func.func @quantized(%x: tensor<4x!q>, %y: tensor<2x!q>, %i: tensor<!q>) -> tensor<4x!r> {
  %0 = "subquant.select_and_scatter"(%x, %y, %i) ({
  ^bb0(%a: tensor<!q>, %b: tensor<!q>):
    %c = stablehlo.compare GE, %a, %b : (tensor<!q>, tensor<!q>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }, {
  ^bb0(%a: tensor<!a>, %b: tensor<!a>):
    %c = stablehlo.add %a, %b : tensor<!a>
    stablehlo.return %c : tensor<!a>
  }) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>, padding = dense<[[1, 0]]> : tensor<1x2xi64>}
    : (tensor<4x!q>, tensor<2x!q>, tensor<!q>) -> tensor<4x!r>
  return %0 : tensor<4x!r>
}

// -----

// One type everywhere but in the init value: it is converted, and the operation stays.
// CHECK-LABEL: func.func @init_value(
// CHECK: %[[I:.+]] = stablehlo.convert %{{.+}} : (tensor<f16>) -> tensor<f32>
// CHECK-NEXT: "stablehlo.select_and_scatter"(%{{.+}}, %{{.+}}, %[[I]])
// CHECK-LABEL: func.func @one_type(
// CHECK-NEXT: "stablehlo.select_and_scatter"(%arg0, %arg1, %arg2)
func.func @init_value(%x: tensor<4xf32>, %y: tensor<2xf32>, %i: tensor<f16>) -> tensor<4xf32> {
  %0 = "stablehlo.select_and_scatter"(%x, %y, %i) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<4xf32>, tensor<2xf32>, tensor<f16>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @one_type(%x: tensor<4xf32>, %y: tensor<2xf32>, %i: tensor<f32>) -> tensor<4xf32> {
  %0 = "subquant.select_and_scatter"(%x, %y, %i) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<4xf32>, tensor<2xf32>, tensor<f32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
