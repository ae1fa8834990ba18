"""Finds the gas limits with which an operation lands: as low as they can be, and never too low.

Called by the method eth_estimateUserOperationGas. The search runs inside one `eth_call`, in the entry point's place
(see `userops.simulation`); only where the node's gas for a call does not suffice it goes on in another. The signature
may be a dummy, the account need not be there yet, and neither it nor its paymaster need money: that is judged when the
operation is sent. Nothing is stored.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from capstan.bundler.datafee import DataFee, NoDataFee, incompressible
from capstan.bundler.estimation.models import FindPrice, GasLimits, Margins, Price
from capstan.bundler.failing import refusal_of
from capstan.bundler.refusals import EXECUTION_REVERTED, INVALID_FIELDS, REJECTED_BY_PAYMASTER, Refusal
from capstan.bundler.simulator import Simulator, StateOverride
from capstan.core.errors import UpstreamError
from capstan.core.hexes import to_checksum_address, to_data, to_quantity
from capstan.userops.abi import Malformed
from capstan.userops.codec import encode_handle_ops
from capstan.userops.failures import revert_text
from capstan.userops.gas import least_pre_verification_gas
from capstan.userops.models import UserOperation
from capstan.userops.simulation import (
    CALLER,
    LONGEST_CALL,
    PLENTY,
    EntryPointCode,
    Estimation,
    Found,
    Search,
    Searches,
    decode_estimation,
    delegation_code,
    deposit_override,
    encode_estimation,
)

# The verification limits that are tried first. Low ones come first because a paymaster may ask for as much of a token
# as the operation can cost at most.
LADDER = (300_000, 1_000_000, 3_000_000, 10_000_000)
_ROUNDS = 8
# In the place of limits and fees that are not known yet: of the size that they will have.
_SOME_LIMIT = 100_000
_SOME_GAS = 0xFFFFFF
_SIGNATURE_BYTES = 65
_LIMIT_BYTES = 4
# Up to 280,000 gwei.
_FEE_BYTES = 6
# An operation that leaves room around it in the calldata of the simulation.
_LONGEST_OPERATION = LONGEST_CALL - 2_048
# A search that is content only when the same gas is used has failed when it ends so far from what was used.
_FAR = 2
_FAR_LEAST = 100_000


class GasEstimator:
    """Estimates operations of one entry point on one network."""

    def __init__(
        self,
        simulator: Simulator,
        price: FindPrice,
        *,
        data_fee: DataFee | None = None,
        margins: Margins | None = None,
    ) -> None:
        self._simulator = simulator
        self._price = price
        self._data_fee = data_fee or NoDataFee()
        self._margins = margins or Margins()

    async def estimate(self, operation: UserOperation, overrides: StateOverride | None = None) -> GasLimits:
        """The limits. Raises `Refusal` when the operation would fail with any, and the failures of the pool."""
        entry_point = await self._simulator.entry_point()
        prices = await self._prices(operation)
        filled = _filled(operation, prices)
        if len(encode_handle_ops(entry_point.version, [filled], CALLER)) > _LONGEST_OPERATION:
            raise Refusal(INVALID_FIELDS, f"the operation is longer than {_LONGEST_OPERATION} bytes")
        extra = _assumed(entry_point, filled, overrides or {})
        searches = await self._search(entry_point, filled, extra)
        return await self._limits(entry_point, filled, searches, prices)

    async def _prices(self, operation: UserOperation) -> Price:
        """As the operation names them; asked for where it does not, or where the base fee is needed as well."""
        if operation.max_fee_per_gas and isinstance(self._data_fee, NoDataFee):
            return Price(0, operation.max_fee_per_gas, operation.max_priority_fee_per_gas)
        asked = await self._price()
        if not operation.max_fee_per_gas:
            return asked
        return Price(asked.base_fee, operation.max_fee_per_gas, operation.max_priority_fee_per_gas)

    async def _search(self, entry_point: EntryPointCode, operation: UserOperation, extra: StateOverride) -> Searches:
        found = await self._run(entry_point, Estimation(operation=operation, ladder=LADDER), extra)
        call = found.call
        if call.high > _FAR * call.used + _FAR_LEAST:
            # What the call uses depends on what it is given. Then it must be enough that it succeeds.
            known = msgspec.structs.replace(found, call=Search(call.used, call.high, call.used), post=Search())
            again = Estimation(operation=operation, ladder=LADDER, strict=False, known=known)
            found = await self._run(entry_point, again, extra)
        return found

    async def _run(self, entry_point: EntryPointCode, wanted: Estimation, extra: StateOverride) -> Searches:
        for _ in range(_ROUNDS):
            answer = await self._simulator.run(encode_estimation(entry_point, wanted), extra=extra)
            try:
                found = decode_estimation(answer)
            except (Malformed, IndexError):
                raise UpstreamError(
                    f"A node of {self._simulator.network.name} answered a simulation with nonsense."
                ) from None
            if found.status == "done":
                return found.searches
            if found.status != "unfinished":
                raise _refusal(wanted.operation, found)
            if found.searches == wanted.known:
                break
            wanted = msgspec.structs.replace(wanted, known=found.searches)
        raise Refusal(
            EXECUTION_REVERTED, "the operation needs more gas than the node allows to a call, and cannot be estimated"
        )

    async def _limits(
        self, entry_point: EntryPointCode, operation: UserOperation, found: Searches, prices: Price
    ) -> GasLimits:
        margins = self._margins
        packed = entry_point.version != "0.6"
        verification = found.verification.high
        if not packed:
            # postOp gets what verification may use.
            verification = max(verification, found.post.high)
        sponsored = packed and operation.paymaster is not None
        estimated = msgspec.structs.replace(
            operation,
            verification_gas_limit=margins.verification.on(verification),
            call_gas_limit=margins.call.on(found.call.high) if found.call.high else 0,
            paymaster_verification_gas_limit=(
                margins.paymaster_verification.on(found.paymaster_verification.high) if sponsored else 0
            ),
            paymaster_post_op_gas_limit=margins.post.on(found.post.high) if sponsored and found.post.high else 0,
        )
        return GasLimits(
            pre_verification_gas=await self._pre_verification_gas(entry_point, estimated, found, prices),
            verification_gas_limit=estimated.verification_gas_limit,
            call_gas_limit=estimated.call_gas_limit,
            paymaster_verification_gas_limit=estimated.paymaster_verification_gas_limit if sponsored else None,
            paymaster_post_op_gas_limit=estimated.paymaster_post_op_gas_limit if sponsored else None,
        )

    async def _pre_verification_gas(
        self, entry_point: EntryPointCode, operation: UserOperation, found: Searches, prices: Price
    ) -> int:
        # What will surely be used: half of the verification limit, should most of it be the 64th parts that are kept.
        executed = found.verification.high // 2 + found.call.used
        signed = _dense(operation)
        least = least_pre_verification_gas(entry_point.version, signed, executed=executed)
        calldata = encode_handle_ops(entry_point.version, [signed], incompressible(20))
        price = min(prices.max_fee, prices.base_fee + prices.max_priority_fee) or prices.max_fee
        fee = await self._data_fee.gas(entry_point.address, calldata, price)
        return least + self._margins.data_fee.on(fee)


def _filled(operation: UserOperation, prices: Price) -> UserOperation:
    """With something in the place of all that is not given, so that its bytes are as many and cost as much."""
    sponsored = operation.paymaster is not None
    return msgspec.structs.replace(
        operation,
        max_fee_per_gas=prices.max_fee,
        max_priority_fee_per_gas=operation.max_priority_fee_per_gas or prices.max_priority_fee,
        pre_verification_gas=operation.pre_verification_gas or _SOME_GAS,
        call_gas_limit=operation.call_gas_limit or _SOME_LIMIT,
        paymaster_post_op_gas_limit=(operation.paymaster_post_op_gas_limit or _SOME_LIMIT) if sponsored else 0,
    )


def _dense(operation: UserOperation) -> UserOperation:
    """With no zero byte in what the client may still change: its bytes then cost what they can cost at most."""
    sponsored = operation.paymaster is not None
    return msgspec.structs.replace(
        operation,
        signature=incompressible(len(operation.signature) or _SIGNATURE_BYTES),
        verification_gas_limit=_full(operation.verification_gas_limit, _LIMIT_BYTES),
        call_gas_limit=_full(operation.call_gas_limit, _LIMIT_BYTES),
        pre_verification_gas=_full(operation.pre_verification_gas, _LIMIT_BYTES),
        paymaster_verification_gas_limit=_full(operation.paymaster_verification_gas_limit, _LIMIT_BYTES * sponsored),
        paymaster_post_op_gas_limit=_full(operation.paymaster_post_op_gas_limit, _LIMIT_BYTES * sponsored),
        max_fee_per_gas=_full(operation.max_fee_per_gas, _FEE_BYTES),
        max_priority_fee_per_gas=_full(operation.max_priority_fee_per_gas, _FEE_BYTES),
    )


def _full(number: int, least_bytes: int) -> int:
    """A number as long as this one, and at least so many bytes, of which none is zero."""
    length = max(least_bytes, -(-number.bit_length() // 8))
    return int.from_bytes(incompressible(length), "big")


def _assumed(entry_point: EntryPointCode, operation: UserOperation, given: StateOverride) -> StateOverride:
    """The state that is assumed: what the caller gave, and enough money for whoever pays."""
    assumed: dict[bytes, dict[str, Any]] = {address: dict(fields) for address, fields in given.items()}
    code = delegation_code(operation)
    if code is not None:
        assumed.setdefault(operation.sender, {}).setdefault("code", code)
    if operation.paymaster is None:
        assumed.setdefault(operation.sender, {}).setdefault("balance", to_quantity(PLENTY))
        return assumed
    slot, value = deposit_override(entry_point.version, operation.paymaster)
    storage = assumed.setdefault(entry_point.address, {})
    kept: Mapping[str, str] = storage.get("stateDiff", {})
    if "state" not in storage and slot not in kept:
        storage["stateDiff"] = {**kept, slot: value}
    return assumed


def _refusal(operation: UserOperation, found: Found) -> Refusal:
    """Why there is no limit with which the operation would succeed."""
    if found.status == "validation":
        return refusal_of(operation, found.reason)
    reason = revert_text(found.reason) if found.reason else "no reason given; it may need more gas than a call can have"
    data = {"revertData": to_data(found.reason)}
    if found.status == "post" and operation.paymaster is not None:
        data["paymaster"] = to_checksum_address(operation.paymaster)
        return Refusal(REJECTED_BY_PAYMASTER, f"postOp of the paymaster reverted: {reason}", data)
    return Refusal(EXECUTION_REVERTED, f"execution reverted: {reason}", data)
