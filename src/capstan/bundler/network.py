"""The bundler of one network: takes operations in, and tells what became of them.

Called by the methods. An operation is validated, judged by the rules of the pool, and in the database before its hash
is told. Whoever wants to know of it later gets an answer: pending, in a bundle, included, or why not.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from capstan.bundler.chain import BundlerChain
from capstan.bundler.choosing import BundleLimits, bundle_gas
from capstan.bundler.datafee import DataFee, NoDataFee, incompressible
from capstan.bundler.entries import Entry, EntryPoint
from capstan.bundler.estimation.service import GasEstimator
from capstan.bundler.fees import Fees
from capstan.bundler.pool import OperationPool
from capstan.bundler.refusals import INVALID_FIELDS, OUT_OF_TIME_RANGE, Refusal
from capstan.bundler.validating import Validated, Validator
from capstan.bundler.worker import BundlingWorker
from capstan.chain.calls.models import BlockChanged
from capstan.core.clock import Clock
from capstan.core.errors import UpstreamError
from capstan.core.hexes import to_quantity
from capstan.userops.codec import codec_for, encode_handle_ops
from capstan.userops.gas import least_pre_verification_gas
from capstan.userops.models import InvalidOperation, UserOperation

_MOST_REFUSALS = 10_000
_MICROSECONDS = 1_000_000
# How long an operation waits for the validation of the one before it.
_ARRIVAL_SECONDS = 20.0
_WRONG_NONCE = "AA25"

# An entry point, a sender and a nonce.
_Place: TypeAlias = tuple[bytes, bytes, int]


class NetworkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a network's bundler accepts."""

    bundle: BundleLimits
    # LIM-010.
    operation_bytes: int = 8192
    least_tip: int = 0
    # An operation must be valid for at least so long from now on.
    least_seconds: int = 30
    # How many blocks are searched for operations that did not come through this bundler.
    lookup_blocks: int = 1000


