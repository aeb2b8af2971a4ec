"""Train the example network and write ``two_layer.mlir`` with its input and expected output.

The network classifies 8 x 8 images of digits: 64 -> 128, ReLU, 128 -> 10. Its weights are quantized
to int4 with one scale for each block of 32 weights along K. The expected output is computed in
float64 NumPy from the dequantized weights.

    python examples/make_two_layer.py
"""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
BLOCK = 32
HIDDEN = 128
GLYPHS = """
.####... ...#.... .####... .####... ....##.. .######. ..###... .######. ..####.. ..####..
#....#.. ..##.... #....#.. #....#.. ...#.#.. .#...... .#...... ......#. .#....#. .#....#.
#....#.. .#.#.... .....#.. .....#.. ..#..#.. .#...... #....... .....#.. .#....#. .#....#.
#....#.. ...#.... ....#... ..###... .#...#.. .#####.. #.###... ....#... ..####.. ..#####.
#....#.. ...#.... ...#.... .....#.. ######.. ......#. ##...#.. ...#.... .#....#. ......#.
#....#.. ...#.... ..#..... .....#.. .....#.. ......#. #....#.. ..#..... .#....#. .....#..
#....#.. ...#.... .#...... #....#.. .....#.. .#....#. #....#.. .#...... .#....#. ....#...
.####... .#####.. ######.. .####... .....#.. ..####.. .####... .#...... ..####.. .###....
"""


def glyphs() -> np.ndarray:
    """Return the ten images, shape (10, 64), ink 1 and paper 0."""
    rows = [line.split() for line in GLYPHS.split("\n") if line]
    return np.array(
        [[[c == "#" for c in row[digit]] for row in rows] for digit in range(10)], float
    ).reshape(10, 64)


