"""CPU kernels: loop nests that are emitted for an instruction set."""
