"""Passes that verify, fuse, expand and lower quantized operations and casts."""
