"""The EVM that runs in worker processes. Only `workers` and the worker itself know it."""
