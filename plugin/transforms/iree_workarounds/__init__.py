"""Passes and patterns that work around limits of IREE 3.13; README.md is the index."""
