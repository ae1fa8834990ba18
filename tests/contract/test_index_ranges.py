"""Ranges of ids that moved at once (ERC-2309), over SQLite and a real PostgreSQL."""

from random import Random
from typing import Any

import pytest
from sqlalchemy import Table, insert

from capstan.index import consecutive as reading
from capstan.index.models import EVERYTHING, Collection, Standard, Subject, SubjectKind
from capstan.storage.database import Database
from capstan.storage.migrate import upgrade
from capstan.storage.schema import index_coverage, index_networks, index_subjects, token_holders
from tests.support.index_chain import NETWORK, ZERO, Parts, address, consecutive, erc721, event, single, word

ALPHA, PUNKS, OMEGA = address(700), address(721), address(799)
ANN, BOB, CAT = PEOPLE = [address(1), address(2), address(3)]
BIG = 2**256 - 1


def holder(of: bytes) -> Subject:
    return Subject(SubjectKind.HOLDER, of)


def contract(of: bytes) -> Subject:
    return Subject(SubjectKind.CONTRACT, of)


@pytest.fixture
async def parts(database: Database) -> Parts:
    made = Parts(database)
    async with database.write() as connection:
        state = await made.subjects.lock(connection, NETWORK)
        await made.subjects.register(connection, state, EVERYTHING, 0)
    return made


async def owned(parts: Parts, who: bytes, limit: int = 100) -> list[tuple[bytes, int]]:
    """Everything that somebody owns, page by page."""
    found: list[tuple[bytes, int]] = []
    while True:
        page = await parts.store.owned(NETWORK, holder(who), limit=limit, offset=len(found))
        assert page.coverage.complete
        assert all(item.owner == who for item in page.holdings)
        found += [(item.contract, item.token_id) for item in page.holdings]
        if len(page.holdings) < limit:
            assert page.total == len(found)
            return found


async def owner(parts: Parts, of: bytes, token_id: int) -> list[bytes]:
    page = await parts.store.owners(NETWORK, contract(of), token_id, limit=5)
    assert page.total == len(page.holdings)
    return [item.owner for item in page.holdings]


async def test_range_is_one_row_and_every_id_has_its_owner(parts: Parts) -> None:
    await parts.mine(consecutive(PUNKS, ZERO, ANN, 0, 4_999))
    await parts.mine(erc721(PUNKS, ANN, BOB, 7), erc721(PUNKS, ANN, ZERO, 8), erc721(PUNKS, ZERO, CAT, 5_000))
    rows = await parts.rows()
    assert (len(rows["transfers"]), len(rows["nft_ranges"])) == (4, 1)
    assert [await owner(parts, PUNKS, number) for number in (0, 7, 8, 4_999, 5_000, 5_001)] == [
        [ANN], [BOB], [], [ANN], [CAT], [],
    ]  # fmt: skip
    facts, _ = await parts.store.collection(NETWORK, contract(PUNKS))
    assert facts == Collection(owners=3, ids=5_000, supply=5_000, standards=(Standard.ERC721,))
    page = await parts.store.owned(NETWORK, holder(ANN), limit=3, offset=6)
    assert ([item.token_id for item in page.holdings], page.total) == ([6, 9, 10], 4_998)
    page = await parts.store.owned(NETWORK, holder(ANN), limit=9, offset=4_996)
    assert [item.token_id for item in page.holdings] == [4_998, 4_999]
    shown = await parts.store.transfers(NETWORK, holder(ANN), nft=True, limit=5, offset=2)
    (range_shown,) = shown.transfers
    assert (range_shown.token_id, range_shown.last_token_id, range_shown.amount) == (0, 4_999, 5_000)
    await parts.revert()
    assert [await owner(parts, PUNKS, number) for number in (7, 8, 5_000)] == [[ANN], [ANN], []]
    await parts.revert()
    assert all(not rows for rows in (await parts.rows()).values())


async def test_owned_goes_by_contract_and_id_with_ranges_among_others(parts: Parts) -> None:
    await parts.mine(erc721(OMEGA, ZERO, ANN, 5), consecutive(PUNKS, ZERO, ANN, 10, 13), erc721(ALPHA, ZERO, ANN, 2))
    await parts.mine(single(PUNKS, ZERO, ANN, 11, 3), erc721(PUNKS, ANN, BOB, 12), erc721(PUNKS, ZERO, ANN, 1))
    everything = [(ALPHA, 2), (PUNKS, 1), (PUNKS, 10), (PUNKS, 11), (PUNKS, 11), (PUNKS, 13), (OMEGA, 5)]
    for limit in (1, 2, 3, 100):
        assert await owned(parts, ANN, limit) == everything
    assert await owned(parts, BOB) == [(PUNKS, 12)]
    assert (await parts.store.owned(NETWORK, holder(ANN), limit=5, offset=50)).holdings == ()


async def test_range_may_move_again_and_burn(parts: Parts) -> None:
    await parts.mine(consecutive(PUNKS, ZERO, ANN, 1, 10), consecutive(PUNKS, ANN, BOB, 3, 6))
    await parts.mine(consecutive(PUNKS, BOB, ZERO, 4, 5), consecutive(PUNKS, ANN, ANN, 1, 2))
    assert await owned(parts, ANN) == [(PUNKS, number) for number in (1, 2, 7, 8, 9, 10)]
    assert await owned(parts, BOB) == [(PUNKS, 3), (PUNKS, 6)]
    assert (await owner(parts, PUNKS, 4), await owner(parts, PUNKS, 6)) == ([], [BOB])
    facts, _ = await parts.store.collection(NETWORK, contract(PUNKS))
    assert facts == Collection(owners=2, ids=8, supply=8, standards=(Standard.ERC721,))


