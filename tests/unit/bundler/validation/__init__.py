"""Tests of validation that need no chain."""
