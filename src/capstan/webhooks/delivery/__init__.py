"""Sends what was matched: claims, attempts, retries, quotas, and what follows from failures."""