async def test_giant_range_costs_one_row_and_fills_no_list(parts: Parts) -> None:
    await parts.mine(consecutive(PUNKS, ZERO, ANN, 0, BIG), erc721(OMEGA, ZERO, ANN, 1))
    await parts.mine(erc721(PUNKS, ANN, BOB, BIG - 5))
    assert (await owner(parts, PUNKS, 2**200), await owner(parts, PUNKS, BIG - 5)) == ([ANN], [BOB])
    facts, _ = await parts.store.collection(NETWORK, contract(PUNKS))
    assert facts == Collection(owners=2, ids=2**256, supply=2**256, standards=(Standard.ERC721,))
    assert await owned(parts, ANN) == [(OMEGA, 1)]
    assert await owned(parts, BOB) == [(PUNKS, BIG - 5)]
    await parts.revert(2)
    assert all(not rows for rows in (await parts.rows()).values())


async def test_more_ranges_than_are_read_are_never_called_complete(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_MOST_RANGES", 3)
    await parts.mine(*(consecutive(PUNKS, ZERO, ANN, 10 * number, 10 * number + 1) for number in range(3)))
    assert (await parts.store.owned(NETWORK, holder(ANN), limit=5, offset=0)).coverage.complete
    await parts.mine(consecutive(PUNKS, ZERO, ANN, 100, 101))
    assert not (await parts.store.owned(NETWORK, holder(ANN), limit=5, offset=0)).coverage.complete
    assert (await parts.store.owned(NETWORK, holder(BOB), limit=5, offset=0)).coverage.complete


async def test_index_from_before_ranges_is_fetched_anew(empty_database: Database) -> None:
    await upgrade(empty_database, to="0007")
    parts = Parts(empty_database)
    async with empty_database.write() as connection:
        values: dict[Table, dict[str, Any]] = {
            index_networks: {"id": 1, "name": NETWORK, "block_number": 90, "block_hash": ANN},
            index_subjects: {
                "id": 7, "network_id": 1, "kind": 2, "address": ANN, "first_block": 5, "seam_number": 20,
                "seam_hash": ANN, "complete": True, "created_at": 1,
            },
            index_coverage: {"subject_id": 7, "first_block": 5, "last_block": 20},
            token_holders: {"network_id": 1, "holder": ANN, "contract": PUNKS, "count": 3},
        }  # fmt: skip
        for table, row in values.items():
            await connection.execute(insert(table).values(row))
    await upgrade(empty_database)
    assert all(not rows for rows in (await parts.rows()).values())
    async with empty_database.read() as connection:
        state = await parts.subjects.get(connection, 7)
        assert state is not None
        assert (state.complete, await parts.subjects.missing(connection, state)) == (False, [(5, 90)])


async def test_nonsense_ranges_are_skipped(parts: Parts) -> None:
    good = consecutive(PUNKS, ZERO, ANN, 3, 3)
    await parts.mine(
        consecutive(PUNKS, ZERO, ANN, 5, 4),
        event(PUNKS, good["topics"][:3], word(9)),
        event(PUNKS, good["topics"], ""),
        good,
    )
    rows = await parts.rows()
    assert (len(rows["transfers"]), rows["nft_ranges"]) == (1, [])
    assert await owned(parts, ANN) == [(PUNKS, 3)]


async def test_ranges_and_single_ids_in_any_order_and_through_reverts(parts: Parts) -> None:
    """Against a dictionary of owners that a contract would keep."""
    random = Random(11)
    owners: dict[int, bytes] = {}
    before: list[dict[int, bytes]] = []
    for _ in range(60):
        before.append(dict(owners))
        await parts.mine(*(_step(random, owners) for _ in range(random.randrange(4))), fork=random.random())
        if random.random() < 0.3:
            count = random.randrange(1, min(4, len(before) + 1))
            await parts.revert(count)
            owners = before[-count]
            del before[-count:]
    for who in PEOPLE:
        assert await owned(parts, who, 7) == [(PUNKS, number) for number in sorted(owners) if owners[number] == who]
    for number in range(40):
        assert await owner(parts, PUNKS, number) == [each for each in [owners.get(number)] if each is not None]
    facts, _ = await parts.store.collection(NETWORK, contract(PUNKS))
    assert facts is not None
    assert (facts.owners, facts.ids) == (len(set(owners.values())), len(owners))
    found = await parts.rows()
    # The same transfers in another order come to the same.
    shuffled = [item for block in parts.chain for item in parts.consumer._transfers(block)]
    random.shuffle(shuffled)
    async with parts.database.write() as connection:
        state = await parts.subjects.lock(connection, NETWORK)
        await parts.writer.wipe(connection, state.id)
        for begin in range(0, len(shuffled), 5):
            await parts.writer.add(connection, state.id, shuffled[max(0, begin - 2) : begin + 5])
    assert await parts.rows() == found


def _step(random: Random, owners: dict[int, bytes]) -> dict[str, Any]:
    """A mint, transfer or burn that a contract would allow, of one id or of a range with one owner."""
    first = random.randrange(40)
    who = owners.get(first, ZERO)
    last = first
    while random.random() < 0.8 and last < 39 and owners.get(last + 1, ZERO) == who:
        last += 1
    to = random.choice([each for each in (*PEOPLE, ZERO) if (each, who) != (ZERO, ZERO)])
    for number in range(first, last + 1):
        if to == ZERO:
            owners.pop(number, None)
        else:
            owners[number] = to
    return consecutive(PUNKS, who, to, first, last) if last > first else erc721(PUNKS, who, to, first)
