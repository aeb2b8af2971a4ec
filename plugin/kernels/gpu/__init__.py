"""GPU kernels, which Vulkan runs."""
