"""What the dashboard reads from the database on its own account."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Table, insert

from capstan.access.store import to_micros
from capstan.bundler.entries import encode_validated
from capstan.bundler.history import OperationHistory, Wanted
from capstan.bundler.models import Entity
from capstan.bundler.validating import Validated
from capstan.chain.calls.models import BlockRef
from capstan.gas.policies.store import PolicyStore
from capstan.gas.sponsor.judging import Refused
from capstan.gas.sponsor.ledger import Ledger, imbalance
from capstan.index.progress import MOST_COUNTED, NetworkProgress, read_progress
from capstan.storage.database import Database
from capstan.storage.schema import (
    bundle_transactions,
    cursors,
    index_coverage,
    index_networks,
    index_subjects,
    transfers,
    user_operations,
    wallets,
)
from capstan.stream.cursors import read_cursors
from tests.support.gas_ledger import DAY, ENTRY_POINT, NETWORK, NOON, add_policy, draft

_SUBJECT = {"kind": 1, "seam_hash": bytes(32), "created_at": 0, "network_id": 1}
_TRANSFER = {
    "network_id": 1,
    "log_index": 0,
    "position": 0,
    "standard": 20,
    "nft": False,
    "contract": bytes(20),
    "sender": bytes(20),
    "receiver": bytes(20),
    "amount": "1",
    "block_hash": bytes(32),
    "transaction_hash": bytes(32),
}


async def put(database: Database, table: Table, *rows: dict[str, Any]) -> None:
    async with database.write() as connection:
        await connection.execute(insert(table), list(rows))


async def test_the_progress_of_the_index_counts_what_is_missing(database: Database) -> None:
    await put(
        database,
        index_networks,
        {"id": 1, "name": "ethereum/devnet", "block_number": 120},
        {"id": 2, "name": "polygon/amoy", "block_number": None},
    )
    await put(
        database,
        index_subjects,
        {**_SUBJECT, "id": 1, "address": b"1" * 20, "first_block": 0, "seam_number": 99, "complete": False},
        {**_SUBJECT, "id": 2, "address": b"2" * 20, "first_block": 50, "seam_number": 99, "complete": False},
        {**_SUBJECT, "id": 3, "address": b"3" * 20, "first_block": 0, "seam_number": 99, "complete": True},
    )
    await put(
        database,
        index_coverage,
        {"subject_id": 1, "first_block": 0, "last_block": 9},
        # The stream took blocks back: the last two are above the seam now, and no part of the history.
        {"subject_id": 1, "first_block": 90, "last_block": 101},
        {"subject_id": 3, "first_block": 0, "last_block": 99},
    )
    await put(database, transfers, *({**_TRANSFER, "block_number": number} for number in range(3)))
    found = sorted(await read_progress(database), key=lambda each: each.network)
    assert found == [
        NetworkProgress("ethereum/devnet", 120, 3, 2, 100 - 10 - 10 + 50, 3),
        NetworkProgress("polygon/amoy", None, 0, 0, 0, 0),
    ]
    assert MOST_COUNTED > 3


async def test_cursors_are_read_with_the_time_of_their_last_step(database: Database) -> None:
    row = {"network": "ethereum/devnet", "hash": "0x00", "first": 1, "final": None, "updated_at": 1_700_000_000_500_000}
    await put(database, cursors, {**row, "role": "index", "number": 7}, {**row, "role": "gas", "number": 6})
    found = await read_cursors(database)
    assert [(each.network, each.role, each.number) for each in found] == [
        ("ethereum/devnet", "gas", 6),
        ("ethereum/devnet", "index", 7),
    ]
    assert found[0].updated_at.timestamp() == 1_700_000_000.5


async def test_policies_are_paged_by_the_last_one_seen_also_of_the_same_moment(database: Database) -> None:
    first = await add_policy(database)
    others = [
        await add_policy(database, account_id=first.account_id, created_at=NOON + timedelta(seconds=number // 2))
        for number in range(4)
    ]
    await add_policy(database)
    store, seen, after = PolicyStore(database), list[str](), None
    while found := await store.newest(first.account_id, DAY, after=after, limit=2):
        seen += [policy.id for policy in found]
        after = (to_micros(found[-1].created_at), found[-1].id)
    expected = sorted([first, *others], key=lambda policy: (policy.created_at, policy.id), reverse=True)
    assert seen == [policy.id for policy in expected]


async def test_the_ledger_judges_what_it_would_refuse_and_writes_nothing(database: Database) -> None:
    policy = await add_policy(database, {"max_total_usd": "3", "max_per_user_per_day": 1, "rate_limit": 2})
    ledger, sender = Ledger(database), b"\x01" * 20
    for _ in range(3):
        await ledger.judge(draft(policy.id, sender=sender, cost=3 * 10**9))
    await ledger.reserve(draft(policy.id, sender=sender))
    for changes, rule in (
        ({"cost": 2 * 10**9 + 1}, "max_total_usd"),
        ({"sender": sender, "nonce": 1}, "max_per_user_per_day"),
    ):
        with pytest.raises(Refused) as refusal:
            await ledger.judge(draft(policy.id, **changes))
        assert refusal.value.rule == rule
    await ledger.reserve(draft(policy.id))
    with pytest.raises(Refused, match="rate_limit"):
        await ledger.judge(draft(policy.id))
    assert await imbalance(database) == []


def operation(number: int, **changes: Any) -> dict[str, Any]:
    """The row of an operation; two come at the same moment."""
    validated = Validated(block=BlockRef(77, "0x00", 0), sender=Entity("account", b"\x01" * 20, False))
    fixed = {"network": NETWORK, "entry_point": ENTRY_POINT, "sender": b"\x01" * 20, "state": "pending", "reason": ""}
    moving = {"hash": bytes([number]) * 32, "created_at": number // 2, "changed_at": number, "revision": number}
    empty = {"signer": None, "signer_nonce": None, "tx_hash": None, "block_number": None, "success": None}
    return {**fixed, **moving, **empty, "operation": "{}", "validated": encode_validated(validated), **changes}


async def test_operations_are_paged_and_filtered_and_of_the_wallets_of_an_account(database: Database) -> None:
    policy = await add_policy(database)
    rows = [operation(number, sender=bytes([1 + number % 2]) * 20) for number in range(5)]
    await put(database, user_operations, *rows, operation(9, state="failed", reason="too late"))
    wallet = {
        "id": "w",
        "account_id": policy.account_id,
        "chain": "ethereum",
        "network": NETWORK,
        "address": b"\x02" * 20,
    }
    same = {"owner": bytes(20), "owner_text": "0x", "salt": bytes(32), "factory": bytes(20), "entry_point": ENTRY_POINT}
    await put(database, wallets, {**wallet, **same, "version": "0.8", "created_at": 0, "deployed": False})
    history = OperationHistory(database)

    async def all_of(wanted: Wanted) -> list[int]:
        seen, after = list[int](), None
        while found := await history.newest(wanted, after=after, limit=2):
            seen += [row.hash[0] for row in found]
            after = (to_micros(found[-1].created_at), found[-1].hash)
        return seen

    assert await all_of(Wanted()) == [9, 4, 3, 2, 1, 0]
    assert await all_of(Wanted(sender=b"\x01" * 20)) == [9, 4, 2, 0]
    assert await all_of(Wanted(state="failed")) == [9]
    assert await all_of(Wanted(policy.account_id)) == [3, 1]
    assert await all_of(Wanted("acc_other")) == []


async def test_an_operation_is_found_with_every_transaction_that_held_it(database: Database) -> None:
    mine, other = bytes([1]) * 32, bytes([2]) * 32
    sent = {
        "network": NETWORK,
        "signer": b"\x05" * 20,
        "nonce": 3,
        "raw": b"",
        "max_priority_fee": "1",
        "created_block": 1,
    }
    await put(
        database,
        bundle_transactions,
        {**sent, "hash": b"a" * 32, "operations": mine + other, "max_fee": "10", "created_at": 1},
        {**sent, "hash": b"b" * 32, "operations": other + mine, "max_fee": "20", "created_at": 2},
        {**sent, "hash": b"c" * 32, "operations": b"", "max_fee": "30", "created_at": 3},
        {**sent, "hash": b"d" * 32, "operations": mine, "max_fee": "40", "created_at": 4, "nonce": 4},
    )
    waiting = operation(1, state="submitted", signer=b"\x05" * 20, signer_nonce=3)
    mined = operation(2, state="included", tx_hash=b"b" * 32, block_number=5, success=True)
    await put(database, user_operations, waiting, mined, operation(3))
    history = OperationHistory(database)
    for each, expected in ((mine, [10, 20]), (other, [10, 20]), (bytes([3]) * 32, [])):
        found = await history.find(NETWORK, each)
        assert found is not None
        assert [transaction.max_fee for transaction in found.transactions] == expected
        assert found.validated_at == 77
    assert await history.find("polygon/mainnet", mine) is None
