"""Isolation of code that can crash: child processes, limits, cancellation, supervised commands."""
