"""The `capstan` command. Each file of this package is one command or one group of commands."""

from capstan.cli.main import main

__all__ = ["main"]
