"""Readers of weight files, and the writer of parameter archives."""
