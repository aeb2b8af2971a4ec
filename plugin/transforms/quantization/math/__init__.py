"""What StableHLO's operations mean on quantized values: the rules of ``legalize-quant-to-math``."""
