"""Turns what the entry point and the entities said into a refusal, or into the time range of the operation.

Called by the service, and by whoever simulates without a trace. The JSON-RPC codes are those of ERC-7769. Pure.
"""

from capstan.bundler.refusals import (
    DEPOSIT_TOO_LOW,
    INVALID_FIELDS,
    OUT_OF_TIME_RANGE,
    REJECTED_BY_ACCOUNT,
    REJECTED_BY_PAYMASTER,
    SIGNATURE_FAILED,
    UNSUPPORTED_AGGREGATOR,
    Refusal,
)
from capstan.bundler.validation.phases import Phases, ValidationData
from capstan.chain.calls.models import BlockRef
from capstan.core.hexes import to_checksum_address, to_quantity
from capstan.userops.failures import AggregatorFailed, FailedOperation, decode_failure, revert_text
from capstan.userops.models import UserOperation

# What is about to expire when it reaches a bundle is not worth a bundle.
LEAST_SECONDS_LEFT = 30
_CODES = {
    "AA22": OUT_OF_TIME_RANGE,
    "AA24": SIGNATURE_FAILED,
    "AA31": DEPOSIT_TOO_LOW,
    "AA32": OUT_OF_TIME_RANGE,
    "AA34": SIGNATURE_FAILED,
    "AA94": INVALID_FIELDS,
}
# The validation is over, and the gas we gave does not suffice for the execution.
_EXECUTION_OUT_OF_GAS = "AA95"


def failure_refusal(operation: UserOperation, data: bytes) -> Refusal | None:
    """Why `handleOps` reverted with this, as a refusal; None when it was not for the validation."""
    failure = decode_failure(data)
    if isinstance(failure, AggregatorFailed):
        return _unsupported(failure.aggregator)
    if not isinstance(failure, FailedOperation):
        text = revert_text(data) if data else "the entry point reverted without a reason"
        return Refusal(REJECTED_BY_ACCOUNT, text)
    if failure.code == _EXECUTION_OUT_OF_GAS:
        return None
    message = failure.reason
    if failure.inner:
        message += f": {revert_text(failure.inner)}"
    is_paymaster = failure.entity == "paymaster"
    code = _CODES.get(failure.code or "", REJECTED_BY_PAYMASTER if is_paymaster else REJECTED_BY_ACCOUNT)
    given = {}
    if is_paymaster and operation.paymaster is not None:
        given["paymaster"] = to_checksum_address(operation.paymaster)
    return Refusal(code, message, given)


def check_aggregator(phases: Phases) -> None:
    """Refuse an account that wants an aggregator: none is trusted."""
    aggregator = phases.account_data.aggregator
    if aggregator is not None:
        raise _unsupported(aggregator)


def check_times(phases: Phases, block: BlockRef, now: float) -> tuple[int, int | None]:
    """The time range of an operation, in seconds since 1970. Raises `Refusal` when now is not well within it.

    A range of block numbers is checked against the block, and is no time range.
    """
    after, until = 0, None
    ranges = [("", phases.account_data), ("paymaster ", phases.paymaster_data)]
    for name, data in ranges:
        if data.in_blocks:
            if data.valid_after > block.number + 1 or (
                data.valid_until is not None and data.valid_until <= block.number
            ):
                raise _out_of_range(name, "block range", data)
            continue
        after = max(after, data.valid_after)
        if data.valid_until is not None:
            until = data.valid_until if until is None else min(until, data.valid_until)
    moment = max(int(now), block.timestamp)
    whole = ValidationData(0, after, until)
    if after > moment:
        raise _out_of_range("", f"time-range in the future time {after}, now={moment}", whole)
    if until is not None and until < moment:
        raise _out_of_range("", "already expired", whole)
    if until is not None and until < moment + LEAST_SECONDS_LEFT:
        raise _out_of_range("", "expires too soon", whole)
    return after, until


def _out_of_range(name: str, reason: str, data: ValidationData) -> Refusal:
    given = {"validAfter": to_quantity(data.valid_after), "validUntil": to_quantity(data.valid_until or 0)}
    return Refusal(OUT_OF_TIME_RANGE, f"{name}{reason}", given)


def _unsupported(aggregator: bytes) -> Refusal:
    shown = to_checksum_address(aggregator)
    return Refusal(UNSUPPORTED_AGGREGATOR, f"the signature aggregator {shown} is not supported", {"aggregator": shown})
