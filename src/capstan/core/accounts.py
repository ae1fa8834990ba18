"""Loads eth-account for those who sign, when they first do: its import takes a second, and most processes sign nothing.

Called by whoever holds a key. A library behind it raises Python's recursion limit to 100,000 when it is imported;
deeply nested JSON would then overflow the C stack and kill the process, so the limit is put back.
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eth_account import Account


def accounts() -> "type[Account]":
    """The class that makes, opens and uses keys."""
    limit = sys.getrecursionlimit()
    from eth_account import Account

    sys.setrecursionlimit(limit)
    return Account
