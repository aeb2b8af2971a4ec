// RUN: subquant opt %s --passes "check-hand-off{target=vulkan:generic}" --split-input-file | filecheck %s

// The signature that was written, with its quantization, and the storage types that are passed.
// CHECK-LABEL: func.func @f(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4xi8>) -> tensor<?xi8> attributes {iree.reflection = {subquant.signature = "{\22version\22:1,\22inputs\22:[{\22element\22:\22i8\22,\22abi\22:[\22tensor<4xi8>\22],\22shape\22:[4],\22quantized\22:{\22storage\22:[8,true,-128,127],\22expressed\22:\22f32\22,\22axes\22:[],\22block_sizes\22:[],\22granularity\22:\22per-tensor\22,\22shape\22:[],\22scales\22:[2.0],\22zero_points\22:[3]}}],\22outputs\22:[{\22element\22:\22i8\22,\22abi\22:[\22tensor<?xi8>\22],\22shape\22:[null]}]}", subquant.target = "vulkan:generic"}} {
// CHECK-NEXT: %[[CAST:.+]] = tensor.cast %[[Q]] : tensor<4xi8> to tensor<?xi8>
// CHECK-NEXT: return %[[CAST]] : tensor<?xi8>
func.func @f(%q: tensor<4xi8>) -> tensor<?xi8> attributes {subquant.function_type = (tensor<4x!quant.uniform<i8:f32, 2.0:3>>) -> tensor<?xi8>} {
  %r = tensor.cast %q : tensor<4xi8> to tensor<?xi8>
  return %r : tensor<?xi8>
}

// -----

// What is in the reflection already stays.
// CHECK-LABEL: func.func @kept(
// CHECK-SAME: %[[X:[^:]+]]: f32) attributes {iree.reflection = {some.key = "v", subquant.signature = "{\22version\22:1,\22inputs\22:[{\22element\22:\22f32\22,\22abi\22:[\22f32\22],\22scalar\22:true}],\22outputs\22:[]}", subquant.target = "vulkan:generic"}} {
// CHECK-NEXT: return
func.func @kept(%x: f32) attributes {iree.reflection = {some.key = "v"}} {
  return
}

// -----

// An unranked tensor is passed as two, and a quantized scalar as its storage.
// CHECK-LABEL: func.func @unranked(
// CHECK-SAME: %[[X:[^:]+]]: tensor<?xf32>, %[[S:[^:]+]]: tensor<?xi64>, %[[Q:[^:]+]]: i8) attributes {iree.reflection = {subquant.signature = "{\22version\22:1,\22inputs\22:[{\22element\22:\22f32\22,\22abi\22:[\22tensor<?xf32>\22,\22tensor<?xi64>\22],\22shape\22:null},{\22element\22:\22i4\22,\22abi\22:[\22i8\22],\22scalar\22:true,\22quantized\22:{\22storage\22:[4,false,0,15],\22expressed\22:\22f32\22,\22axes\22:[],\22block_sizes\22:[],\22granularity\22:\22per-tensor\22,\22shape\22:[],\22scales\22:[2.0],\22zero_points\22:[3]}}],\22outputs\22:[]}", subquant.target = "vulkan:generic"}} {
// CHECK-NEXT: return
func.func @unranked(%x: tensor<?xf32>, %s: tensor<?xi64>, %q: i8) attributes {subquant.function_type = (tensor<*xf32>, !quant.uniform<u4:f32, 2.0:3>) -> ()} {
  return
}

// -----

// Private functions cannot be called from outside.
// CHECK-LABEL: func.func private @private(
// CHECK-SAME: %[[X:[^:]+]]: f32) {
// CHECK-NEXT: return
func.func private @private(%x: f32) {
  return
}

// -----

