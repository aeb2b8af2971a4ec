// RUN: subquant opt %s --passes "legalize-integer-widths" --split-input-file | filecheck %s

// Constants are held sign-extended.
// CHECK-LABEL: func.func @constants(
// CHECK-SAME: ) -> (i8, i16, tensor<3xi8>, tensor<2xi8>, tensor<2x2xi8>, tensor<2xi32>) attributes {subquant.function_type = () -> (i4, i12, tensor<3xi2>, tensor<2xi3>, tensor<2x2xi4>, tensor<2xi20>)} {
// CHECK-NEXT: %[[C:.+]] = arith.constant -1 : i8
// CHECK-NEXT: %[[C2:.+]] = arith.constant -2048 : i16
// CHECK-NEXT: %[[C3:.+]] = arith.constant dense<[-2, 1, -1]> : tensor<3xi8>
// CHECK-NEXT: %[[C4:.+]] = arith.constant dense<-4> : tensor<2xi8>
// CHECK-NEXT: %[[C5:.+]] = arith.constant dense<{{\[\[}}-8, 7], [0, -1]]> : tensor<2x2xi8>
// CHECK-NEXT: %[[C6:.+]] = arith.constant dense<[524287, -524288]> : tensor<2xi32>
// CHECK-NEXT: return %[[C]], %[[C2]], %[[C3]], %[[C4]], %[[C5]], %[[C6]] : i8, i16, tensor<3xi8>, tensor<2xi8>, tensor<2x2xi8>, tensor<2xi32>
func.func @constants() -> (i4, i12, tensor<3xi2>, tensor<2xi3>, tensor<2x2xi4>, tensor<2xi20>) {
  %a = arith.constant 15 : i4
  %b = arith.constant -2048 : i12
  %c = arith.constant dense<[-2, 1, 3]> : tensor<3xi2>
  %d = arith.constant dense<-4> : tensor<2xi3>
  %e = arith.constant dense<[[-8, 7], [0, -1]]> : tensor<2x2xi4>
  %f = arith.constant dense<[524287, -524288]> : tensor<2xi20>
  return %a, %b, %c, %d, %e, %f : i4, i12, tensor<3xi2>, tensor<2xi3>, tensor<2x2xi4>, tensor<2xi20>
}

// -----

// Truncation keeps the container sign-extended.
// CHECK-LABEL: func.func @truncates(
// CHECK-SAME: %[[X:[^:]+]]: i32, %[[Y:[^:]+]]: i8, %[[Z:[^:]+]]: i16) -> (i8, i16, i8, i8, i1) attributes {subquant.function_type = (i32, i8, i12) -> (i4, i12, i2, i4, i1)} {
// CHECK-NEXT: %[[TRUNCI:.+]] = arith.trunci %[[X]] : i32 to i8
// CHECK-NEXT: %[[C:.+]] = arith.constant 4 : i8
// CHECK-NEXT: %[[SHLI:.+]] = arith.shli %[[TRUNCI]], %[[C]] : i8
// CHECK-NEXT: %[[SHRSI:.+]] = arith.shrsi %[[SHLI]], %[[C]] : i8
// CHECK-NEXT: %[[TRUNCI2:.+]] = arith.trunci %[[X]] : i32 to i16
// CHECK-NEXT: %[[C2:.+]] = arith.constant 4 : i16
// CHECK-NEXT: %[[SHLI2:.+]] = arith.shli %[[TRUNCI2]], %[[C2]] : i16
// CHECK-NEXT: %[[SHRSI2:.+]] = arith.shrsi %[[SHLI2]], %[[C2]] : i16
// CHECK-NEXT: %[[C3:.+]] = arith.constant 6 : i8
// CHECK-NEXT: %[[SHLI3:.+]] = arith.shli %[[Y]], %[[C3]] : i8
// CHECK-NEXT: %[[SHRSI3:.+]] = arith.shrsi %[[SHLI3]], %[[C3]] : i8
// CHECK-NEXT: %[[TRUNCI3:.+]] = arith.trunci %[[Z]] : i16 to i8
// CHECK-NEXT: %[[C4:.+]] = arith.constant 4 : i8
// CHECK-NEXT: %[[SHLI4:.+]] = arith.shli %[[TRUNCI3]], %[[C4]] : i8
// CHECK-NEXT: %[[SHRSI4:.+]] = arith.shrsi %[[SHLI4]], %[[C4]] : i8
// CHECK-NEXT: %[[TRUNCI4:.+]] = arith.trunci %[[SHRSI]] : i8 to i1
// CHECK-NEXT: return %[[SHRSI]], %[[SHRSI2]], %[[SHRSI3]], %[[SHRSI4]], %[[TRUNCI4]] : i8, i16, i8, i8, i1
func.func @truncates(%x: i32, %y: i8, %z: i12) -> (i4, i12, i2, i4, i1) {
  %a = arith.trunci %x : i32 to i4
  %b = arith.trunci %x : i32 to i12
  %c = arith.trunci %y : i8 to i2
  %d = arith.trunci %z : i12 to i4
  %e = arith.trunci %a : i4 to i1
  return %a, %b, %c, %d, %e : i4, i12, i2, i4, i1
}

