"""Core: modules that all packages may use; see README.md."""
