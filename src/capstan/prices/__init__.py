"""Prices of tokens and of the native coin in US dollars."""
