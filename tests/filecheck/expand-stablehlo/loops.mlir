// RUN: subquant opt %s --passes expand-stablehlo | filecheck %s

// A loop that counts up by a constant: from 1 by 3, so it ends with 10.
// CHECK-LABEL: func.func @counts
// CHECK: %[[R:.+]] = scf.for %[[I:.+]] = %c1_i32 to %c9_i32 step %c3_i32 iter_args(%[[H:.+]] = %arg0) -> (tensor<f32>) : i32 {
// CHECK-NEXT: %[[K:.+]] = tensor.from_elements %[[I]] : tensor<i32>
// CHECK-NEXT: %[[F:.+]] = stablehlo.convert %[[K]]
// CHECK-NEXT: %[[Y:.+]] = stablehlo.add %[[H]], %[[F]]
// CHECK: scf.yield %[[Y]] : tensor<f32>
// CHECK: %[[END:.+]] = stablehlo.constant dense<10> : tensor<i32>
// CHECK-NEXT: return %[[END]], %[[R]]
func.func @counts(%x: tensor<f32>) -> (tensor<i32>, tensor<f32>) {
  %first = stablehlo.constant dense<1> : tensor<i32>
  %step = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%h = %x, %k = %first) : tensor<f32>, tensor<i32>
  cond {
    %end = stablehlo.constant dense<9> : tensor<i32>
    %p = stablehlo.compare LT, %k, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %f = stablehlo.convert %k : (tensor<i32>) -> tensor<f32>
    %y = stablehlo.add %h, %f : tensor<f32>
    %n = stablehlo.add %step, %k : tensor<i32>
    stablehlo.return %y, %n : tensor<f32>, tensor<i32>
  }
  return %r#1, %r#0 : tensor<i32>, tensor<f32>
}

// Beyond 127 an i8 starts anew, so this one never ends.
// CHECK-LABEL: func.func @counts_beyond
// CHECK: stablehlo.while
func.func @counts_beyond() -> tensor<i8> {
  %first = stablehlo.constant dense<0> : tensor<i8>
  %step = stablehlo.constant dense<5> : tensor<i8>
  %end = stablehlo.constant dense<127> : tensor<i8>
  %r = stablehlo.while(%k = %first) : tensor<i8>
  cond {
    %p = stablehlo.compare LT, %k, %end : (tensor<i8>, tensor<i8>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %n = stablehlo.add %k, %step : tensor<i8>
    stablehlo.return %n : tensor<i8>
  }
  return %r : tensor<i8>
}

// What is taken twice is copied, and so is what is handed on twice.
// CHECK-LABEL: func.func @twice
// CHECK: %[[OWN:.+]] = stablehlo.select %{{.+}}, %arg0, %{{.+}} : tensor<i1>, tensor<2xf32>
// CHECK: stablehlo.while(%[[H:.+]] = %arg0, %[[C:.+]] = %[[OWN]])
// CHECK: %[[Y:.+]] = stablehlo.add %[[H]], %[[C]]
// CHECK: %[[OWN2:.+]] = stablehlo.select %{{.+}}, %[[Y]], %{{.+}} : tensor<i1>, tensor<2xf32>
// CHECK: stablehlo.return %[[Y]], %[[OWN2]]
func.func @twice(%x: tensor<2xf32>, %p: tensor<i1>) -> tensor<2xf32> {
  %r:2 = stablehlo.while(%h = %x, %c = %x) : tensor<2xf32>, tensor<2xf32>
  cond {
    stablehlo.return %p : tensor<i1>
  } do {
    %y = stablehlo.add %h, %c : tensor<2xf32>
    stablehlo.return %y, %y : tensor<2xf32>, tensor<2xf32>
  }
  return %r#0 : tensor<2xf32>
}

// What is computed together before a loop is taken apart.
// CHECK-LABEL: func.func @computed
// CHECK: %[[COPY:.+]] = stablehlo.select
// CHECK: %[[A:.+]] = "util.optimization_barrier"(%[[COPY]])
// CHECK: %[[COPY2:.+]] = stablehlo.select
// CHECK: %[[B:.+]] = "util.optimization_barrier"(%[[COPY2]])
// CHECK: stablehlo.while(%{{.+}} = %[[A]], %{{.+}} = %[[B]])
func.func @computed(%x: tensor<2xf32>, %p: tensor<i1>) -> tensor<2xf32> {
  %a = stablehlo.negate %x : tensor<2xf32>
  %b = stablehlo.abs %x : tensor<2xf32>
  %r:2 = stablehlo.while(%h = %a, %c = %b) : tensor<2xf32>, tensor<2xf32>
  cond {
    stablehlo.return %p : tensor<i1>
  } do {
    %y = stablehlo.add %h, %c : tensor<2xf32>
    stablehlo.return %y, %h : tensor<2xf32>, tensor<2xf32>
  }
  return %r#0 : tensor<2xf32>
}
