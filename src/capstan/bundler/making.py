"""Makes a bundle that will not fail: chooses, validates again, runs the whole, and drops what makes it fail.

Called by the worker, which signs and sends what comes out. An operation that fails is dropped with the reason, and
whoever answers for it pays with reputation (`blame`). Nothing is sent here, so a failing operation costs no gas.
"""

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
import structlog

from capstan.bundler.blame import changed_context, saving_entities, settle_failed_bundle, settle_second_validation
from capstan.bundler.chain import BundlerChain, Reverted
from capstan.bundler.choosing import BundleLimits, Situation, bundle_gas, choose, first_of_lanes
from capstan.bundler.entries import Entry, EntryPoint
from capstan.bundler.models import Entity, Role
from capstan.bundler.pool import OperationPool
from capstan.bundler.refusals import REJECTED_BY_PAYMASTER, Refusal
from capstan.bundler.validating import Validated, Validator
from capstan.core.hexes import to_data
from capstan.stream.lease import Lease, LeaseStore
from capstan.userops.failures import AggregatorFailed, FailedOperation, decode_failure, revert_text

log = structlog.get_logger(__name__)

_VALIDATIONS_AT_ONCE = 8
# How often a bundle is put together again after something in it failed. Then it is tried at the next block.
_ROUNDS = 16
# What the entry point says of a nonce that is not the next one.
_WRONG_NONCE = "AA25"
# How long an operation may wait for the one before it: that one may be on the chain, and a node not know it yet.
_EARLY_SECONDS = 60


class Failed(msgspec.Struct, frozen=True):
    """An operation that must leave the pool."""

    entry: Entry
    role: Role
    reason: str
    # Whether it fails by itself, or only in the company of others or in the bundle.
    alone: bool


