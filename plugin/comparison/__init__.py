"""Two computations of one model, layer by layer: where a quantized model departs from another."""
