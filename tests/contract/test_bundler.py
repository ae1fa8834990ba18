"""The bundler's pool over SQLite and a real PostgreSQL: what is accepted lasts, and all processes see one pool."""

import asyncio
import itertools
import secrets
from typing import Any

import msgspec
import pytest

from capstan.bundler.consumer import InclusionConsumer
from capstan.bundler.entries import Entry, EntryPoint
from capstan.bundler.fees import Fees
from capstan.bundler.mempool import PoolLimits
from capstan.bundler.models import Entity
from capstan.bundler.pool import OperationPool, PoolRules
from capstan.bundler.refusals import Refusal
from capstan.bundler.reputation import Reputation
from capstan.bundler.slots import Attempt, Mined, Slot, SlotStore
from capstan.bundler.validating import Validated
from capstan.chain.calls.models import BlockRef
from capstan.chain.follower.models import Applied, Block, Log, Reverted
from capstan.core.clock import ManualClock
from capstan.core.hexes import to_data
from capstan.storage.database import Database
from capstan.stream.lease import LeaseLost, LeaseStore
from capstan.userops.abi import address_word, word
from capstan.userops.events import OPERATION_HANDLED_TOPIC
from capstan.userops.models import UserOperation

NETWORK = "ethereum/devnet"
ENTRY_POINT = EntryPoint(bytes.fromhex("0000000071727De22E5E9d8BAf0edAc6f37da032"), "0.7")
SIGNER = bytes.fromhex("aa" * 20)
PAYMASTER = bytes.fromhex("bb" * 20)
_moments = itertools.count(1_700_000_000_000_000)


def new_pool(database: Database, clock: ManualClock | None = None, **limits: Any) -> OperationPool:
    rules = PoolRules(limits=PoolLimits(**limits))
    return OperationPool(NETWORK, {ENTRY_POINT.address: "0.7"}, database, clock or ManualClock(), rules)


def new_entry(sender: bytes | None = None, *, paymaster: bytes | None = None, **changes: Any) -> Entry:
    sender = sender or secrets.token_bytes(20)
    operation = UserOperation(
        sender=sender,
        nonce=2**255 + secrets.randbits(64),
        call_data=b"\x01\x02",
        call_gas_limit=100_000,
        max_fee_per_gas=10**10,
        max_priority_fee_per_gas=10**9,
        paymaster=paymaster,
        signature=b"\x03",
    )
    validated = Validated(
        block=BlockRef(7, "0x" + "07" * 32, 1_700_000_000),
        sender=Entity("account", sender, False),
        paymaster=None if paymaster is None else Entity("paymaster", paymaster, True),
        valid_until=2**40,
        associated=frozenset({b"\x0a" * 20}),
        code_hashes={b"\x0b" * 20: b"\x0c" * 32},
        storage={b"\x0d" * 20: frozenset({b"\x0e" * 32})},
    )
    return Entry(
        hash=secrets.token_bytes(32),
        entry_point=ENTRY_POINT,
        operation=msgspec.structs.replace(operation, **changes),
        validated=validated,
        created_at=1_700_000_000_000_000 + secrets.randbelow(10**6),
    )


async def add(pool: OperationPool, *entries: Entry, deposit: int = 10**30) -> None:
    for entry in entries:
        async with pool.changing() as change:
            change.add(entry, deposit=deposit)


def held(pool: OperationPool) -> dict[bytes, str]:
    return {entry.hash: entry.state for entry in pool}


async def test_what_was_accepted_is_there_after_a_restart_exactly_as_it_came(database: Database) -> None:
    entry = new_entry(paymaster=PAYMASTER)
    await add(new_pool(database), entry)
    restarted = new_pool(database)
    await restarted.refresh()
    assert list(restarted) == [entry]
    mempool = restarted.mempool(ENTRY_POINT.address)
    assert list(mempool) == [entry.pooled()]
    assert list(mempool.reputation) == [Reputation(PAYMASTER, 1, 0)]
    assert mempool.reserved(PAYMASTER) == entry.pooled().prefund