class BundleMaker:
    """Makes bundles of one network."""

    def __init__(
        self,
        pool: OperationPool,
        chain: BundlerChain,
        validators: Mapping[bytes, Validator],
        limits: BundleLimits,
    ) -> None:
        self._pool = pool
        self._chain = chain
        self._validators = validators
        self._limits = limits
        # Operations whose nonce is still to come: the times of the blocks where that was seen first and last.
        self._early: dict[bytes, tuple[int, int]] = {}

    async def make(
        self,
        entry_point: EntryPoint,
        situation: Situation,
        *,
        sender: bytes,
        beneficiary: bytes,
        leases: LeaseStore,
        lease: Lease,
        also: frozenset[bytes] = frozenset(),
    ) -> list[Entry]:
        """A bundle of operations that wait, or none. `also` are those that wait for the nonce that it is made for."""
        for _ in range(_ROUNDS):
            bundle = self._choose(entry_point, situation, also)
            failed, saving = await self._check_again(entry_point, bundle)
            if saving:
                await self._throttle(entry_point, saving, leases, lease)
            if not failed and bundle:
                failed = await self._run(entry_point, bundle, sender, beneficiary)
            if not failed:
                return bundle
            early = [each for each in failed if await self._is_early(entry_point, each, situation.now)]
            if gone := [each for each in failed if each not in early]:
                await self.drop(entry_point, gone, leases, lease)
        return []

    def _choose(self, entry_point: EntryPoint, situation: Situation, also: frozenset[bytes]) -> list[Entry]:
        """The best of what waits: of each sender's lane of nonces the first, and nothing twice at one block."""
        book = self._pool.mempool(entry_point.address).reputation
        first = first_of_lanes(self._pool)
        self._early = {each: seen for each, seen in self._early.items() if each in first}
        waiting, flying = [], []
        for entry in self._pool:
            if entry.entry_point != entry_point:
                continue
            if entry.state == "submitted" and entry.hash not in also:
                flying.append(entry)
            elif entry.hash in first and self._early.get(entry.hash, (0, -1))[1] != situation.now:
                waiting.append(entry)
        return choose(waiting, book, self._limits, situation, flying)

    async def _is_early(self, entry_point: EntryPoint, failed: Failed, now: int) -> bool:
        """Whether it failed only because the one before it is not on the chain yet, or not known there."""
        if not failed.reason.startswith(_WRONG_NONCE):
            return False
        operation = failed.entry.operation
        expected = await self._chain.next_nonce(entry_point.address, operation.sender, operation.nonce_key)
        since, _ = self._early.get(failed.entry.hash, (now, now))
        if operation.nonce < expected or now - since > _EARLY_SECONDS:
            return False
        self._early[failed.entry.hash] = since, now
        return True

    async def drop(self, entry_point: EntryPoint, failed: Iterable[Failed], leases: LeaseStore, lease: Lease) -> None:
        """Take operations out of the pool and settle the blame."""
        async with self._pool.changing(leases, lease) as change:
            book = self._pool.mempool(entry_point.address).reputation
            for each in failed:
                log.info(
                    "bundler.dropped",
                    network=self._pool.network,
                    operation=to_data(each.entry.hash),
                    role=each.role,
                    reason=each.reason,
                    alone=each.alone,
                )
                pooled = each.entry.pooled()
                change.drop(each.entry.hash, each.reason)
                if each.alone:
                    settle_second_validation(book, pooled, each.role)
                else:
                    change.evict_banned(entry_point.address, settle_failed_bundle(book, pooled, each.role).address)

    async def _throttle(
        self, entry_point: EntryPoint, saving: Iterable[Entity], leases: LeaseStore, lease: Lease
    ) -> None:
        """EREP-070. The operation itself is as good as any."""
        async with self._pool.changing(leases, lease):
            book = self._pool.mempool(entry_point.address).reputation
            for entity in saving:
                if book.throttle(entity.address):
                    log.info("bundler.throttled", network=self._pool.network, entity=to_data(entity.address))

    async def guilty_of(self, entry_point: EntryPoint, bundle: list[Entry], sender: bytes, block: int) -> list[Failed]:
        """Who made a bundle fail on the chain, as far as that can be found out by running it there again."""
        for number in (block - 1, block):
            ref = (await self._chain.block(hex(number))).ref
            try:
                await self._chain.run_bundle(
                    entry_point,
                    [entry.operation for entry in bundle],
                    sender=sender,
                    beneficiary=sender,
                    gas=bundle_gas(entry_point.version, (entry.operation for entry in bundle)),
                    block=ref,
                )
            except Reverted as reverted:
                if failed := _named(reverted, bundle):
                    return [msgspec.structs.replace(failed, alone=False)]
        if len(bundle) == 1:
            return [Failed(bundle[0], "account", "made a bundle fail on the chain", alone=False)]
        return []

    # --- finding what fails

    async def _check_again(self, entry_point: EntryPoint, bundle: list[Entry]) -> tuple[list[Failed], list[Entity]]:
        """The second validation: what must leave the bundle, and who used much less gas than before.

        What was not traced the first time is seen when the whole bundle runs.
        """
        places = asyncio.Semaphore(_VALIDATIONS_AT_ONCE)

        async def check(entry: Entry) -> Failed | Validated:
            async with places:
                return await self._validate(entry_point, entry)

        traced = [entry for entry in bundle if entry.validated.code_hashes]
        failed, saving = [], []
        for entry, found in zip(traced, await asyncio.gather(*map(check, traced)), strict=True):
            if isinstance(found, Failed):
                failed.append(found)
            else:
                saving += saving_entities(entry.validated, found)
        return failed, saving

    async def _validate(self, entry_point: EntryPoint, entry: Entry) -> Failed | Validated:
        earlier: Validated = entry.validated
        try:
            later = await self._validators[entry_point.address].validate(entry.operation, earlier=earlier)
        except Refusal as refusal:
            return Failed(entry, _role(refusal), refusal.message, alone=True)
        if reason := changed_context(earlier, later):
            return Failed(entry, "paymaster", reason, alone=False)
        return later

    async def _run(
        self, entry_point: EntryPoint, bundle: list[Entry], sender: bytes, beneficiary: bytes
    ) -> list[Failed]:
        """Run the whole bundle; what must leave it, or nothing when it passes."""
        try:
            await self._run_some(entry_point, bundle, sender, beneficiary)
        except Reverted as reverted:
            named = _named(reverted, bundle)
            if named is None:
                return await self._search(entry_point, bundle, sender, beneficiary, reverted)
            # Does it fail by itself? Then its state has changed since it was accepted, and nobody did wrong.
            alone = await self._fails_alone(entry_point, named.entry, sender, beneficiary)
            return [named if alone is None else msgspec.structs.replace(alone, role=named.role, reason=named.reason)]
        return []

    async def _search(
        self, entry_point: EntryPoint, bundle: list[Entry], sender: bytes, beneficiary: bytes, reverted: Reverted
    ) -> list[Failed]:
        """Find what fails where the entry point does not say: whoever fails alone, else the last of the bundle."""
        for entry in bundle:
            failed = await self._fails_alone(entry_point, entry, sender, beneficiary)
            if failed is not None:
                return [failed]
        for end in range(2, len(bundle) + 1):
            try:
                await self._run_some(entry_point, bundle[:end], sender, beneficiary)
            except Reverted:
                return [Failed(bundle[end - 1], "account", _reason(reverted), alone=False)]
        return []

    async def _fails_alone(
        self, entry_point: EntryPoint, entry: Entry, sender: bytes, beneficiary: bytes
    ) -> Failed | None:
        try:
            await self._run_some(entry_point, [entry], sender, beneficiary)
        except Reverted as reverted:
            named = _named(reverted, [entry])
            if named is not None:
                return _alone(named)
            return Failed(entry, await self._silent(entry), _reason(reverted), alone=True)
        return None

    async def _silent(self, entry: Entry) -> Role:
        """Whose part fails where the entry point reverts without a word, as it does when a contract is gone."""
        paymaster = entry.operation.paymaster
        return "account" if paymaster is None or await self._chain.has_code(paymaster) else "paymaster"

    async def _run_some(self, entry_point: EntryPoint, bundle: list[Entry], sender: bytes, beneficiary: bytes) -> None:
        operations = [entry.operation for entry in bundle]
        await self._chain.run_bundle(
            entry_point,
            operations,
            sender=sender,
            beneficiary=beneficiary,
            gas=bundle_gas(entry_point.version, operations),
        )


