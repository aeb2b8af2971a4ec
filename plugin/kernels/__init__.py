"""Kernels: loops over vectors, written for a target's features where they beat what IREE writes."""
