"""Importers of Fourier transforms, and of tensors that are computed from constants."""
