"""Tests of the Solana development node, part by part. The whole, with clients nobody here wrote, is in `tests/e2e`."""
