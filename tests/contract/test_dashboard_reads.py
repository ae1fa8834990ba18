"""What the dashboard reads from the database on its own account."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Table, insert

from capstan.access.store import to_micros
from capstan.gas.policies.store import PolicyStore
from capstan.gas.sponsor.judging import Refused
from capstan.gas.sponsor.ledger import Ledger, imbalance
from capstan.index.progress import MOST_COUNTED, NetworkProgress, read_progress
from capstan.storage.database import Database
from capstan.storage.schema import cursors, index_coverage, index_networks, index_subjects, transfers
from capstan.stream.cursors import read_cursors
from tests.support.gas_ledger import DAY, NOON, add_policy, draft

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
