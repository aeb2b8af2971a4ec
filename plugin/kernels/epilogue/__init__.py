"""Fused epilogues: elementwise operations that a contraction's kernel computes."""