class NetworkBundler:
    """The bundler of one network."""

    def __init__(
        self,
        name: str,
        chain_id: int,
        entry_points: Sequence[EntryPoint],
        *,
        pool: OperationPool,
        chain: BundlerChain,
        validators: Mapping[bytes, Validator],
        estimators: Mapping[bytes, GasEstimator],
        data_fee: DataFee,
        worker: BundlingWorker,
        clock: Clock,
        options: NetworkOptions,
        speeds: Callable[[], Awaitable[Mapping[str, Fees]]],
        debug: bool = False,
        unavailable: str = "",
    ) -> None:
        """`speeds` are fees by speed, slow to fast. `unavailable` says why no operation can be accepted, if so."""
        self.name = name
        self.chain_id = chain_id
        self.entry_points = tuple(entry_points)
        self.pool = pool
        self.chain = chain
        self.validators = validators
        self.estimators = estimators
        self.worker = worker
        self.options = options
        self.speeds = speeds
        self.debug = debug
        self.unavailable = unavailable
        self._clock = clock
        self._data_fee = data_fee
        # Operations that were refused lately, and why. For this process alone: nothing was promised.
        self._refused: OrderedDict[bytes, str] = OrderedDict()
        # Operations that are being validated, by place. One that comes next in the same lane waits for them.
        self._arriving: dict[_Place, asyncio.Event] = {}

    async def accept(self, entry_point: EntryPoint, operation: UserOperation) -> bytes:
        """Take an operation into the pool. Returns its hash when it is stored. Raises `Refusal`."""
        place = entry_point.address, operation.sender, operation.nonce
        arrived = asyncio.Event()
        # Of two for one place the later counts; the earlier does not take its mark away.
        self._arriving[place] = arrived
        try:
            return await self._accept(entry_point, operation)
        finally:
            arrived.set()
            if self._arriving.get(place) is arrived:
                del self._arriving[place]

    async def _accept(self, entry_point: EntryPoint, operation: UserOperation) -> bytes:
        operation_hash = await self.hash(entry_point, operation)
        known = await self.pool.find(operation_hash)
        if known is not None and known.state in ("pending", "submitted") and known.operation == operation:
            # Sent again, perhaps because the answer was lost.
            return operation_hash
        try:
            self._check_fields(entry_point, operation)
            await self._check_pre_verification(entry_point, operation)
            validated = await self._validate(entry_point, operation)
            self._check_times(validated)
            await self.add(entry_point, operation_hash, operation, validated)
        except Refusal as refusal:
            self._remember(operation_hash, refusal.message)
            raise
        except BlockChanged:
            raise UpstreamError(
                f"the head of {self.name} changes too fast to validate the operation; try again"
            ) from None
        return operation_hash

    async def _validate(self, entry_point: EntryPoint, operation: UserOperation) -> Validated:
        """Validate an operation; as the next one, if the one before it in its lane of nonces is in the pool."""
        validator = self.validators[entry_point.address]
        if operation.nonce_sequence == 0:
            return await validator.validate(operation)
        before = operation.sender, operation.nonce - 1
        if arriving := self._arriving.get((entry_point.address, *before)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ARRIVAL_SECONDS):
                    await arriving.wait()
        pool = self.pool.mempool(entry_point.address)
        if pool.at(before) is not None:
            return await validator.validate(operation, queued=True)
        try:
            return await validator.validate(operation)
        except Refusal as refusal:
            if not refusal.message.startswith(_WRONG_NONCE):
                raise
            # Another process may have taken the one before it.
            await self.pool.refresh()
            if self.pool.mempool(entry_point.address).at(before) is None:
                raise
        return await validator.validate(operation, queued=True)

    async def add(
        self, entry_point: EntryPoint, operation_hash: bytes, operation: UserOperation, validated: Validated
    ) -> None:
        """Store a validated operation, if the rules of the pool allow it. Raises `Refusal`."""
        deposit = 0
        if operation.paymaster is not None:
            deposits = await self.chain.deposits(entry_point.address, [operation.paymaster])
            deposit = deposits[operation.paymaster].amount
        entry = Entry(
            hash=operation_hash,
            entry_point=entry_point,
            operation=operation,
            validated=validated,
            created_at=int(self._clock.now() * _MICROSECONDS),
        )
        async with self.pool.changing() as change:
            old = self.pool.mempool(entry_point.address).at((operation.sender, operation.nonce))
            replaced = None if old is None else change.get(old.hash)
            if replaced is not None and replaced.state == "submitted":
                raise Refusal(
                    INVALID_FIELDS, "the operation with this nonce is in a bundle on its way and cannot be replaced"
                )
            change.add(entry, deposit=deposit)

    async def hash(self, entry_point: EntryPoint, operation: UserOperation) -> bytes:
        """The hash of an operation."""
        delegate = None
        if operation.is_delegation and operation.authorization is None:
            delegate = await self.chain.delegate(operation.sender)
        try:
            return codec_for(entry_point.version).hash(operation, entry_point.address, self.chain_id, delegate)
        except InvalidOperation as error:
            raise Refusal(INVALID_FIELDS, str(error)) from None

    def refusal_of(self, operation_hash: bytes) -> str | None:
        """Why this process refused an operation lately."""
        return self._refused.get(operation_hash)

    def _check_fields(self, entry_point: EntryPoint, operation: UserOperation) -> None:
        if operation.max_priority_fee_per_gas > operation.max_fee_per_gas:
            raise Refusal(INVALID_FIELDS, "maxPriorityFeePerGas is higher than maxFeePerGas")
        if operation.max_priority_fee_per_gas < self.options.least_tip:
            raise Refusal(
                INVALID_FIELDS,
                f"maxPriorityFeePerGas must be at least {to_quantity(self.options.least_tip)} on {self.name},"
                f" not {to_quantity(operation.max_priority_fee_per_gas)}",
            )
        size = len(codec_for(entry_point.version).encode(operation))
        if size > self.options.operation_bytes:
            raise Refusal(
                INVALID_FIELDS, f"the operation has {size} bytes; at most {self.options.operation_bytes} (LIM-010)"
            )
        gas = bundle_gas(entry_point.version, [operation])
        if gas > self.options.bundle.gas:
            raise Refusal(
                INVALID_FIELDS,
                f"the operation needs a transaction with {gas} gas by its limits; at most {self.options.bundle.gas}"
                " fit into a bundle",
            )

    async def _check_pre_verification(self, entry_point: EntryPoint, operation: UserOperation) -> None:
        """What the entry point does not measure must be paid for, or each such bundle is a loss."""
        version = entry_point.version
        least = least_pre_verification_gas(version, operation, executed=operation.verification_gas_limit)
        if not isinstance(self._data_fee, NoDataFee):
            base_fee = (await self.chain.head()).base_fee
            price = min(operation.max_fee_per_gas, base_fee + operation.max_priority_fee_per_gas)
            calldata = encode_handle_ops(version, [operation], incompressible(20))
            least += await self._data_fee.gas(entry_point.address, calldata, price)
        if operation.pre_verification_gas < least:
            raise Refusal(
                INVALID_FIELDS,
                f"preVerificationGas is too low: {operation.pre_verification_gas}, and at least {least} is needed;"
                " eth_estimateUserOperationGas tells it",
            )

    def _check_times(self, validated: Validated) -> None:
        until = validated.valid_until
        if until is not None and until < self._clock.now() + self.options.least_seconds:
            raise Refusal(
                OUT_OF_TIME_RANGE,
                f"the operation expires too soon: it must be valid for {self.options.least_seconds} seconds more",
                {"validAfter": to_quantity(validated.valid_after), "validUntil": to_quantity(until)},
            )

    def _remember(self, operation_hash: bytes, reason: str) -> None:
        self._refused[operation_hash] = reason
        self._refused.move_to_end(operation_hash)
        while len(self._refused) > _MOST_REFUSALS:
            self._refused.popitem(last=False)