def _named(reverted: Reverted, bundle: list[Entry]) -> Failed | None:
    """The operation that the entry point names."""
    failure = None if reverted.data is None else decode_failure(reverted.data)
    if isinstance(failure, AggregatorFailed):
        for entry in bundle:
            found = entry.validated.aggregator
            if found is not None and found.address == failure.aggregator:
                return Failed(entry, "aggregator", "the aggregator refuses its signature", alone=False)
    if not isinstance(failure, FailedOperation) or failure.index >= len(bundle):
        return None
    role: Role = "account" if failure.entity == "bundle" else failure.entity
    reason = failure.reason
    if failure.inner:
        reason = f"{reason}: {revert_text(failure.inner)}"
    return Failed(bundle[failure.index], role, reason, alone=False)


def _alone(failed: Failed) -> Failed:
    return msgspec.structs.replace(failed, alone=True)


def _reason(reverted: Reverted) -> str:
    return revert_text(reverted.data) if reverted.data else f"the entry point reverts: {reverted.message}"


def _role(refusal: Refusal) -> Role:
    """Whose part of the validation failed, by the code and what the refusal names."""
    if refusal.code == REJECTED_BY_PAYMASTER or "paymaster" in refusal.data:
        return "paymaster"
    if "factory" in refusal.data or refusal.message.startswith("AA1"):
        return "factory"
    return "account"
