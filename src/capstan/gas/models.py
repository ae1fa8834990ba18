"""Gas prices as the API shows them.

Amounts are exact decimal numbers of gwei as strings. Made by the service, encoded by the server.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

# Whose rules the fee for data on the parent chain follows.
RollupFee = Literal["op_stack", "scroll", "arbitrum"]


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


class GasPrices(msgspec.Struct, frozen=True, omit_defaults=True):
    """The gas prices of one chain at one block."""

    chain: str
    block_number: int
    base_fee_gwei: str
    estimates: GasEstimates
    updated_at: Annotated[str, Meta(description="When these prices were made: with the block of `block_number`.")]
    data_fee: Annotated[
        RollupFee | UnsetType,
        Meta(
            description="Present on rollups that charge for data on their parent chain as well: whose contract tells"
            " that fee. It comes on top of these prices (Arbitrum: as more gas)."
        ),
    ] = UNSET