// -----

// Zero extension masks first; to the width of the container, a bitcast marks the wide value.
// CHECK-LABEL: func.func @extends(
// CHECK-SAME: %[[X:[^:]+]]: i8) -> (i32, i32, i8, i8, i16) attributes {subquant.function_type = (i4) -> (i32, i32, i8, i8, i12)} {
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[X]] : i8 to i32
// CHECK-NEXT: %[[C:.+]] = arith.constant 15 : i8
// CHECK-NEXT: %[[ANDI:.+]] = arith.andi %[[X]], %[[C]] : i8
// CHECK-NEXT: %[[EXTUI:.+]] = arith.extui %[[ANDI]] : i8 to i32
// CHECK-NEXT: %[[BITCAST:.+]] = arith.bitcast %[[X]] : i8 to i8
// CHECK-NEXT: %[[C2:.+]] = arith.constant 15 : i8
// CHECK-NEXT: %[[ANDI2:.+]] = arith.andi %[[X]], %[[C2]] : i8
// CHECK-NEXT: %[[BITCAST2:.+]] = arith.bitcast %[[ANDI2]] : i8 to i8
// CHECK-NEXT: %[[C3:.+]] = arith.constant 15 : i8
// CHECK-NEXT: %[[ANDI3:.+]] = arith.andi %[[X]], %[[C3]] : i8
// CHECK-NEXT: %[[EXTUI2:.+]] = arith.extui %[[ANDI3]] : i8 to i16
// CHECK-NEXT: return %[[EXTSI]], %[[EXTUI]], %[[BITCAST]], %[[BITCAST2]], %[[EXTUI2]] : i32, i32, i8, i8, i16
func.func @extends(%x: i4) -> (i32, i32, i8, i8, i12) {
  %a = arith.extsi %x : i4 to i32
  %b = arith.extui %x : i4 to i32
  %c = arith.extsi %x : i4 to i8
  %d = arith.extui %x : i4 to i8
  %e = arith.extui %x : i4 to i12
  return %a, %b, %c, %d, %e : i32, i32, i8, i8, i12
}

// -----

// Signed comparisons are right as they are, unsigned ones compare the masked values.
// CHECK-LABEL: func.func @compares(
// CHECK-SAME: %[[X:[^:]+]]: i8, %[[Y:[^:]+]]: i8) -> (i1, i1, i1) attributes {subquant.function_type = (i4, i4) -> (i1, i1, i1)} {
// CHECK-NEXT: %[[CMPI:.+]] = arith.cmpi slt, %[[X]], %[[Y]] : i8
// CHECK-NEXT: %[[CMPI2:.+]] = arith.cmpi eq, %[[X]], %[[Y]] : i8
// CHECK-NEXT: %[[C:.+]] = arith.constant 15 : i8
// CHECK-NEXT: %[[ANDI:.+]] = arith.andi %[[X]], %[[C]] : i8
// CHECK-NEXT: %[[C2:.+]] = arith.constant 15 : i8
// CHECK-NEXT: %[[ANDI2:.+]] = arith.andi %[[Y]], %[[C2]] : i8
// CHECK-NEXT: %[[CMPI3:.+]] = arith.cmpi ult, %[[ANDI]], %[[ANDI2]] : i8
// CHECK-NEXT: return %[[CMPI]], %[[CMPI2]], %[[CMPI3]] : i1, i1, i1
func.func @compares(%x: i4, %y: i4) -> (i1, i1, i1) {
  %a = arith.cmpi slt, %x, %y : i4
  %b = arith.cmpi eq, %x, %y : i4
  %c = arith.cmpi ult, %x, %y : i4
  return %a, %b, %c : i1, i1, i1
}

// -----

