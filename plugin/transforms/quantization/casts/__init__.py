"""Casts as loops over blocks: helpers of ``lower-quant-casts``."""
