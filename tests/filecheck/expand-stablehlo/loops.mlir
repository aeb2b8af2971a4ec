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

// A loop that says so hands on buffers, and the next takes them as they are.
// CHECK-LABEL: func.func @in_place
// CHECK: %[[B:.+]] = "hal.tensor.export"(%arg0)
// CHECK: %[[R:.+]]:2 = scf.for %{{.+}} iter_args(%[[C:.+]] = %[[B]], %[[T:.+]] = %{{.+}}) -> (!hal.buffer_view, tensor<2xf32>) {
// CHECK: %[[H:.+]] = "hal.tensor.import"(%[[C]])
// CHECK: %[[Y:.+]] = func.call @update(%[[H]], %[[T]],
// CHECK: %[[D:.+]] = "hal.tensor.export"(%[[Y]])
// CHECK: scf.yield %[[D]], %{{.+}} : !hal.buffer_view, tensor<2xf32>
// CHECK: %[[I:.+]] = "hal.tensor.import"(%[[R]]#0)
// CHECK: %[[E:.+]] = "hal.tensor.export"(%[[I]])
// CHECK: scf.for %{{.+}} iter_args(%[[F:.+]] = %[[E]]) -> (!hal.buffer_view)
// CHECK: %[[G:.+]] = "hal.tensor.import"(%[[F]])
// CHECK: %[[Z:.+]] = stablehlo.dynamic_update_slice %[[G]]
// CHECK: "hal.tensor.export"(%[[Z]])
func.func @in_place(%x: tensor<8xf32>, %i: tensor<i32>, %n: index) -> (tensor<8xf32>, tensor<2xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zeros = stablehlo.constant dense<0.0> : tensor<2xf32>
  %r:2 = scf.for %k = %c0 to %n step %c1 iter_args(%h = %x, %t = %zeros)
      -> (tensor<8xf32>, tensor<2xf32>) {
    %y = func.call @update(%h, %t, %i) : (tensor<8xf32>, tensor<2xf32>, tensor<i32>) -> tensor<8xf32>
    %z = stablehlo.negate %t : tensor<2xf32>
    scf.yield %y, %z : tensor<8xf32>, tensor<2xf32>
  } {subquant.in_place}
  %s = scf.for %k = %c0 to %n step %c1 iter_args(%h = %r#0) -> (tensor<8xf32>) {
    %y = stablehlo.dynamic_update_slice %h, %zeros, %i
        : (tensor<8xf32>, tensor<2xf32>, tensor<i32>) -> tensor<8xf32>
    scf.yield %y : tensor<8xf32>
  } {subquant.in_place}
  return %s, %r#1 : tensor<8xf32>, tensor<2xf32>
}
func.func private @update(%h: tensor<8xf32>, %t: tensor<2xf32>, %i: tensor<i32>) -> tensor<8xf32> {
  %y = stablehlo.dynamic_update_slice %h, %t, %i
      : (tensor<8xf32>, tensor<2xf32>, tensor<i32>) -> tensor<8xf32>
  return %y : tensor<8xf32>
}

// What others may read stays a tensor: an argument that is used again, what is computed before the
// loop, what is handed on to another place, or twice, and what is computed anew.
// CHECK-LABEL: func.func @not_alone
// CHECK-NOT: hal.tensor
func.func @not_alone(%x: tensor<8xf32>, %a: tensor<8xf32>, %b: tensor<8xf32>, %c: tensor<8xf32>,
                     %t: tensor<2xf32>, %i: tensor<i32>, %n: index) -> tensor<8xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %made = stablehlo.abs %x : tensor<8xf32>
  %r:5 = scf.for %k = %c0 to %n step %c1
      iter_args(%h0 = %x, %h1 = %made, %h2 = %a, %h3 = %b, %h4 = %c)
      -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
    %y0 = stablehlo.dynamic_update_slice %h0, %t, %i
        : (tensor<8xf32>, tensor<2xf32>, tensor<i32>) -> tensor<8xf32>
    %y1 = stablehlo.dynamic_update_slice %h1, %t, %i
        : (tensor<8xf32>, tensor<2xf32>, tensor<i32>) -> tensor<8xf32>
    %y2 = stablehlo.dynamic_update_slice %h2, %t, %i
        : (tensor<8xf32>, tensor<2xf32>, tensor<i32>) -> tensor<8xf32>
    %y4 = stablehlo.add %h3, %h4 : tensor<8xf32>
    scf.yield %y0, %y1, %y2, %y2, %y4
        : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
  } {subquant.in_place}
  %s = stablehlo.add %r#0, %x : tensor<8xf32>
  return %s : tensor<8xf32>
}

// Neither are the arguments of a function that is called, nor those of a loop that does not say so.
// CHECK-LABEL: func.func @called
// CHECK-NOT: hal.tensor
func.func @called(%x: tensor<8xf32>, %t: tensor<2xf32>, %i: tensor<i32>, %n: index) -> tensor<8xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %k = %c0 to %n step %c1 iter_args(%h = %x) -> (tensor<8xf32>) {
    %y = stablehlo.dynamic_update_slice %h, %t, %i
        : (tensor<8xf32>, tensor<2xf32>, tensor<i32>) -> tensor<8xf32>
    scf.yield %y : tensor<8xf32>
  } {subquant.in_place}
  return %r : tensor<8xf32>
}
func.func @calls(%x: tensor<8xf32>, %t: tensor<2xf32>, %i: tensor<i32>, %n: index) -> tensor<8xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = call @called(%x, %t, %i, %n)
      : (tensor<8xf32>, tensor<2xf32>, tensor<i32>, index) -> tensor<8xf32>
  return %r : tensor<8xf32>
}
func.func @says_nothing(%x: tensor<8xf32>, %t: tensor<2xf32>, %i: tensor<i32>, %n: index) -> tensor<8xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %k = %c0 to %n step %c1 iter_args(%h = %x) -> (tensor<8xf32>) {
    %y = stablehlo.dynamic_update_slice %h, %t, %i
        : (tensor<8xf32>, tensor<2xf32>, tensor<i32>) -> tensor<8xf32>
    scf.yield %y : tensor<8xf32>
  }
  return %r : tensor<8xf32>
}
