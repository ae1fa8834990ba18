"""Takes a trace apart: which calls belong to the factory, the account and the paymaster, and what they returned.

Called by the service before the rules. The entry point makes one call for each, in this order, and then calls itself to
execute the operation. Pure.
"""

from collections.abc import Iterator

import msgspec

from capstan.bundler.models import Role
from capstan.bundler.validation.runs import Run
from capstan.bundler.validation.trace import Frame, Trace
from capstan.userops.abi import Malformed, Reader
from capstan.userops.simulation import ValidationData
from capstan.userops.versions import RELEASES

_GOOD = ValidationData(0, 0, None)
# Where innerHandleOp has the gas used before it, in words: the operation, its hash, prefund, context, then this.
_GAS_PLACE_FLAT, _GAS_PLACE_PACKED = 12, 14


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of the validation by entity. What is None did not take place."""

    # The initialisation of an EIP-7702 sender is the account's, before it validates.
    initialisation: Frame | None = None
    factory: Frame | None = None
    account: Frame | None = None
    paymaster: Frame | None = None
    # The entry point's call of itself, with which execution begins.
    execution: Frame | None = None
    account_data: ValidationData = _GOOD
    paymaster_data: ValidationData = _GOOD
    context: bytes = b""
    # What was used before the execution, with preVerificationGas, as the entry point counts it.
    pre_operation_gas: int = 0

    def gas(self) -> dict[Role, int]:
        """What each entity used of the gas."""
        used: dict[Role, int] = {}
        for role, frame in self.by_role():
            used[role] = used.get(role, 0) + frame.gas_used
        return used

    def by_role(self) -> Iterator[tuple[Role, Frame]]:
        """What is to be judged, and as whose."""
        pairs: tuple[tuple[Role, Frame | None], ...] = (
            ("factory", self.factory),
            ("account", self.initialisation),
            ("account", self.account),
            ("paymaster", self.paymaster),
        )
        for role, frame in pairs:
            if frame is not None:
                yield role, frame


def take_apart(run: Run, trace: Trace) -> Phases:
    """The phases of a run."""
    found: dict[str, Frame] = {}
    for frame in trace.root.calls:
        if frame.context == run.entry_point and frame.caller == run.entry_point:
            found["execution"] = frame
            break
        if frame.context == run.sender_creator and frame.calls:
            found["initialisation" if run.operation.is_delegation else "factory"] = frame.calls[0]
        elif frame.context == run.operation.sender and "account" not in found:
            found["account"] = frame
        elif frame.context == run.operation.paymaster:
            found["paymaster"] = frame
    account, paymaster = found.get("account"), found.get("paymaster")
    account_data, paymaster_data, context = _GOOD, _GOOD, b""
    if account is not None and not account.failed and len(account.output) >= 32:
        account_data = ValidationData.of(int.from_bytes(account.output[:32], "big"))
    if paymaster is not None and not paymaster.failed:
        try:
            reader = Reader(paymaster.output)
            context, paymaster_data = reader.data(0), ValidationData.of(reader.number(1))
        except Malformed:
            # Then the entry point has reverted, and says so.
            context = b""
    return Phases(
        initialisation=found.get("initialisation"),
        factory=found.get("factory"),
        account=account,
        paymaster=paymaster,
        execution=found.get("execution"),
        account_data=account_data,
        paymaster_data=paymaster_data,
        context=context,
        pre_operation_gas=_pre_operation_gas(run, found.get("execution")),
    )


def _pre_operation_gas(run: Run, execution: Frame | None) -> int:
    """What the entry point passes on as used so far; 0 when the arguments are not those of this operation."""
    if execution is None:
        return 0
    reader = Reader(execution.input[4:])
    try:
        if reader.address(1) != run.operation.sender or reader.number(2) != run.operation.nonce:
            return 0
        return reader.number(_GAS_PLACE_PACKED if RELEASES[run.version].packed else _GAS_PLACE_FLAT)
    except Malformed:
        return 0
