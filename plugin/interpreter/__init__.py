"""StableHLO's reference interpreter: evaluates a lowered module in a child process."""