def noisy(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    """Return images of `labels` with noise, shape (n, 64)."""
    return glyphs()[labels] + 0.4 * rng.standard_normal((len(labels), 64))


def train(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return weights and biases after a few thousand steps of gradient descent."""
    w1 = rng.standard_normal((64, HIDDEN)) * 0.15
    w2 = rng.standard_normal((HIDDEN, 10)) * 0.1
    b1, b2 = np.zeros(HIDDEN), np.zeros(10)
    for _ in range(3000):
        labels = rng.integers(0, 10, 64)
        x = noisy(rng, labels)
        h = np.maximum(x @ w1 + b1, 0)
        z = h @ w2 + b2
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(64), labels] -= 1
        dh = (p @ w2.T) * (h > 0)
        rate = 0.05 / 64
        w2 -= rate * (h.T @ p)
        b2 -= rate * p.sum(0)
        w1 -= rate * (x.T @ dh)
        b1 -= rate * dh.sum(0)
    return w1, b1, w2, b2


def quantize(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int4 weights and f32 scales, one for each block of 32 rows and each column."""
    blocks = w.reshape(-1, BLOCK, w.shape[1])
    scales = (np.abs(blocks).max(1) / 7).astype(np.float32)
    q = np.clip(np.rint(blocks / scales[:, None]), -8, 7).astype(int)
    return q.reshape(w.shape), scales


def text(name: str, q: np.ndarray, scales: np.ndarray) -> tuple[str, str]:
    """Return the type alias and the constant of a weight."""
    rows = ", ".join("{" + ", ".join(f"{float(s)!r}" for s in row) + "}" for row in scales)
    alias = f"!{name} = !quant.uniform<i4<-8:7>:f32:{{0:{BLOCK}, 1:1}}, {{{rows}}}>"
    constant = str(q.tolist()).replace(" ", "")
    return alias, constant


def main() -> None:
    """Write the example."""
    rng = np.random.default_rng(20)
    w1, b1, w2, b2 = train(rng)
    q1, s1 = quantize(w1)
    q2, s2 = quantize(w2)
    b1, b2 = b1.astype(np.float32), b2.astype(np.float32)
    alias1, constant1 = text("w1", q1, s1)
    alias2, constant2 = text("w2", q2, s2)

    def floats(values: np.ndarray) -> str:
        return ", ".join(f"{float(v)!r}" for v in values)

    (HERE / "two_layer.mlir").write_text(f"""\
// A network that classifies 8 x 8 images of digits: 64 -> 128, ReLU, 128 -> 10.
// Its weights are int4, one scale for each block of {BLOCK} along the contracted dimension.
// Written by make_two_layer.py.

{alias1}
{alias2}
#row = affine_map<(d0, d1) -> (d0, d1)>
#column = affine_map<(d0, d1) -> (d1)>

func.func @main(%x: tensor<4x64xf32>) -> tensor<4x10xf32> {{
  %zero = arith.constant 0.0 : f32

  // Layer 1: dequantize, multiply, add the bias, ReLU.
  %s1 = arith.constant dense<{constant1}> : tensor<64x{HIDDEN}xi4>
  %q1 = quant.scast %s1 : tensor<64x{HIDDEN}xi4> to tensor<64x{HIDDEN}x!w1>
  %f1 = quant.dcast %q1 : tensor<64x{HIDDEN}x!w1> to tensor<64x{HIDDEN}xf32>
  %b1 = arith.constant dense<[{floats(b1)}]> : tensor<{HIDDEN}xf32>
  %e1 = tensor.empty() : tensor<4x{HIDDEN}xf32>
  %i1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<4x{HIDDEN}xf32>) -> tensor<4x{HIDDEN}xf32>
  %m1 = linalg.matmul ins(%x, %f1 : tensor<4x64xf32>, tensor<64x{HIDDEN}xf32>)
      outs(%i1 : tensor<4x{HIDDEN}xf32>) -> tensor<4x{HIDDEN}xf32>
  %h = linalg.generic {{indexing_maps = [#row, #column, #row],
                       iterator_types = ["parallel", "parallel"]}}
      ins(%m1, %b1 : tensor<4x{HIDDEN}xf32>, tensor<{HIDDEN}xf32>)
      outs(%e1 : tensor<4x{HIDDEN}xf32>) {{
    ^bb0(%m: f32, %b: f32, %out: f32):
      %sum = arith.addf %m, %b : f32
      %relu = arith.maximumf %sum, %zero : f32
      linalg.yield %relu : f32
  }} -> tensor<4x{HIDDEN}xf32>

  // Layer 2: dequantize, multiply, add the bias.
  %s2 = arith.constant dense<{constant2}> : tensor<{HIDDEN}x10xi4>
  %q2 = quant.scast %s2 : tensor<{HIDDEN}x10xi4> to tensor<{HIDDEN}x10x!w2>
  %f2 = quant.dcast %q2 : tensor<{HIDDEN}x10x!w2> to tensor<{HIDDEN}x10xf32>
  %b2 = arith.constant dense<[{floats(b2)}]> : tensor<10xf32>
  %e2 = tensor.empty() : tensor<4x10xf32>
  %i2 = linalg.fill ins(%zero : f32) outs(%e2 : tensor<4x10xf32>) -> tensor<4x10xf32>
  %m2 = linalg.matmul ins(%h, %f2 : tensor<4x{HIDDEN}xf32>, tensor<{HIDDEN}x10xf32>)
      outs(%i2 : tensor<4x10xf32>) -> tensor<4x10xf32>
  %y = linalg.generic {{indexing_maps = [#row, #column, #row],
                       iterator_types = ["parallel", "parallel"]}}
      ins(%m2, %b2 : tensor<4x10xf32>, tensor<10xf32>) outs(%e2 : tensor<4x10xf32>) {{
    ^bb0(%m: f32, %b: f32, %out: f32):
      %sum = arith.addf %m, %b : f32
      linalg.yield %sum : f32
  }} -> tensor<4x10xf32>
  return %y : tensor<4x10xf32>
}}
""")
    labels = np.array([4, 2, 7, 0])
    x = noisy(rng, labels).astype(np.float32)
    f1 = q1 * np.repeat(s1.astype(float), BLOCK, 0)
    f2 = q2 * np.repeat(s2.astype(float), BLOCK, 0)
    y = np.maximum(x.astype(float) @ f1 + b1, 0) @ f2 + b2
    assert (y.argmax(1) == labels).all()
    np.save(HERE / "two_layer_input.npy", x)
    np.save(HERE / "two_layer_expected.npy", y.astype(np.float32))


if __name__ == "__main__":
    main()
