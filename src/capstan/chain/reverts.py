"""The data with which a contract reverted, wherever the node put it in its error.

Called by whoever runs a call that may revert and wants to know why.
"""

from typing import Any

import msgspec

from capstan.chain.errors import NodeError
from capstan.core.hexes import parse_data


def revert_data(error: NodeError) -> bytes | None:
    """The revert data of an error of eth_call or eth_estimateGas; None when the error carries none."""
    try:
        data: Any = msgspec.json.decode(error.data)
    except msgspec.DecodeError:
        return None
    if isinstance(data, dict):
        # Hardhat puts it one level deeper.
        data = data.get("data")
    if not isinstance(data, str):
        return None
    # Parity and its heirs write `Reverted 0x…`.
    try:
        return parse_data(data.rpartition(" ")[2])
    except ValueError:
        return None
