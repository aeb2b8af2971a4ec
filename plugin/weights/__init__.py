"""Weights of a model: trees of tensors, read from any format, quantized, written as archives."""

from __future__ import annotations

from .sources import import_weights, open_weights
from .theta import Dataset, Theta

__all__ = ["Dataset", "Theta", "import_weights", "open_weights"]
