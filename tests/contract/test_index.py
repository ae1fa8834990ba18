"""The transfer index over SQLite and a real PostgreSQL, fed by a scripted stream."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.chain.follower.models import Applied, Reverted
from capstan.index import events
from capstan.index.models import EVERYTHING, Collection, Holding, Notice, Standard, Subject, SubjectKind
from capstan.index.writer import IndexConflict
from capstan.storage.database import Database
from tests.support.index_chain import (
    NETWORK,
    ZERO,
    Parts,
    address,
    bare,
    batch,
    block,
    erc20,
    erc721,
    event,
    single,
    word,
)

TOKEN, PUNKS, GAMES, WRAPPED = address(20), address(721), address(1155), address(77)
ANN, BOB, CAT = address(1), address(2), address(3)
BIG = 2**256 - 1


def holder(of: bytes) -> Subject:
    return Subject(SubjectKind.HOLDER, of)


def contract(of: bytes) -> Subject:
    return Subject(SubjectKind.CONTRACT, of)


async def follow(parts: Parts, *subjects: Subject, first_block: int = 0) -> None:
    async with parts.database.write() as connection:
        state = await parts.subjects.lock(connection, NETWORK)
        for subject in subjects:
            await parts.subjects.register(connection, state, subject, first_block)


@pytest.fixture
async def parts(database: Database) -> Parts:
    """The index of a network that is indexed in full."""
    made = Parts(database, wrapped=frozenset({WRAPPED}))
    await follow(made, EVERYTHING)
    return made


async def test_transfers_come_newest_first_in_pages(parts: Parts) -> None:
    for number in range(7):
        await parts.mine(erc20(TOKEN, ANN, BOB, number), erc20(TOKEN, BOB, CAT, 1), erc20(TOKEN, ANN, ANN, number))
    first = await parts.store.transfers(NETWORK, holder(ANN), nft=False, limit=5, offset=0)
    assert first.total == 14
    assert [(item.block_number, item.log_index) for item in first.transfers] == [(6, 2), (6, 0), (5, 2), (5, 0), (4, 2)]
    assert first.coverage.block == 6
    assert first.coverage.complete
    newest = first.transfers[1]
    assert (newest.sender, newest.receiver, newest.amount, newest.token_id) == (ANN, BOB, 6, None)
    assert newest.timestamp == 1_700_000_006
    assert newest.block_hash.hex() == parts.chain[6].hash[2:]
    await parts.mine(erc20(TOKEN, CAT, ANN, 1))
    last = await parts.store.transfers(NETWORK, holder(ANN), nft=False, last_block=6, limit=5, offset=10)
    assert [(item.block_number, item.log_index) for item in last.transfers] == [(1, 2), (1, 0), (0, 2), (0, 0)]
    assert last.total == 14
    some = await parts.store.transfers(NETWORK, holder(ANN), nft=False, first_block=2, last_block=3, limit=50, offset=0)
    assert (some.total, {item.block_number for item in some.transfers}) == (4, {2, 3})


async def test_nft_and_token_transfers_are_listed_apart(parts: Parts) -> None:
    await parts.mine(
        erc20(TOKEN, ANN, BOB, 5), erc721(PUNKS, ZERO, ANN, BIG), batch(GAMES, ZERO, ANN, [(1, 2), (3, BIG)])
    )
    tokens = await parts.store.transfers(NETWORK, holder(ANN), nft=False, limit=50, offset=0)
    assert [item.standard for item in tokens.transfers] == [Standard.ERC20]
    nfts = await parts.store.transfers(NETWORK, holder(ANN), nft=True, limit=50, offset=0)
    assert [(item.standard, item.position, item.token_id, item.amount) for item in nfts.transfers] == [
        (Standard.ERC1155, 1, 3, BIG),
        (Standard.ERC1155, 0, 1, 2),
        (Standard.ERC721, 0, BIG, 1),
    ]


async def test_holdings_and_counts_follow_mints_transfers_and_burns(parts: Parts) -> None:
    await parts.mine(erc721(PUNKS, ZERO, ANN, 7), erc721(PUNKS, ZERO, ANN, 8), single(GAMES, ZERO, BOB, 1, BIG))
    await parts.mine(
        erc721(PUNKS, ANN, BOB, 7), single(GAMES, BOB, CAT, 1, 5), batch(GAMES, ZERO, CAT, [(2, 3), (2, 4)])
    )
    owned = await parts.store.owned(NETWORK, holder(BOB), limit=50, offset=0)
    assert owned.holdings == (
        Holding(PUNKS, 7, Standard.ERC721, BOB, 1),
        Holding(GAMES, 1, Standard.ERC1155, BOB, BIG - 5),
    )
    assert owned.total == 2
    punks, _ = await parts.store.collection(NETWORK, contract(PUNKS))
    assert punks == Collection(owners=2, ids=2, supply=2, standards=(Standard.ERC721,))
    games, _ = await parts.store.collection(NETWORK, contract(GAMES))
    assert games == Collection(owners=2, ids=2, supply=BIG + 7, standards=(Standard.ERC1155,))
    await parts.mine(erc721(PUNKS, ANN, ZERO, 8), single(GAMES, CAT, ZERO, 1, 5))
    punks, _ = await parts.store.collection(NETWORK, contract(PUNKS))
    assert punks == Collection(owners=1, ids=1, supply=1, standards=(Standard.ERC721,))
    owners = await parts.store.owners(NETWORK, contract(GAMES), 1, limit=10)
    assert [(item.owner, item.amount) for item in owners.holdings] == [(BOB, BIG - 5)]
    assert (await parts.store.owners(NETWORK, contract(PUNKS), 8, limit=10)).total == 0


async def test_owned_pages_go_by_contract_and_id(parts: Parts) -> None:
    ids = [3, 2**255, 1, 256, 2**64]
    await parts.mine(*(erc721(PUNKS, ZERO, ANN, number) for number in ids), single(GAMES, ZERO, ANN, 5, 1))
    pages = [await parts.store.owned(NETWORK, holder(ANN), limit=2, offset=offset) for offset in (0, 2, 4)]
    assert [item.token_id for page in pages for item in page.holdings] == [1, 3, 256, 2**64, 2**255, 5]
    assert {page.total for page in pages} == {6}


async def test_tokens_of_a_holder_are_those_that_moved(parts: Parts) -> None:
    spam = address(66)
    await parts.mine(erc20(TOKEN, ANN, BOB, 1), erc20(spam, ANN, BOB, 0), erc721(PUNKS, ZERO, ANN, 1))
    await parts.mine(deposit(WRAPPED, BOB, 10), deposit(address(78), BOB, 10))
    assert (await parts.store.tokens_of(NETWORK, holder(ANN)))[0] == (TOKEN,)
    assert (await parts.store.tokens_of(NETWORK, holder(BOB)))[0] == (TOKEN, WRAPPED)
    await parts.revert()
    assert (await parts.store.tokens_of(NETWORK, holder(BOB)))[0] == (TOKEN,)


def deposit(of: bytes, who: bytes, amount: int) -> dict[str, Any]:
    return event(of, [events.DEPOSIT, "0x" + word(who)], word(amount))


async def test_a_reverted_block_leaves_no_trace(parts: Parts) -> None:
    await parts.mine(erc721(PUNKS, ZERO, ANN, 1), single(GAMES, ZERO, ANN, 1, 10), erc20(TOKEN, ZERO, ANN, 3))
    before = await parts.rows()
    await parts.mine(
        erc721(PUNKS, ANN, BOB, 1),
        erc721(PUNKS, ZERO, ANN, 2),
        batch(GAMES, ANN, BOB, [(1, 10), (9, 0)]),
        erc20(TOKEN, ANN, BOB, 3),
        erc20(address(21), ZERO, BOB, 3),
    )
    await parts.mine(erc721(PUNKS, BOB, ZERO, 1), single(address(1156), ZERO, CAT, 1, 1))
    await parts.revert(2)
    assert await parts.rows() == before
    await parts.revert()
    assert all(not rows for rows in (await parts.rows()).values())


async def test_a_block_that_comes_again_changes_nothing(parts: Parts) -> None:
    await parts.mine()
    made = await parts.mine(erc721(PUNKS, ZERO, ANN, 1), single(GAMES, ZERO, ANN, 1, 10), erc20(TOKEN, ZERO, ANN, 3))
    before = await parts.rows()
    await parts.feed(Applied(made))
    assert await parts.rows() == before


async def test_a_block_that_replaces_the_last_one_unannounced_takes_its_place(parts: Parts) -> None:
    """The stream says so when it begins on a block that then turns out not to stay."""
    await parts.mine()
    await parts.mine(erc721(PUNKS, ZERO, ANN, 1))
    other = block(1, parts.chain[0].hash, [erc721(PUNKS, ZERO, BOB, 1)], fork="other")
    await parts.feed(Applied(other))
    owners = await parts.store.owners(NETWORK, contract(PUNKS), 1, limit=5)
    assert [item.owner for item in owners.holdings] == [BOB]
    assert owners.coverage.block == 1


async def test_another_block_of_the_same_number_is_never_mixed_in(parts: Parts) -> None:
    made = await parts.mine(erc721(PUNKS, ZERO, ANN, 1))
    other = block(0, made.parent_hash, [erc721(PUNKS, ZERO, BOB, 1)], fork="other")
    found = parts.consumer._transfers(other)
    async with parts.database.write() as connection:
        state = await parts.subjects.lock(connection, NETWORK)
        with pytest.raises(IndexConflict):
            await parts.writer.add(connection, state.id, found)


async def test_malformed_logs_are_skipped_and_counted(parts: Parts) -> None:
    await parts.mine(
        event(TOKEN, [events.TRANSFER, "0x" + word(ANN)], word(1)),
        event(TOKEN, [events.TRANSFER, "0x" + "ff" * 32, "0x" + word(BOB)], word(1)),
        event(GAMES, [events.TRANSFER_BATCH, *("0x" + word(ANN),) * 3], word(64) + word(2**200)),
        erc20(TOKEN, ANN, BOB, 1),
    )
    page = await parts.store.transfers(NETWORK, holder(ANN), nft=False, limit=50, offset=0)
    assert [item.log_index for item in page.transfers] == [3]
    assert parts.metrics.malformed.labels(NETWORK)._value.get() == 3


async def test_on_demand_only_what_is_followed_is_kept(database: Database) -> None:
    parts = Parts(database)
    await follow(parts, holder(ANN), contract(PUNKS))
    await parts.mine(
        erc20(TOKEN, ANN, BOB, 1),
        erc20(TOKEN, CAT, BOB, 1),
        erc721(PUNKS, ZERO, CAT, 1),
        erc721(address(722), ZERO, CAT, 1),
        single(GAMES, CAT, ANN, 4, 2),
    )
    rows = (await parts.rows())["transfers"]
    assert sorted(row[2] for row in rows) == [0, 2, 4]
    owned = await parts.store.owned(NETWORK, holder(ANN), limit=5, offset=0)
    assert [(item.token_id, item.amount) for item in owned.holdings] == [(4, 2)]
    # Of whoever is not followed only a part is known; that is never shown as a holding.
    assert (await parts.store.owned(NETWORK, holder(CAT), limit=5, offset=0)).coverage.complete is False


async def test_a_subject_registered_later_has_its_seam_where_the_stream_stands(database: Database) -> None:
    parts = Parts(database)
    for _ in range(3):
        await parts.mine()
    await follow(parts, holder(ANN))
    async with database.read() as connection:
        network = await parts.subjects.find_network(connection, NETWORK)
        assert network is not None
        state = await parts.subjects.find(connection, network.id, holder(ANN))
        assert state is not None
        assert state.seam is not None
        assert (state.seam.number, state.seam.hash.hex()) == (2, parts.chain[2].hash[2:])
        assert await parts.subjects.missing(connection, state) == [(0, 2)]
    assert (await parts.store.coverage(NETWORK, holder(ANN))).complete is False


async def test_the_seam_goes_down_with_the_stream_and_coverage_with_it(database: Database) -> None:
    parts = Parts(database)
    for _ in range(6):
        await parts.mine()
    await follow(parts, holder(ANN))

    async def state() -> Any:
        async with database.read() as connection:
            network = await parts.subjects.find_network(connection, NETWORK)
            assert network is not None
            found = await parts.subjects.find(connection, network.id, holder(ANN))
            assert found is not None
            return found, await parts.subjects.missing(connection, found)

    async def cover(first: int, last: int) -> bool:
        found, _ = await state()
        async with database.write() as connection:
            return await parts.subjects.cover(connection, found, first, last)

    assert not await cover(4, 5)
    assert not await cover(0, 1)
    assert (await state())[1] == [(2, 3)]
    await parts.revert(2)
    found, missing = await state()
    assert (found.seam.number, found.seam.hash.hex()) == (3, parts.chain[3].hash[2:])
    assert missing == [(2, 3)]
    assert await cover(2, 3)
    await parts.mine(fork="a")
    assert (await state())[0].complete
    await parts.revert(3)
    found, missing = await state()
    assert (found.seam.number, missing, found.complete) == (1, [], True)


async def test_blocks_the_stream_leaves_out_become_history(database: Database) -> None:
    parts = Parts(database)
    await follow(parts, holder(ANN))
    await parts.mine()
    assert (await parts.store.coverage(NETWORK, holder(ANN))).complete
    await parts.feed(Applied(block(5, "0x" + "55" * 32)))
    coverage = await parts.store.coverage(NETWORK, holder(ANN))
    assert (coverage.block, coverage.complete) == (5, False)
    async with database.read() as connection:
        network = await parts.subjects.find_network(connection, NETWORK)
        assert network is not None
        state = await parts.subjects.find(connection, network.id, holder(ANN))
        assert state is not None
        assert await parts.subjects.missing(connection, state) == [(1, 4)]


async def test_a_chain_begun_anew_is_forgotten_but_the_subjects_stay(parts: Parts) -> None:
    await parts.mine(erc721(PUNKS, ZERO, ANN, 1))
    async with parts.database.write() as connection:
        await parts.consumer.reset(connection)
    assert all(not rows for rows in (await parts.rows()).values())
    assert (await parts.store.coverage(NETWORK, EVERYTHING)).block is None
    await parts.feed(Applied(block(3, "0x" + "33" * 32, [erc721(PUNKS, ZERO, BOB, 9)])))
    coverage = await parts.store.coverage(NETWORK, EVERYTHING)
    assert (coverage.block, coverage.complete) == (3, False)
    assert (await parts.store.owned(NETWORK, holder(BOB), limit=5, offset=0)).total == 1


class Listener:
    def __init__(self) -> None:
        self.heard: list[Notice] = []

    async def metadata_changed(self, connection: AsyncConnection, network: str, notices: Sequence[Notice]) -> None:
        assert network == NETWORK
        self.heard.extend(notices)


async def test_metadata_notices_reach_the_listener(database: Database) -> None:
    listener = Listener()
    parts = Parts(database, listener=listener)
    await parts.mine(
        event(PUNKS, [events.METADATA_UPDATE], word(7)),
        event(PUNKS, [events.BATCH_METADATA_UPDATE], word(1) + word(BIG)),
        event(GAMES, [events.URI, "0x" + word(5)], word(32) + word(0)),
        event(PUNKS, [events.METADATA_UPDATE], ""),
    )
    await parts.revert()
    assert listener.heard == [Notice(PUNKS, 1, BIG), Notice(GAMES, 5, 5)]


async def test_sums_do_not_depend_on_the_order_in_which_history_comes(database: Database) -> None:
    """History after the present, in any order, some of it twice: the same sums as in order."""
    random = Random(5)
    people = [ANN, BOB, CAT]
    parts = Parts(database)
    chain = []
    parent = "0x" + "00" * 32
    for number in range(30):
        moves: list[dict[str, Any]] = []
        for _ in range(4):
            one, other = random.choice([ZERO, *people]), random.choice([ZERO, *people])
            kinds = [
                erc721(PUNKS, one, other, random.randrange(4)),
                single(GAMES, one, other, random.randrange(3), 5),
                erc20(TOKEN, one, other, random.randrange(3)),
            ]
            moves.append(random.choice(kinds))
        chain.append(block(number, parent, moves))
        parent = chain[-1].hash
    found = [item for each in chain for item in parts.consumer._transfers(each)]
    async with database.write() as connection:
        state = await parts.subjects.lock(connection, NETWORK)
        assert await parts.writer.add(connection, state.id, found) == len(found)
    in_order = await parts.rows()
    async with database.write() as connection:
        await parts.writer.wipe(connection, state.id)
        random.shuffle(found)
        for start in range(0, len(found), 7):
            await parts.writer.add(connection, state.id, found[max(0, start - 3) : start + 7])
    assert await parts.rows() == in_order
    async with database.write() as connection:
        assert await parts.writer.remove_from(connection, state.id, 0) == len(found)
    assert all(not rows for rows in (await parts.rows()).values())


async def test_a_stream_that_reverts_what_was_never_applied_is_ignored(parts: Parts) -> None:
    made = await parts.mine(erc721(PUNKS, ZERO, ANN, 1))
    before = await parts.rows()
    await parts.feed(Reverted(bare(block(1, made.hash))))
    assert await parts.rows() == before
