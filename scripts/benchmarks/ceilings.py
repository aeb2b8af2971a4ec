"""Ceilings of the machine: kernels in MLIR that IREE compiles and subquant's worker pool runs.

IREE's own threads often run both halves on one core: reading 24 MiB took 2.0 ms, 0.9 ms at best
(Emerald Rapids).

* ``read``: adds up the bytes of one of `READ_COPIES` tensors, another one at each call; together
  they exceed the caches. Its calls are about as long as a peer's, and so as rarely interrupted.
* ``multiply``: the int8 multiply instruction, in independent chains of registers.
* ``multiply and load``: ``multiply`` with a broadcast of four bytes from the L1 cache for each
  instruction, and an addition where the instruction accumulates nothing: the inner loop of a GEMM.
* ``AMX multiply``, ``AMX multiply and load``: ``tdpbssd``, four products of tiles, and
  ``tdpbssd`` with the loads of its four operand tiles.

The instruction is ``vpdpbusd`` on 512 bits (AVX512-VNNI), or ``vpmaddubsw`` on 256 (AVX2), whose
16-bit results have to be added. Tile instructions are encoded as bytes: LLVM accepts them only for
a target with AMX, and ``host`` has no AMX before `request_tiles`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

CEILINGS = ("read", "multiply", "multiply and load", "AMX multiply", "AMX multiply and load")

_BYTES = 24 * 2**20
READ_COPIES = 16
_WORKGROUPS = 16
_ITERATIONS = 100_000
_CHAINS = 12
_TILE = 1024
_TILE_ITERATIONS = 10_000
_CONFIGURATION = bytes([1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8])
"""Operand of ``ldtilecfg``: eight tiles of 16 rows of 64 bytes."""


def request_tiles() -> bool:
    """Ask Linux to let this process use AMX's tiles; False if it does not."""
    request, permission, tile_data = 158, 0x1023, 18  # arch_prctl, ARCH_REQ_XCOMP_PERM
    try:
        return ctypes.CDLL(None).syscall(request, permission, tile_data) == 0
    except (OSError, AttributeError):
        return False


@dataclass(frozen=True)
class Kernel:
    """Ceiling kernel as a module.

    Args:
        text: MLIR with a function ``main`` of one tensor of bytes.
        size: the bytes of the tensor.
        work: bytes, or multiply-accumulates, of a call.
        name: the instruction.
        result: the number of 32-bit integers that it returns.
        head: bytes that the tensor must start with.
    """

    text: str
    size: int
    work: int
    name: str
    result: int
    head: bytes = b""


