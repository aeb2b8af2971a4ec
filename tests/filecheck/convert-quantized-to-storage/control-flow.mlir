// RUN: subquant opt %s --passes "convert-quantized-to-storage" --split-input-file | filecheck %s

// Values that a loop carries, and arithmetic on the storage between two casts.
// CHECK-LABEL: func.func @loop(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4xi8>, %[[N:[^:]+]]: index) -> tensor<4xi8> attributes {subquant.function_type = (tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>, index) -> tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>} {
// CHECK-NEXT: %[[C:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[C2:.+]] = arith.constant 1 : index
// CHECK-NEXT: %[[FOR:.+]] = scf.for %[[ARG:.+]] = %[[C]] to %[[N]] step %[[C2]] iter_args(%[[ARG2:.+]] = %[[Q]]) -> (tensor<4xi8>) {
// CHECK-NEXT: %[[ADDI:.+]] = arith.addi %[[ARG2]], %[[ARG2]] : tensor<4xi8>
// CHECK-NEXT: scf.yield %[[ADDI]] : tensor<4xi8>
// CHECK-NEXT: }
// CHECK-NEXT: return %[[FOR]] : tensor<4xi8>
!q = !quant.uniform<i8:f32, 2.0>
func.func @loop(%q: tensor<4x!q>, %n: index) -> tensor<4x!q> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%a = %q) -> tensor<4x!q> {
    %s = quant.scast %a : tensor<4x!q> to tensor<4xi8>
    %t = arith.addi %s, %s : tensor<4xi8>
    %b = quant.scast %t : tensor<4xi8> to tensor<4x!q>
    scf.yield %b : tensor<4x!q>
  }
  return %r : tensor<4x!q>
}

// -----

// CHECK-LABEL: func.func @branch(
// CHECK-SAME: %[[C:[^:]+]]: i1, %[[Q:[^:]+]]: tensor<4xi8>, %[[P:[^:]+]]: tensor<4xi8>) -> tensor<4xi8> attributes {subquant.function_type = (i1, tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>, tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>) -> tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>} {
// CHECK-NEXT: %[[IF:.+]] = scf.if %[[C]] -> (tensor<4xi8>) {
// CHECK-NEXT: scf.yield %[[Q]] : tensor<4xi8>
// CHECK-NEXT: } else {
// CHECK-NEXT: scf.yield %[[P]] : tensor<4xi8>
// CHECK-NEXT: }
// CHECK-NEXT: return %[[IF]] : tensor<4xi8>
!q = !quant.uniform<i8:f32, 2.0>
func.func @branch(%c: i1, %q: tensor<4x!q>, %p: tensor<4x!q>) -> tensor<4x!q> {
  %r = scf.if %c -> tensor<4x!q> {
    scf.yield %q : tensor<4x!q>
  } else {
    scf.yield %p : tensor<4x!q>
  }
  return %r : tensor<4x!q>
}

// -----

// CHECK-LABEL: func.func @while(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4xi8>) -> tensor<4xi8> attributes {subquant.function_type = (tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>) -> tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>} {
// CHECK-NEXT: %[[WHILE:.+]] = scf.while (%[[ARG:.+]] = %[[Q]]) : (tensor<4xi8>) -> tensor<4xi8> {
// CHECK-NEXT: %[[CONDITION:.+]] = "test.condition"() : () -> i1
// CHECK-NEXT: scf.condition(%[[CONDITION]]) %[[ARG]] : tensor<4xi8>
// CHECK-NEXT: } do {
// CHECK-NEXT: ^bb0(%[[ARG2:[^:]+]]: tensor<4xi8>):
// CHECK-NEXT: scf.yield %[[ARG2]] : tensor<4xi8>
// CHECK-NEXT: }
// CHECK-NEXT: return %[[WHILE]] : tensor<4xi8>
!q = !quant.uniform<i8:f32, 2.0>
func.func @while(%q: tensor<4x!q>) -> tensor<4x!q> {
  %r = scf.while (%a = %q) : (tensor<4x!q>) -> tensor<4x!q> {
    %c = "test.condition"() : () -> i1
    scf.condition(%c) %a : tensor<4x!q>
  } do {
  ^bb0(%b: tensor<4x!q>):
    scf.yield %b : tensor<4x!q>
  }
  return %r : tensor<4x!q>
}

// -----

// CHECK-LABEL: func.func @blocks(
// CHECK-SAME: %[[C:[^:]+]]: i1, %[[Q:[^:]+]]: tensor<4xi8>, %[[P:[^:]+]]: tensor<4xi8>) -> tensor<4xi8> attributes {subquant.function_type = (i1, tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>, tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>) -> tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>} {
// CHECK-NEXT: cf.cond_br %[[C]], ^bb1(%[[Q]] : tensor<4xi8>), ^bb2
// CHECK-NEXT: ^bb1(%[[ARG:[^:]+]]: tensor<4xi8>):
// CHECK-NEXT: cf.br ^bb3(%[[ARG]] : tensor<4xi8>)
// CHECK-NEXT: ^bb2:
// CHECK-NEXT: cf.br ^bb3(%[[P]] : tensor<4xi8>)
// CHECK-NEXT: ^bb3(%[[ARG2:[^:]+]]: tensor<4xi8>):
// CHECK-NEXT: return %[[ARG2]] : tensor<4xi8>
!q = !quant.uniform<i8:f32, 2.0>
func.func @blocks(%c: i1, %q: tensor<4x!q>, %p: tensor<4x!q>) -> tensor<4x!q> {
  cf.cond_br %c, ^bb1(%q : tensor<4x!q>), ^bb2
^bb1(%a: tensor<4x!q>):
  cf.br ^bb3(%a : tensor<4x!q>)
^bb2:
  cf.br ^bb3(%p : tensor<4x!q>)
^bb3(%r: tensor<4x!q>):
  return %r : tensor<4x!q>
}
