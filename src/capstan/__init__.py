"""Capstan: a self-hosted blockchain infrastructure API.

The package holds one service with several capabilities. `app.py` wires them, `cli/` starts them.
"""

__version__ = "0.1.0"
