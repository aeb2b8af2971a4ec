"""Instruction sets of CPUs that kernels multiply with."""
