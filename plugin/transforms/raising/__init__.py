"""Raising of dequantizing arithmetic to ``subquant.dequantize``."""
