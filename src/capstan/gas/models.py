"""Gas prices as the API shows them.

Amounts are exact decimal numbers of gwei as strings. Made by the service, encoded by the server.
"""

import msgspec


class GasEstimate(msgspec.Struct, frozen=True):
    """What to offer for one speed, and how long inclusion should take."""

    max_fee_gwei: str
    max_priority_fee_gwei: str
    estimated_seconds: int


class GasEstimates(msgspec.Struct, frozen=True):
    """The three speeds."""

    slow: GasEstimate
    standard: GasEstimate
    fast: GasEstimate


class GasPrices(msgspec.Struct, frozen=True):
    """The gas prices of one chain at one block."""

    chain: str
    block_number: int
    base_fee_gwei: str
    estimates: GasEstimates
    updated_at: str
