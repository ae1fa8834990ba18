"""Rate limits: requests per second, requests per day and compute units per second, in one process or over many."""
