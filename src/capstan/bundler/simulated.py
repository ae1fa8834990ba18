"""Validates operations by simulation alone: the entry point's verdict, without the rules of ERC-7562.

The backend of networks whose configuration says `unsafe`, and of none else. One call asks the entry point for its
verdict, account and paymaster for their time range, and the entry point for the stakes. Nothing is traced, so an
operation that breaks a rule of the mempool is not found out.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from capstan.bundler.failing import refusal_of
from capstan.bundler.models import Entity, Role
from capstan.bundler.refusals import OUT_OF_TIME_RANGE, Refusal
from capstan.bundler.simulator import Simulator
from capstan.bundler.validating import Validated
from capstan.chain.calls.blocks import HeadBlocks
from capstan.core.errors import UpstreamError
from capstan.core.hexes import to_checksum_address, to_data, to_quantity
from capstan.userops.abi import Malformed, Reader
from capstan.userops.failures import FailedOperation, Reverted, decode_failure
from capstan.userops.models import UserOperation
from capstan.userops.simulation import (
    Call,
    Inspection,
    ValidationData,
    decode_inspection,
    delegation_code,
    deposit_question,
    encode_bundle,
    encode_inspection,
    is_overflow,
    nonce_override,
    preparations,
)

# An operation that ends so soon would not reach a block (ERC-7562, "validUntil").
LEAST_SECONDS = 30
_GOOD = ValidationData(0, 0, None)


class StakeRule(msgspec.Struct, frozen=True):
    """From when on an entity counts as staked (SREP-010)."""

    minimum_stake: int = 10**18
    minimum_unstake_delay: int = 86_400


class SimulationValidator:
    """A `Validator` that simulates."""

    def __init__(self, simulator: Simulator, heads: HeadBlocks, stakes: StakeRule) -> None:
        self._simulator = simulator
        self._heads = heads
        self._stakes = stakes

    async def validate(
        self, operation: UserOperation, *, earlier: Validated | None = None, queued: bool = False
    ) -> Validated:
        """See `Validator`. Without a trace there is no code to compare with what was found earlier."""
        entry_point = await self._simulator.entry_point()
        block = await self._heads.known(self._simulator.network)
        steps = preparations(entry_point, operation, 0)
        addresses = _entities(operation)
        questions = [Call(entry_point.address, deposit_question(address)) for _, address in addresses]
        bundle = encode_bundle(entry_point.version, [operation])
        code = delegation_code(operation)
        assumed: dict[bytes, dict[str, Any]] = {} if code is None else {operation.sender: {"code": code}}
        if queued:
            slot, value = nonce_override(operation)
            assumed[entry_point.address] = {"stateDiff": {to_data(slot): to_data(value)}}
        # At the latest block, which may be one newer than the one that is told: the verdict should be the newest.
        answer = await self._simulator.run(encode_inspection(bundle, [*steps, *questions]), extra=assumed)
        try:
            seen = decode_inspection(answer)
            stakes = [self._is_staked(each) for each in seen.answers[len(steps) :]]
            account, paymaster = _validation_data(operation, seen, len(steps))
        except Malformed:
            raise UpstreamError(
                f"A node of {self._simulator.network.name} answered a simulation with nonsense."
            ) from None
        valid_after = max(account.valid_after, paymaster.valid_after)
        valid_until = min((end for end in (account.valid_until, paymaster.valid_until) if end), default=None)
        _require_valid(operation, seen.refusal, valid_after, valid_until)
        if valid_until is not None and valid_until < block.timestamp + LEAST_SECONDS:
            raise _out_of_time("expires too soon", valid_after, valid_until)
        found = {role: Entity(role, address, staked) for (role, address), staked in zip(addresses, stakes, strict=True)}
        return Validated(
            block=block,
            sender=found["account"],
            factory=found.get("factory"),
            paymaster=found.get("paymaster"),
            valid_after=valid_after,
            valid_until=valid_until,
        )

    def _is_staked(self, answer: bytes | None) -> bool:
        """From DepositInfo: deposit, staked, stake, unstakeDelaySec, withdrawTime."""
        if answer is None:
            return False
        info = Reader(answer)
        enough = info.number(2) >= self._stakes.minimum_stake
        return info.flag(1) and enough and info.number(3) >= self._stakes.minimum_unstake_delay


def _entities(operation: UserOperation) -> list[tuple[Role, bytes]]:
    found: list[tuple[Role, bytes]] = [("account", operation.sender)]
    if operation.factory is not None and not operation.is_delegation:
        found.append(("factory", operation.factory))
    if operation.paymaster is not None:
        found.append(("paymaster", operation.paymaster))
    return found


def _validation_data(operation: UserOperation, seen: Inspection, steps: int) -> tuple[ValidationData, ValidationData]:
    """What account and paymaster say. One that reverted says nothing; the verdict tells of that."""
    answers: Sequence[bytes | None] = seen.answers[:steps]
    has_paymaster = operation.paymaster is not None
    account = answers[-2 if has_paymaster else -1]
    paymaster = answers[-1] if has_paymaster else None
    return (
        _GOOD if account is None or len(account) != 32 else ValidationData.of(int.from_bytes(account, "big")),
        # The context stands first; its place is one word, the data the next.
        _GOOD if paymaster is None or len(paymaster) < 64 else ValidationData.of(Reader(paymaster).number(1)),
    )


def _require_valid(operation: UserOperation, refused: bytes, valid_after: int, valid_until: int | None) -> None:
    failure = decode_failure(refused)
    if isinstance(failure, FailedOperation | Reverted) and is_overflow(failure.reason):
        return
    refusal = refusal_of(operation, refused)
    if refusal.code == OUT_OF_TIME_RANGE:
        paymaster = operation.paymaster if refusal.message.startswith("AA32") else None
        raise _out_of_time(refusal.message, valid_after, valid_until, paymaster)
    raise refusal


def _out_of_time(message: str, after: int, until: int | None, paymaster: bytes | None = None) -> Refusal:
    data = {"validAfter": to_quantity(after), "validUntil": to_quantity(until or 0)}
    if paymaster is not None:
        data["paymaster"] = to_checksum_address(paymaster)
    return Refusal(OUT_OF_TIME_RANGE, message, data)
