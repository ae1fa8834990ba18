"""What one process needs, another that follows the chains learns, on SQLite and PostgreSQL."""

from capstan.storage.database import Database
from capstan.stream.wanted import WantedStreams

_Begun = list[tuple[str, int | None]]


def wanted(database: Database, *, follows: bool) -> tuple[WantedStreams, _Begun]:
    begun: _Begun = []
    streams = WantedStreams(database, follows=follows)
    streams.register("webhooks", lambda network, first: begun.append((network, first)))
    return streams, begun


async def test_a_process_that_follows_begins_what_another_one_needs(database: Database) -> None:
    (asked, nothing), (follower, begun) = wanted(database, follows=False), wanted(database, follows=True)
    await asked.want("ethereum/mainnet", "webhooks", 77)
    await asked.want("ethereum/mainnet", "another role", 5)
    await asked.look()
    assert nothing == []
    await follower.look()
    assert begun == [("ethereum/mainnet", 77)]


async def test_where_a_stream_begins_is_what_was_written_first(database: Database) -> None:
    (first, _), (later, begun) = wanted(database, follows=False), wanted(database, follows=True)
    await first.want("ethereum/mainnet", "webhooks", 77)
    # Another process was asked a moment later, or the same one after it was killed.
    await later.want("ethereum/mainnet", "webhooks", 99)
    await later.want("ethereum/mainnet", "webhooks")
    assert set(begun) == {("ethereum/mainnet", 77)}


async def test_what_is_needed_soon_is_written_down_too(database: Database) -> None:
    (asked, _), (follower, begun) = wanted(database, follows=False), wanted(database, follows=True)
    asked.want_soon("base/mainnet", "webhooks")
    for task in list(asked._tasks):
        await task
    await follower.start()
    assert begun == [("base/mainnet", None)]
    await follower.close()