async def test_processes_see_each_others_changes(database: Database) -> None:
    one, other = new_pool(database), new_pool(database)
    first, second = new_entry(), new_entry()
    await add(one, first)
    await add(other, second)
    assert held(other) == {first.hash: "pending", second.hash: "pending"}
    await one.refresh()
    assert held(one) == held(other)
    async with one.changing() as change:
        change.submit(first.hash, SIGNER, 3)
        change.drop(second.hash, "for the test")
    await other.refresh()
    assert held(other) == {first.hash: "submitted"}
    dropped = await other.find(second.hash)
    assert dropped is not None
    assert (dropped.state, dropped.reason) == ("failed", "for the test")


async def test_a_limit_holds_over_all_processes_at_once(database: Database) -> None:
    """Four operations of one sender, whichever process takes them."""
    sender = secrets.token_bytes(20)
    pools = [new_pool(database) for _ in range(3)]
    entries = [new_entry(sender) for _ in range(9)]
    results = await asyncio.gather(
        *(add(pools[place % 3], entry) for place, entry in enumerate(entries)), return_exceptions=True
    )
    assert sum(result is None for result in results) == 4
    assert all(isinstance(result, Refusal) for result in results if result is not None)
    for pool in pools:
        await pool.refresh()
        assert len(pool) == 4
        assert held(pool) == held(pools[0])


async def test_a_refused_operation_changes_nothing(database: Database) -> None:
    pool = new_pool(database)
    entry = new_entry(paymaster=PAYMASTER)
    with pytest.raises(Refusal, match="EREP-010"):
        await add(pool, entry, deposit=1)
    assert held(pool) == {}
    assert await pool.find(entry.hash) is None
    assert list(pool.mempool(ENTRY_POINT.address).reputation) == []


async def test_a_replacement_takes_the_place_and_the_old_one_is_reported(database: Database) -> None:
    pool, other = new_pool(database), new_pool(database)
    old = new_entry()
    new = msgspec.structs.replace(
        old,
        hash=secrets.token_bytes(32),
        operation=msgspec.structs.replace(
            old.operation, max_fee_per_gas=11 * 10**9, max_priority_fee_per_gas=11 * 10**8
        ),
    )
    await add(pool, old)
    await other.refresh()
    await add(pool, new)
    await other.refresh()
    assert held(pool) == held(other) == {new.hash: "pending"}
    left = await pool.find(old.hash)
    assert left is not None
    assert left.state == "failed"
    assert to_data(new.hash) in left.reason


async def test_a_transaction_that_fails_leaves_memory_as_the_database_is(database: Database) -> None:
    pool = new_pool(database)
    kept, lost = new_entry(), new_entry()
    await add(pool, kept)

    async def fail() -> None:
        async with pool.changing() as change:
            change.add(lost, deposit=0)
            change.drop(kept.hash, "not really")
            raise RuntimeError("the database went away")

    with pytest.raises(RuntimeError):
        await fail()
    await pool.refresh()
    assert held(pool) == {kept.hash: "pending"}
    assert len(pool.mempool(ENTRY_POINT.address)) == 1


async def test_reputations_fade_by_the_hour_once_and_for_all_processes(database: Database) -> None:
    clock = ManualClock()
    one, other = new_pool(database, clock), new_pool(database, clock)
    async with one.changing() as change:
        change.set_reputations(ENTRY_POINT.address, [Reputation(PAYMASTER, 2400, 48), Reputation(SIGNER, 1, 0)])
    await other.refresh()
    clock.advance(3600)
    await add(one, new_entry())
    await add(other, new_entry())
    for pool in (one, other, new_pool(database, clock)):
        await pool.refresh()
        assert list(pool.mempool(ENTRY_POINT.address).reputation) == [Reputation(PAYMASTER, 2300, 46)]


