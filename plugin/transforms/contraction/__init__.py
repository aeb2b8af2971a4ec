"""Fusing casts with the operations between them, and taking them apart: helpers of the passes."""