// What may leave the width is sign-extended again, and the next operation uses that.
// CHECK-LABEL: func.func @wraps(
// CHECK-SAME: %[[X:[^:]+]]: i8, %[[Y:[^:]+]]: i8, %[[F:[^:]+]]: f32, %[[I:[^:]+]]: index) -> (i8, i8, i8, i8) attributes {subquant.function_type = (i4, i4, f32, index) -> (i4, i4, i4, i4)} {
// CHECK-NEXT: %[[ADDI:.+]] = arith.addi %[[X]], %[[Y]] : i8
// CHECK-NEXT: %[[C:.+]] = arith.constant 4 : i8
// CHECK-NEXT: %[[SHLI:.+]] = arith.shli %[[ADDI]], %[[C]] : i8
// CHECK-NEXT: %[[SHRSI:.+]] = arith.shrsi %[[SHLI]], %[[C]] : i8
// CHECK-NEXT: %[[SHLI2:.+]] = arith.shli %[[SHRSI]], %[[Y]] : i8
// CHECK-NEXT: %[[C2:.+]] = arith.constant 4 : i8
// CHECK-NEXT: %[[SHLI3:.+]] = arith.shli %[[SHLI2]], %[[C2]] : i8
// CHECK-NEXT: %[[SHRSI2:.+]] = arith.shrsi %[[SHLI3]], %[[C2]] : i8
// CHECK-NEXT: %[[FPTOUI:.+]] = arith.fptoui %[[F]] : f32 to i8
// CHECK-NEXT: %[[C3:.+]] = arith.constant 4 : i8
// CHECK-NEXT: %[[SHLI4:.+]] = arith.shli %[[FPTOUI]], %[[C3]] : i8
// CHECK-NEXT: %[[SHRSI3:.+]] = arith.shrsi %[[SHLI4]], %[[C3]] : i8
// CHECK-NEXT: %[[INDEX_CAST:.+]] = arith.index_cast %[[I]] : index to i8
// CHECK-NEXT: %[[C4:.+]] = arith.constant 4 : i8
// CHECK-NEXT: %[[SHLI5:.+]] = arith.shli %[[INDEX_CAST]], %[[C4]] : i8
// CHECK-NEXT: %[[SHRSI4:.+]] = arith.shrsi %[[SHLI5]], %[[C4]] : i8
// CHECK-NEXT: return %[[SHRSI]], %[[SHRSI2]], %[[SHRSI3]], %[[SHRSI4]] : i8, i8, i8, i8
func.func @wraps(%x: i4, %y: i4, %f: f32, %i: index) -> (i4, i4, i4, i4) {
  %a = arith.addi %x, %y : i4
  %b = arith.shli %a, %y : i4
  %c = arith.fptoui %f : f32 to i4
  %d = arith.index_cast %i : index to i4
  return %a, %b, %c, %d : i4, i4, i4, i4
}

// -----

