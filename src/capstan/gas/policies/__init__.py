"""Gas policies: what may be sponsored, for whom, and for how much."""
