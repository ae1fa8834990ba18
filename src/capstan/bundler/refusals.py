"""Why an operation is refused, with the JSON-RPC code that tells it (ERC-7769).

Raised by the rules of the bundler; the edge turns them into JSON-RPC errors. A message names the rule and the address,
and what would help.
"""

from collections.abc import Mapping

INVALID_FIELDS = -32602
REJECTED_BY_ACCOUNT = -32500
REJECTED_BY_PAYMASTER = -32501
RULE_VIOLATION = -32502
OUT_OF_TIME_RANGE = -32503
THROTTLED_OR_BANNED = -32504
STAKE_TOO_LOW = -32505
UNSUPPORTED_AGGREGATOR = -32506
SIGNATURE_FAILED = -32507
DEPOSIT_TOO_LOW = -32508
# Not in the ERC, but what bundlers answer when the call of the account reverts.
EXECUTION_REVERTED = -32521


class Refusal(Exception):
    """An operation that does not enter the pool."""

    def __init__(self, code: int, message: str, data: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data: Mapping[str, str] = data or {}