// So does the signature of a module that was emitted and is compiled again.
// CHECK-LABEL: func.func @again(
// CHECK-SAME: %[[Q:[^:]+]]: i8) attributes {iree.reflection = {subquant.signature = "written before", subquant.target = "vulkan:generic"}} {
// CHECK-NEXT: return
func.func @again(%q: i8) attributes {iree.reflection = {subquant.signature = "written before", subquant.target = "llvm-cpu"}} {
  return
}

// -----

// What the program may write to is the program's own: also through what may be folded, through
// functions and loops; not what it only reads, or keeps a copy of.
// CHECK-LABEL: func.func @consumed(
// CHECK-SAME: subquant.signature = "{\22version\22:1,\22inputs\22:[{\22element\22:\22f32\22,\22abi\22:[\22tensor<8xf32>\22],\22shape\22:[8],\22consumed\22:true},{\22element\22:\22f32\22,\22abi\22:[\22tensor<2x4xf32>\22],\22shape\22:[2,4],\22consumed\22:true},{\22element\22:\22f32\22,\22abi\22:[\22tensor<8xf32>\22],\22shape\22:[8],\22consumed\22:true},{\22element\22:\22f32\22,\22abi\22:[\22tensor<16xf32>\22],\22shape\22:[16]},{\22element\22:\22f32\22,\22abi\22:[\22tensor<2xf32>\22],\22shape\22:[2]}],
// CHECK-SAME: \22state\22:true}
func.func @consumed(%sorted: tensor<8xf32>, %called: tensor<2x4xf32>, %looped: tensor<8xf32>,
                    %kept: tensor<16xf32>, %read: tensor<2xf32>)
    -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<8xf32>
  %sum = stablehlo.add %sorted, %zero : tensor<8xf32>
  %0 = "stablehlo.sort"(%sum) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %p = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }) {dimension = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  %flat = stablehlo.reshape %called : (tensor<2x4xf32>) -> tensor<8xf32>
  %1 = func.call @insert(%flat, %read) : (tensor<8xf32>, tensor<2xf32>) -> tensor<8xf32>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %2 = scf.for %i = %c0 to %c8 step %c1 iter_args(%carried = %looped) -> tensor<8xf32> {
    %next = func.call @insert(%carried, %read) : (tensor<8xf32>, tensor<2xf32>) -> tensor<8xf32>
    scf.yield %next : tensor<8xf32>
  }
  "util.global.store"(%kept) {global = @variable} : (tensor<16xf32>) -> ()
  return %0, %1, %2 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
func.func private @insert(%to: tensor<8xf32>, %what: tensor<2xf32>) -> tensor<8xf32> {
  %0 = tensor.insert_slice %what into %to[2][2][1] : tensor<2xf32> into tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// The extents of a tensor are not the tensor.
// CHECK-LABEL: func.func @extents(
// CHECK-NOT: consumed
// CHECK: return
func.func @extents(%x: tensor<?xf32>, %i: tensor<1xi32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %x, %c0 : tensor<?xf32>
  %empty = tensor.empty(%n) : tensor<?xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<?xf32>) -> tensor<?xf32>
  return %filled : tensor<?xf32>
}

// -----

// A dispatch writes to what its results are tied to.
// CHECK-LABEL: func.func @dispatches(
// CHECK-SAME: \22abi\22:[\22tensor<4xf32>\22],\22shape\22:[4]},{\22element\22:\22f32\22,\22abi\22:[\22tensor<4xf32>\22],\22shape\22:[4],\22consumed\22:true}]
func.func @dispatches(%read: tensor<4xf32>, %written: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "flow.dispatch"(%read) {entry_points = [@e::@read]} : (tensor<4xf32>) -> tensor<8xf32>
  %1 = "flow.dispatch"(%written) {entry_points = [@e::@write], tied_operands = [0 : index]}
      : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
"stream.executable"() ({
  builtin.module {
    func.func @written(%x: memref<4xf32>, %y: f32) {
      %c0 = arith.constant 0 : index
      memref.store %y, %x[%c0] : memref<4xf32>
      return
    }
  }
}) {sym_name = "e", sym_visibility = "private"} : () -> ()