def kernel(ceiling: str, features: frozenset[str]) -> Kernel | None:
    """Return the kernel for a CPU with these features, by LLVM's names; None if there is none."""
    if ceiling == "read":
        lanes = 16 if "avx512f" in features else 8
        text = _module(_read(lanes), _BYTES, lanes)
        return Kernel(text, _BYTES, _BYTES, "reads", _WORKGROUPS * lanes)
    loads = ceiling.endswith("load")
    if ceiling.startswith("AMX"):
        if "amx-int8" not in features:
            return None
        products = _WORKGROUPS * _TILE_ITERATIONS * 4 * 16 * 16 * 64
        size = 64 + 4 * _TILE
        text = _module(_tiles(loads), size, _TILE // 4)
        return Kernel(text, size, products, "tdpbssd", _WORKGROUPS * _TILE // 4, _CONFIGURATION)
    if "avx512vnni" in features:
        instruction, lanes = "vpdpbusd zmm", 16
    elif "avx2" in features:
        instruction, lanes = "vpmaddubsw ymm", 8
    else:
        return None
    products = _WORKGROUPS * _ITERATIONS * _CHAINS * lanes * 4
    text = _module(_multiply(lanes, loads), 4096, lanes)
    return Kernel(text, 4096, products, instruction, _WORKGROUPS * lanes)


def _module(body: str, size: int, lanes: int) -> str:
    operand, result = f"tensor<{size}xi8>", f"tensor<{_WORKGROUPS}x{lanes}xi32>"
    return f"""
"stream.executable"() ({{
  "stream.executable.export"() ({{
    %count = arith.constant {_WORKGROUPS} : index
    %one = arith.constant 1 : index
    "stream.return"(%count, %one, %one) : (index, index, index) -> ()
  }}) {{sym_name = "kernel", sym_visibility = "public", function_ref = @kernel}} : () -> ()
  builtin.module {{
    func.func @kernel(%operand: !stream.binding, %result: !stream.binding) {{
      %0 = arith.constant 0 : index
      %1 = arith.constant 1 : index
      %x = "stream.binding.subspan"(%operand, %0) : (!stream.binding, index) -> memref<{size}xi8>
      %y = "stream.binding.subspan"(%result, %0)
          : (!stream.binding, index) -> memref<{_WORKGROUPS}x{lanes}xi32>
      %id = "stream.dispatch.workgroup.id"() {{dimension = 0 : index}} : () -> index
{body}
      vector.store %sum, %y[%id, %0] : memref<{_WORKGROUPS}x{lanes}xi32>, vector<{lanes}xi32>
      return
    }}
  }}
  "stream.executable.end"() : () -> ()
}}) {{sym_name = "executable", sym_visibility = "private"}} : () -> ()
func.func @main(%x: {operand}) -> {result} {{
  %y = "flow.dispatch"(%x) {{entry_points = [@executable::@kernel],
      operandSegmentSizes = array<i32: 0, 1, 0, 0>}} : ({operand}) -> {result}
  return %y : {result}
}}
"""


def _sum(names: list[str], kind: str) -> list[str]:
    """Return operations that add vectors up to ``%sum``."""
    operations, total = [], names[0]
    for number, name in enumerate(names[1:]):
        following = "%sum" if number == len(names) - 2 else f"%total{number}"
        operations.append(f"{following} = arith.addi {total}, {name} : {kind}")
        total = following
    return operations


def _read(lanes: int) -> str:
    """Return eight accumulating vectors over a workgroup's share of the bytes."""
    bytes_, kind = 4 * lanes, f"vector<{lanes}xi32>"
    share, step = _BYTES // _WORKGROUPS, 8 * 4 * lanes
    operations = [
        f"%share = arith.constant {share} : index",
        f"%step = arith.constant {step} : index",
        "%start = arith.muli %id, %share : index",
        "%end = arith.addi %start, %share : index",
        f"%zero = arith.constant dense<0> : {kind}",
        *(f"%offset{n} = arith.constant {n * bytes_} : index" for n in range(8)),
        f"%accumulators:8 = scf.for %i = %start to %end step %step iter_args("
        f"{', '.join(f'%s{n} = %zero' for n in range(8))}) -> ({', '.join([kind] * 8)}) {{",
    ]
    for n in range(8):
        operations += [
            f"%i{n} = arith.addi %i, %offset{n} : index",
            f"%b{n} = vector.load %x[%i{n}] : memref<{_BYTES}xi8>, vector<{bytes_}xi8>",
            f"%v{n} = vector.bitcast %b{n} : vector<{bytes_}xi8> to {kind}",
            f"%t{n} = arith.addi %s{n}, %v{n} : {kind}",
        ]
    operations += [
        f"scf.yield {', '.join(f'%t{n}' for n in range(8))} : {', '.join([kind] * 8)}",
        "}",
        *_sum([f"%accumulators#{n}" for n in range(8)], kind),
    ]
    return "\n".join(operations)


def _multiply(lanes: int, loads: bool) -> str:
    """Return independent chains of the instruction; with loads each has an operand of its own."""
    bytes_, wide = f"vector<{4 * lanes}xi8>", f"vector<{lanes}xi32>"
    is_vnni = lanes == 16
    kind = wide if is_vnni else "vector<16xi16>"
    chains = range(_CHAINS)
    start = "%zero" if is_vnni or loads else "%factor"  # products of products
    operations = [
        f"%count = arith.constant {_ITERATIONS} : index",
        "%mask = arith.constant 1023 : index",
        "%four = arith.constant 4 : index",
        f"%zero = arith.constant dense<0> : {kind}",
        f"%a = vector.load %x[%0] : memref<4096xi8>, {bytes_}",
        f"%factor = vector.bitcast %a : {bytes_} to {kind}",
        f"%offset = arith.constant {4 * lanes} : index",
        f"%b = vector.load %x[%offset] : memref<4096xi8>, {bytes_}",
        *(f"%offset{n} = arith.constant {4 * n} : index" for n in chains),
        f"%accumulators:{_CHAINS} = scf.for %i = %0 to %count step %1 iter_args("
        f"{', '.join(f'%s{n} = {start}' for n in chains)}) -> ({', '.join([kind] * _CHAINS)}) {{",
        "%word = arith.muli %i, %four : index",
        "%masked = arith.andi %word, %mask : index",
    ]
    for n in chains:
        operand = "%b"
        if loads:
            operations += [
                f"%i{n} = arith.addi %masked, %offset{n} : index",
                f"%l{n} = vector.load %x[%i{n}] : memref<4096xi8>, vector<4xi8>",
                f"%w{n} = vector.bitcast %l{n} : vector<4xi8> to vector<1xi32>",
                f"%e{n} = vector.extract %w{n}[0] : i32 from vector<1xi32>",
                f"%r{n} = vector.broadcast %e{n} : i32 to {wide}",
                f"%x{n} = vector.bitcast %r{n} : {wide} to {bytes_}",
            ]
            operand = f"%x{n}"
        if is_vnni:
            operations.append(
                f'%t{n} = llvm.call_intrinsic "llvm.x86.avx512.vpdpbusd.512"(%s{n}, %a, {operand}) '
                f": ({kind}, {bytes_}, {bytes_}) -> {kind}"
            )
        elif loads:
            operations += [
                f'%p{n} = llvm.call_intrinsic "llvm.x86.avx2.pmadd.ub.sw"(%a, {operand}) '
                f": ({bytes_}, {bytes_}) -> {kind}",
                f"%t{n} = arith.addi %s{n}, %p{n} : {kind}",
            ]
        else:
            operations += [
                f"%c{n} = vector.bitcast %s{n} : {kind} to {bytes_}",
                f'%t{n} = llvm.call_intrinsic "llvm.x86.avx2.pmadd.ub.sw"(%c{n}, {operand}) '
                f": ({bytes_}, {bytes_}) -> {kind}",
            ]
    operations += [
        f"scf.yield {', '.join(f'%t{n}' for n in chains)} : {', '.join([kind] * _CHAINS)}",
        "}",
    ]
    names = [f"%accumulators#{n}" for n in chains]
    if not is_vnni:
        operations += [
            f"%q{n} = vector.bitcast %accumulators#{n} : {kind} to {wide}" for n in chains
        ]
        names = [f"%q{n}" for n in chains]
    return "\n".join([*operations, *_sum(names, wide)])


def _tiles(loads: bool) -> str:
    """Return products of the tiles 0 and 1 with 2 and 3 in 4 to 7; tile 4 is the result."""

    def line(*code: int) -> str:
        return ".byte " + ",".join(f"0x{byte:02x}" for byte in (0xC4, 0xE2, *code))

    # rdx: address of the tiles, rcx: 64 bytes a row, rax: the tile configuration.
    load = [line(0x7B, 0x4B, 0x04 + 8 * tile, 0x0A) for tile in range(4)]
    loaded = [step for code in load for step in (code, f"addq $${_TILE}, %rdx")]
    loaded.append(f"subq $${4 * _TILE}, %rdx")
    products = [
        line(0x6B, 0x5E, 0xE0), line(0x63, 0x5E, 0xE8),
        line(0x6B, 0x5E, 0xF1), line(0x63, 0x5E, 0xF9),
    ]  # fmt: skip
    zeros = [line(0x7B, 0x49, 0xC0 + 8 * tile) for tile in range(4, 8)]
    steps = [
        line(0x78, 0x49, 0x00),  # ldtilecfg (%rax)
        *zeros,
        *([] if loads else loaded),
        "1:",
        *(loaded if loads else []),
        *products,
        "decq %rsi",
        "jnz 1b",
        "movq %rdi, %rdx",
        line(0x7A, 0x4B, 0x24, 0x0A),  # tilestored %tmm4, (%rdx,%rcx)
        line(0x78, 0x49, 0xC0),  # tilerelease
    ]
    assembly = "\\0A".join(steps)
    constraints = "{rax},{rdx},{rcx},{rsi},{rdi},~{rdx},~{rsi},~{memory},~{cc}"
    size = 64 + 4 * _TILE
    return "\n".join(
        [
            f"%xi = memref.extract_aligned_pointer_as_index %x : memref<{size}xi8> -> index",
            "%xp = arith.index_cast %xi : index to i64",
            "%yi = memref.extract_aligned_pointer_as_index %y "
            f": memref<{_WORKGROUPS}x{_TILE // 4}xi32> -> index",
            f"%tile = arith.constant {_TILE} : index",
            "%offset = arith.muli %id, %tile : index",
            "%yo = arith.addi %yi, %offset : index",
            "%yp = arith.index_cast %yo : index to i64",
            "%row = arith.constant 64 : i64",
            "%tiles = arith.addi %xp, %row : i64",
            f"%count = arith.constant {_TILE_ITERATIONS} : i64",
            f'llvm.inline_asm has_side_effects "{assembly}", "{constraints}" '
            "%xp, %tiles, %row, %count, %yp : (i64, i64, i64, i64, i64) -> ()",
            f"%sum = vector.load %y[%id, %0] : memref<{_WORKGROUPS}x{_TILE // 4}xi32>, "
            f"vector<{_TILE // 4}xi32>",
        ]
    )
