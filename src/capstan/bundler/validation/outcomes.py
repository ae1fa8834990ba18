"""Turns what the entry point and the entities said into a refusal, or into the time range of the operation.

Called by the service with the phases of a trace. The JSON-RPC codes are those of ERC-7769. Pure.
"""

from capstan.bundler.failing import refusal_of
from capstan.bundler.refusals import OUT_OF_TIME_RANGE, UNSUPPORTED_AGGREGATOR, Refusal
from capstan.bundler.validation.phases import Phases
from capstan.chain.calls.models import BlockRef
from capstan.core.hexes import to_checksum_address, to_quantity
from capstan.userops.failures import FailedOperation, decode_failure
from capstan.userops.models import UserOperation

# What is about to expire when it reaches a bundle is not worth a bundle.
LEAST_SECONDS_LEFT = 30
# The validation is over, and the gas we gave does not suffice for the execution.
_EXECUTION_OUT_OF_GAS = "AA95"


def check_failure(operation: UserOperation, phases: Phases, data: bytes) -> None:
    """Raise the refusal for which `handleOps` reverted with this data, unless it was after the validation."""
    failure = decode_failure(data)
    if isinstance(failure, FailedOperation) and failure.code == _EXECUTION_OUT_OF_GAS:
        return
    refusal = refusal_of(operation, data)
    if refusal.code == OUT_OF_TIME_RANGE:
        after, until = _time_range(phases)
        raise Refusal(refusal.code, refusal.message, {**refusal.data, **_range_data(after, until)})
    raise refusal


def check_aggregator(phases: Phases) -> None:
    """Refuse an account that wants an aggregator: none is supported."""
    aggregator = phases.account_data.aggregator
    if aggregator is not None:
        shown = to_checksum_address(aggregator)
        raise Refusal(
            UNSUPPORTED_AGGREGATOR, f"the signature aggregator {shown} is not supported", {"aggregator": shown}
        )


def check_times(phases: Phases, block: BlockRef, now: float) -> tuple[int, int | None]:
    """The time range of an operation, in seconds since 1970. Raises `Refusal` when now is not well within it.

    A range of block numbers has been checked by the entry point, and is no time range.
    """
    after, until = _time_range(phases)
    moment = max(int(now), block.timestamp)
    reason = ""
    if after > moment:
        reason = f"time-range in the future time {after}, now={moment}"
    elif until is not None and until < moment:
        reason = "already expired"
    elif until is not None and until < moment + LEAST_SECONDS_LEFT:
        reason = "expires too soon"
    if reason:
        raise Refusal(OUT_OF_TIME_RANGE, reason, _range_data(after, until))
    return after, until


def _time_range(phases: Phases) -> tuple[int, int | None]:
    """What account and paymaster have in common."""
    ranges = [each for each in (phases.account_data, phases.paymaster_data) if not each.in_blocks]
    ends = [each.valid_until for each in ranges if each.valid_until is not None]
    return max((each.valid_after for each in ranges), default=0), min(ends, default=None)


def _range_data(after: int, until: int | None) -> dict[str, str]:
    return {"validAfter": to_quantity(after), "validUntil": to_quantity(until or 0)}
