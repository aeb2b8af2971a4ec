"""Times of subquant beside others', in one run: see `scripts/bench`."""
