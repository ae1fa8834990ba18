"""What the dashboard reads from the database on its own account."""

from typing import Any

from sqlalchemy import Table, insert

from capstan.index.progress import MOST_COUNTED, NetworkProgress, read_progress
from capstan.storage.database import Database
from capstan.storage.schema import cursors, index_coverage, index_networks, index_subjects, transfers
from capstan.stream.cursors import read_cursors

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
