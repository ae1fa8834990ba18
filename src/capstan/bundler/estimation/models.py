"""What is estimated, and what an estimate rests on besides the operation: prices and margins. Plain values."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from capstan.core.hexes import to_quantity


class Price(msgspec.Struct, frozen=True):
    """What gas costs now, in wei: the base fee of the next block, and what to offer for it."""

    base_fee: int
    max_fee: int
    max_priority_fee: int


# Asked only where the operation does not name its fees, or where data has a price of its own.
FindPrice: TypeAlias = Callable[[], Awaitable[Price]]


class Margin(msgspec.Struct, frozen=True):
    """What is added to a limit that is known to suffice: a share in hundredths, and at least so much."""

    percent: int
    least: int

    def on(self, limit: int) -> int:
        """The limit with the margin."""
        return limit + max(-(-limit * self.percent // 100), self.least)


class Margins(msgspec.Struct, frozen=True, kw_only=True):
    """The state changes between an estimate and the block, and a real signature may cost more than a dummy."""

    # LIM-030: limits must exceed what is used by 4,000. What is not used of these is not paid for.
    verification: Margin = Margin(10, 6_000)
    paymaster_verification: Margin = Margin(10, 6_000)
    # Of these a tenth of what is not used is paid for, from 40,000 on (0.8), or all of it (0.7).
    call: Margin = Margin(5, 3_000)
    post: Margin = Margin(10, 3_000)
    # The fee that rollups take for data moves with the parent chain.
    data_fee: Margin = Margin(15, 0)


class GasLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of eth_estimateUserOperationGas."""

    pre_verification_gas: int
    verification_gas_limit: int
    call_gas_limit: int
    # None without a paymaster, and in version 0.6, which has no such limits.
    paymaster_verification_gas_limit: int | None = None
    paymaster_post_op_gas_limit: int | None = None

    def render(self) -> dict[str, str]:
        """As JSON-RPC carries it (ERC-7769)."""
        named = {
            "preVerificationGas": self.pre_verification_gas,
            "verificationGasLimit": self.verification_gas_limit,
            "callGasLimit": self.call_gas_limit,
            "paymasterVerificationGasLimit": self.paymaster_verification_gas_limit,
            "paymasterPostOpGasLimit": self.paymaster_post_op_gas_limit,
        }
        return {name: to_quantity(limit) for name, limit in named.items() if limit is not None}
