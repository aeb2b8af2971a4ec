"""IREE hooks: changes that a compilation makes while IREE's compiler runs; see README.md."""
