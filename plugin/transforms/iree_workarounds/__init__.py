"""What IREE refuses, or computes wrongly, written so that it does not: helpers of the passes."""