async def test_who_lost_the_lease_writes_nothing(database: Database) -> None:
    clock = ManualClock()
    pool = new_pool(database, clock)
    entry = new_entry()
    await add(pool, entry)
    mine, theirs = (LeaseStore(database, name, clock, seconds=0.0) for name in ("one", "other"))
    lease = await mine.acquire("bundler")
    assert lease is not None
    assert await theirs.acquire("bundler") is not None

    async def submit() -> None:
        async with pool.changing(mine, lease) as change:
            change.submit(entry.hash, SIGNER, 0)

    with pytest.raises(LeaseLost):
        await submit()
    await pool.refresh()
    assert held(pool) == {entry.hash: "pending"}


# --- nonces, and what the stream says


def new_attempt(*entries: Entry, fee: int = 10**10) -> Attempt:
    return Attempt(
        hash=secrets.token_bytes(32),
        raw=b"\x02" + secrets.token_bytes(100),
        operations=tuple(entry.hash for entry in entries),
        fees=Fees(fee, 10**9),
        created_at=next(_moments),
        created_block=7,
    )


async def send(pool: OperationPool, nonce: int, *attempts: Attempt) -> Slot:
    """Open a nonce with these transactions, as the worker does."""
    slots = SlotStore(NETWORK)
    slot = Slot(signer=SIGNER, nonce=nonce, entry_point=ENTRY_POINT.address, attempts=attempts)
    async with pool.changing() as change:
        await slots.open(change.connection, slot, change.now)
        for attempt in attempts:
            await slots.record(change.connection, slot, attempt)
            for operation_hash in attempt.operations:
                change.submit(operation_hash, SIGNER, nonce)
    return slot


def block_with(number: int, *included: tuple[Entry, bytes, bool]) -> Block:
    """A block in which these operations were handled by these transactions, with this success."""
    logs = []
    for index, (entry, transaction, success) in enumerate(included):
        topics = (OPERATION_HANDLED_TOPIC, entry.hash, address_word(entry.operation.sender), bytes(32))
        data = word(entry.operation.nonce) + word(int(success)) + word(10**15) + word(100_000)
        logs.append(
            Log(
                address=to_data(ENTRY_POINT.address),
                topics=tuple(map(to_data, topics)),
                index=index,
                transaction_hash=to_data(transaction),
                raw=msgspec.json.encode({"data": to_data(data)}),
            )
        )
    return Block(
        number=number,
        hash=to_data(secrets.token_bytes(32)),
        parent_hash=to_data(bytes(32)),
        timestamp=1_700_000_000,
        header=b"{}",
        transactions=None,
        receipts=None,
        logs=tuple(logs),
    )


async def apply(database: Database, pool: OperationPool, delta: Applied | Reverted) -> None:
    consumer = InclusionConsumer(pool.store, SlotStore(NETWORK), frozenset({ENTRY_POINT.address}), ManualClock())
    async with database.write() as connection:
        await consumer.apply(connection, delta)
    await pool.refresh()


async def open_slots(database: Database) -> list[Slot]:
    async with database.read() as connection:
        return await SlotStore(NETWORK).open_slots(connection)


async def test_an_open_nonce_is_there_after_a_restart_with_all_its_transactions(database: Database) -> None:
    pool, entry = new_pool(database), new_entry()
    await add(pool, entry)
    first, second = new_attempt(entry), new_attempt(entry, fee=2**130)
    slot = await send(pool, 5, first, second)
    assert await open_slots(database) == [slot]
    async with database.read() as connection:
        assert await SlotStore(NETWORK).highest(connection, SIGNER) == 5
    restarted = new_pool(database)
    await restarted.refresh()
    (found,) = restarted
    assert (found.state, found.signer, found.signer_nonce) == ("submitted", SIGNER, 5)


