"""Turns what an entry point says against an operation into the refusal that its sender gets (ERC-7769).

Called by everything that simulates. The message is the entry point's own, `AA21 didn't pay prefund`, because that is
what clients know; what the account or paymaster itself said follows it. Pure.
"""

from capstan.bundler.refusals import (
    OUT_OF_TIME_RANGE,
    REJECTED_BY_ACCOUNT,
    REJECTED_BY_PAYMASTER,
    SIGNATURE_FAILED,
    Refusal,
)
from capstan.core.hexes import to_checksum_address, to_data
from capstan.userops.failures import FailedOperation, Reverted, decode_failure, revert_text
from capstan.userops.models import UserOperation

_SIGNATURE_CODES = frozenset({"AA24", "AA34"})
_TIME_CODES = frozenset({"AA22", "AA32"})
_NO_REASON = "the entry point reverted without a reason"


def refusal_of(operation: UserOperation, refused: bytes) -> Refusal:
    """The refusal that belongs to the revert data of a simulation of this operation alone."""
    failure = decode_failure(refused)
    if isinstance(failure, Reverted):
        return Refusal(REJECTED_BY_ACCOUNT, failure.reason)
    if not isinstance(failure, FailedOperation):
        return Refusal(REJECTED_BY_ACCOUNT, revert_text(refused) if refused else _NO_REASON)
    data = {}
    if failure.entity == "paymaster" and operation.paymaster is not None:
        data["paymaster"] = to_checksum_address(operation.paymaster)
    message = failure.reason
    if failure.inner:
        data["revertData"] = to_data(failure.inner)
        message = f"{message}: {revert_text(failure.inner)}"
    return Refusal(_code_of(failure), message, data)


def _code_of(failure: FailedOperation) -> int:
    if failure.code in _SIGNATURE_CODES:
        return SIGNATURE_FAILED
    if failure.code in _TIME_CODES:
        return OUT_OF_TIME_RANGE
    return REJECTED_BY_PAYMASTER if failure.entity == "paymaster" else REJECTED_BY_ACCOUNT