// Unsigned operations take masked operands.
// CHECK-LABEL: func.func @unsigned(
// CHECK-SAME: %[[X:[^:]+]]: i8, %[[Y:[^:]+]]: i8) -> (i8, i8, i8, f32, index) attributes {subquant.function_type = (i3, i3) -> (i3, i3, i3, f32, index)} {
// CHECK-NEXT: %[[C:.+]] = arith.constant 7 : i8
// CHECK-NEXT: %[[ANDI:.+]] = arith.andi %[[X]], %[[C]] : i8
// CHECK-NEXT: %[[C2:.+]] = arith.constant 7 : i8
// CHECK-NEXT: %[[ANDI2:.+]] = arith.andi %[[Y]], %[[C2]] : i8
// CHECK-NEXT: %[[DIVUI:.+]] = arith.divui %[[ANDI]], %[[ANDI2]] : i8
// CHECK-NEXT: %[[C3:.+]] = arith.constant 5 : i8
// CHECK-NEXT: %[[SHLI:.+]] = arith.shli %[[DIVUI]], %[[C3]] : i8
// CHECK-NEXT: %[[SHRSI:.+]] = arith.shrsi %[[SHLI]], %[[C3]] : i8
// CHECK-NEXT: %[[C4:.+]] = arith.constant 7 : i8
// CHECK-NEXT: %[[ANDI3:.+]] = arith.andi %[[X]], %[[C4]] : i8
// CHECK-NEXT: %[[C5:.+]] = arith.constant 7 : i8
// CHECK-NEXT: %[[ANDI4:.+]] = arith.andi %[[Y]], %[[C5]] : i8
// CHECK-NEXT: %[[SHRUI:.+]] = arith.shrui %[[ANDI3]], %[[ANDI4]] : i8
// CHECK-NEXT: %[[C6:.+]] = arith.constant 5 : i8
// CHECK-NEXT: %[[SHLI2:.+]] = arith.shli %[[SHRUI]], %[[C6]] : i8
// CHECK-NEXT: %[[SHRSI2:.+]] = arith.shrsi %[[SHLI2]], %[[C6]] : i8
// CHECK-NEXT: %[[C7:.+]] = arith.constant 7 : i8
// CHECK-NEXT: %[[ANDI5:.+]] = arith.andi %[[X]], %[[C7]] : i8
// CHECK-NEXT: %[[C8:.+]] = arith.constant 7 : i8
// CHECK-NEXT: %[[ANDI6:.+]] = arith.andi %[[Y]], %[[C8]] : i8
// CHECK-NEXT: %[[MAXUI:.+]] = arith.maxui %[[ANDI5]], %[[ANDI6]] : i8
// CHECK-NEXT: %[[C9:.+]] = arith.constant 5 : i8
// CHECK-NEXT: %[[SHLI3:.+]] = arith.shli %[[MAXUI]], %[[C9]] : i8
// CHECK-NEXT: %[[SHRSI3:.+]] = arith.shrsi %[[SHLI3]], %[[C9]] : i8
// CHECK-NEXT: %[[C10:.+]] = arith.constant 7 : i8
// CHECK-NEXT: %[[ANDI7:.+]] = arith.andi %[[X]], %[[C10]] : i8
// CHECK-NEXT: %[[UITOFP:.+]] = arith.uitofp %[[ANDI7]] : i8 to f32
// CHECK-NEXT: %[[C11:.+]] = arith.constant 7 : i8
// CHECK-NEXT: %[[ANDI8:.+]] = arith.andi %[[X]], %[[C11]] : i8
// CHECK-NEXT: %[[INDEX_CASTUI:.+]] = arith.index_castui %[[ANDI8]] : i8 to index
// CHECK-NEXT: return %[[SHRSI]], %[[SHRSI2]], %[[SHRSI3]], %[[UITOFP]], %[[INDEX_CASTUI]] : i8, i8, i8, f32, index
func.func @unsigned(%x: i3, %y: i3) -> (i3, i3, i3, f32, index) {
  %a = arith.divui %x, %y : i3
  %b = arith.shrui %x, %y : i3
  %c = arith.maxui %x, %y : i3
  %d = arith.uitofp %x : i3 to f32
  %e = arith.index_castui %x : i3 to index
  return %a, %b, %c, %d, %e : i3, i3, i3, f32, index
}

// -----

// Right on sign-extended values, with a sign-extended result.
// CHECK-LABEL: func.func @plain(
// CHECK-SAME: %[[X:[^:]+]]: i8, %[[Y:[^:]+]]: i8, %[[C:[^:]+]]: i1, %[[F:[^:]+]]: f32) -> (i8, i8, i8, f32, i8) attributes {subquant.function_type = (i4, i4, i1, f32) -> (i4, i4, i4, f32, i4)} {
// CHECK-NEXT: %[[SELECT:.+]] = arith.select %[[C]], %[[X]], %[[Y]] : i8
// CHECK-NEXT: %[[MAXSI:.+]] = arith.maxsi %[[SELECT]], %[[Y]] : i8
// CHECK-NEXT: %[[SHRSI:.+]] = arith.shrsi %[[MAXSI]], %[[Y]] : i8
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[SHRSI]] : i8 to f32
// CHECK-NEXT: %[[FPTOSI:.+]] = arith.fptosi %[[F]] : f32 to i8
// CHECK-NEXT: return %[[SELECT]], %[[MAXSI]], %[[SHRSI]], %[[SITOFP]], %[[FPTOSI]] : i8, i8, i8, f32, i8
func.func @plain(%x: i4, %y: i4, %c: i1, %f: f32) -> (i4, i4, i4, f32, i4) {
  %a = arith.select %c, %x, %y : i4
  %b = arith.maxsi %a, %y : i4
  %d = arith.shrsi %b, %y : i4
  %e = arith.sitofp %d : i4 to f32
  %g = arith.fptosi %f : f32 to i4
  return %a, %b, %d, %e, %g : i4, i4, i4, f32, i4
}