async def test_a_block_includes_operations_closes_the_nonce_and_frees_the_rest(database: Database) -> None:
    pool = new_pool(database)
    mined, left_out, failed = new_entry(paymaster=PAYMASTER), new_entry(), new_entry()
    await add(pool, mined, left_out, failed)
    first, second = new_attempt(mined, left_out, failed), new_attempt(mined, failed, fee=2 * 10**10)
    await send(pool, 1, first, second)
    block = block_with(9, (mined, second.hash, True), (failed, second.hash, False))
    await apply(database, pool, Applied(block))
    assert held(pool) == {left_out.hash: "pending"}
    assert await open_slots(database) == []
    found = await pool.find(mined.hash)
    assert found is not None
    assert found.inclusion is not None
    assert (found.inclusion.transaction, found.inclusion.block_number) == (second.hash, 9)
    assert (found.inclusion.success, to_data(found.inclusion.block_hash)) == (True, block.hash)
    reverted = await pool.find(failed.hash)
    assert reverted is not None
    assert reverted.inclusion is not None
    assert reverted.inclusion.success is False
    assert pool.mempool(ENTRY_POINT.address).reputation.get(PAYMASTER) == Reputation(PAYMASTER, 1, 1)


async def test_a_reorganisation_opens_the_nonce_again_and_returns_its_operations(database: Database) -> None:
    pool, entry, foreign = new_pool(database), new_entry(paymaster=PAYMASTER), new_entry()
    await add(pool, entry, foreign)
    attempt = new_attempt(entry)
    slot = await send(pool, 1, attempt)
    block = block_with(9, (entry, attempt.hash, True), (foreign, secrets.token_bytes(32), True))
    await apply(database, pool, Applied(block))
    assert held(pool) == {}
    await apply(database, pool, Reverted(block))
    # Ours waits for its transaction, which may come back; the other one is free.
    assert held(pool) == {entry.hash: "submitted", foreign.hash: "pending"}
    assert await open_slots(database) == [slot]
    assert pool.mempool(ENTRY_POINT.address).reputation.get(PAYMASTER) == Reputation(PAYMASTER, 1, 0)
    await apply(database, pool, Applied(block_with(9, (entry, attempt.hash, True))))
    assert held(pool) == {foreign.hash: "pending"}
    assert await open_slots(database) == []


async def test_an_operation_that_somebody_else_included_leaves_the_pool_and_not_the_nonce(database: Database) -> None:
    pool, entry = new_pool(database), new_entry()
    await add(pool, entry)
    slot = await send(pool, 1, new_attempt(entry))
    await apply(database, pool, Applied(block_with(9, (entry, secrets.token_bytes(32), True))))
    assert held(pool) == {}
    assert await open_slots(database) == [slot]


async def test_a_nonce_is_closed_once(database: Database) -> None:
    pool, entry, slots = new_pool(database), new_entry(), SlotStore(NETWORK)
    await add(pool, entry)
    attempt = new_attempt(entry)
    await send(pool, 1, attempt)
    async with database.write() as connection:
        assert await slots.close(connection, SIGNER, 1, Mined(attempt.hash, 9, bytes(32))) is True
        assert await slots.close(connection, SIGNER, 1, None) is False


async def test_a_chain_begun_anew_forgets_everything_of_the_network(database: Database) -> None:
    pool, entry = new_pool(database), new_entry(paymaster=PAYMASTER)
    await add(pool, entry)
    await send(pool, 1, new_attempt(entry))
    consumer = InclusionConsumer(pool.store, SlotStore(NETWORK), frozenset({ENTRY_POINT.address}), ManualClock())
    async with database.write() as connection:
        await consumer.reset(connection)
    await pool.refresh()
    assert held(pool) == {}
    assert list(pool.mempool(ENTRY_POINT.address).reputation) == []
    assert await open_slots(database) == []


async def test_old_outcomes_are_forgotten_and_the_pool_is_not(database: Database) -> None:
    clock = ManualClock()
    pool, waiting, gone = new_pool(database, clock), new_entry(), new_entry()
    await add(pool, waiting, gone)
    async with pool.changing() as change:
        change.drop(gone.hash, "for the test")
    clock.advance(10)
    async with database.write() as connection:
        await pool.store.forget_old(connection, int(clock.now() * 1_000_000))
        await SlotStore(NETWORK).forget_old(connection, int(clock.now() * 1_000_000))
    assert await pool.find(gone.hash) is None
    assert await pool.find(waiting.hash) == waiting
