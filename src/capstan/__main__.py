"""Lets `python -m capstan` do what the `capstan` script does."""

from capstan.cli import main

main()
