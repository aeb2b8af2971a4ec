"""Packing of weights into the order in which kernels read them."""
