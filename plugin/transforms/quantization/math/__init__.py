"""Rules of ``legalize-quant-to-math``: StableHLO on quantized values in integer arithmetic."""
