"""The transfer index against the contracts themselves, on the real development chain: random traffic and reorgs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from capstan.chain.registry import ChainRegistry
from capstan.index.job import HistoryJob
from capstan.index.models import EVERYTHING, Standard, Subject, SubjectKind
from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.migrate import upgrade
from tests.support.devnet import EvmDevnet
from tests.support.forks import run_module
from tests.support.index_chain import NETWORK, Parts
from tests.support.index_node import ChainFeed, Traffic, Truth, registry_for, source_for, tools_for

_ROUNDS = 100
_LONGEST_REORG = 6


@pytest.fixture
async def registry(quiet_devnet: EvmDevnet) -> AsyncIterator[ChainRegistry]:
    opened = registry_for(quiet_devnet.url)
    yield opened
    await opened.close()


@pytest.fixture
async def databases(tmp_path: Path, postgres_database: str) -> AsyncIterator[tuple[Database, Database]]:
    """One database of each dialect."""
    made = [Database(DatabaseOptions(url=url)) for url in (sqlite_url(tmp_path / "full.db"), postgres_database)]
    for database in made:
        await upgrade(database)
    yield made[0], made[1]
    for database in made:
        await database.close()


async def fetch(parts: Parts, registry: ChainRegistry, subject: Subject, settled: int | None) -> bool:
    """Follow a subject and fetch its history, as the first question about it would."""
    async with parts.database.write() as connection:
        network = await parts.subjects.lock(connection, NETWORK)
        state = await parts.subjects.register(connection, network, subject, 0)
    return state.complete or await HistoryJob(tools_for(parts), source_for(registry, parts, settled), state).run()


async def check(parts: Parts, traffic: Traffic, truth: Truth, covered: set[Subject]) -> None:
    """Every owner, holder count and owned list is what the contracts say, for whatever is covered."""
    contracts = {bytes.fromhex(traffic.erc721[2:]), bytes.fromhex(traffic.erc1155[2:])}
    for person in [bytes.fromhex(each[2:]) for each in traffic.people]:
        subject = Subject(SubjectKind.HOLDER, person)
        if not covered & {EVERYTHING, subject}:
            continue
        page = await parts.store.owned(NETWORK, subject, limit=100, offset=0)
        assert page.coverage.complete
        own = [item for item in page.holdings if item.contract in contracts]
        ids = [*traffic.ids721, *traffic.ids1155]
        mine721 = {item.token_id for item in own if item.standard is Standard.ERC721 and item.token_id in ids}
        assert mine721 == {token_id for token_id, owner in truth.erc721.items() if owner == person}
        all721 = [item for item in own if item.standard is Standard.ERC721]
        assert len(all721) == truth.balances721[person]
        mine1155 = {
            (item.token_id, person): item.amount
            for item in own
            if item.standard is Standard.ERC1155 and item.token_id in ids
        }
        assert mine1155 == {pair: amount for pair, amount in truth.erc1155.items() if pair[1] == person}
    await _check_contracts(parts, traffic, truth, covered)


async def _check_contracts(parts: Parts, traffic: Traffic, truth: Truth, covered: set[Subject]) -> None:
    erc721, erc1155 = (bytes.fromhex(each[2:]) for each in (traffic.erc721, traffic.erc1155))
    collection721, collection1155 = (Subject(SubjectKind.CONTRACT, each) for each in (erc721, erc1155))
    if covered & {EVERYTHING, collection721}:
        for token_id in traffic.ids721:
            page = await parts.store.owners(NETWORK, collection721, token_id, limit=5)
            assert page.coverage.complete
            assert [item.owner for item in page.holdings] == [
                owner for owner in [truth.erc721.get(token_id)] if owner is not None
            ]
        facts, _ = await parts.store.collection(NETWORK, collection721)
        assert facts is not None
        assert facts.ids == facts.supply
        # The sample deployment mints to these people too, so their balances name all owners.
        assert facts.owners == sum(1 for balance in truth.balances721.values() if balance)
        assert facts.supply == sum(truth.balances721.values())
    if covered & {EVERYTHING, collection1155}:
        for token_id in traffic.ids1155:
            page = await parts.store.owners(NETWORK, collection1155, token_id, limit=50)
            assert {(token_id, item.owner): item.amount for item in page.holdings} == {
                pair: amount for pair, amount in truth.erc1155.items() if pair[0] == token_id
            }


@pytest.mark.parametrize("seed", [1])
async def test_the_index_is_what_the_contracts_say_after_random_traffic_and_reorgs(
    seed: int, quiet_devnet: EvmDevnet, registry: ChainRegistry, databases: tuple[Database, Database]
) -> None:
    random = Random(seed)
    traffic = Traffic(quiet_devnet, random)
    full, demand = (Parts(database) for database in databases)
    start = quiet_devnet.block_number()
    feeds = [ChainFeed(quiet_devnet, parts, start) for parts in (full, demand)]
    for feed in feeds:
        await feed.sync()
    # Everything, from the first block, in one; in the other what is asked about, from when it is asked about.
    assert await fetch(full, registry, EVERYTHING, start - 1)
    people = [Subject(SubjectKind.HOLDER, bytes.fromhex(each[2:])) for each in traffic.people]
    contracts = [Subject(SubjectKind.CONTRACT, bytes.fromhex(each[2:])) for each in (traffic.erc721, traffic.erc1155)]
    waiting = [*people[:3], *contracts]
    random.shuffle(waiting)
    covered: set[Subject] = set()
    reorgs = 0
    snapshots: list[tuple[int, str]] = []
    for number in range(_ROUNDS):
        snapshots.append((quiet_devnet.block_number(), await quiet_devnet.call_async("evm_snapshot")))
        await traffic.send(random.randrange(1, 40))
        if random.random() < 0.2:
            back, snapshot = random.choice(snapshots[-_LONGEST_REORG:])
            assert await quiet_devnet.call_async("evm_revert", snapshot)
            snapshots = [each for each in snapshots if each[0] < back]
            reorgs += 1
            if random.random() < 0.7:
                await traffic.send(random.randrange(1, 5))
        # The streams are at times a few blocks behind, and stand on a branch that is gone.
        steps = random.choice([1, 3, 100])
        await asyncio.gather(*(feed.sync(steps) for feed in feeds))
        if waiting and number % 7 == 4:
            subject = waiting.pop()
            settled = demand.chain[-1].number - random.randrange(_LONGEST_REORG, 12)
            # The stream goes on while the history is fetched.
            fetched, _ = await asyncio.gather(
                fetch(demand, registry, subject, settled), feeds[1].sync(random.randrange(4))
            )
            # A branch that the node has left cannot be fetched; the next attempt finds the new seam.
            if not fetched:
                await feeds[1].sync()
                assert await fetch(demand, registry, subject, settled)
            covered.add(subject)
        if number % 10 == 9 or number == _ROUNDS - 1:
            await asyncio.gather(*(feed.sync() for feed in feeds))
            truth = await Truth.read(quiet_devnet, traffic)
            await check(full, traffic, truth, {EVERYTHING})
            await check(demand, traffic, truth, covered)
    assert not waiting
    assert reorgs > 8
    assert traffic.steps > 1_500


def _run_child(database_url: str, node_url: str, settled: int, *points: str) -> str:
    arguments = (database_url, node_url, str(settled), *points)
    done = run_module("tests.support.index_child", *arguments, seconds=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


async def test_history_killed_ten_times_is_the_same_in_the_end(
    quiet_devnet: EvmDevnet, registry: ChainRegistry, database: Database, database_url: str, tmp_path: Path
) -> None:
    """Killed before, after and in the middle of a commit, with a reorg at the seam in between: no gap, no double."""
    traffic = Traffic(quiet_devnet, Random(7))
    for _ in range(25):
        await traffic.send(4)
    base = quiet_devnet.block_number()
    snapshot = await quiet_devnet.call_async("evm_snapshot")
    for _ in range(4):
        await traffic.send(4)
    parts = Parts(database)
    feed = ChainFeed(quiet_devnet, parts, quiet_devnet.block_number())
    await feed.sync()
    subjects = [
        Subject(SubjectKind.HOLDER, bytes.fromhex(traffic.people[0][2:])),
        Subject(SubjectKind.CONTRACT, bytes.fromhex(traffic.erc1155[2:])),
        EVERYTHING,
    ]
    async with database.write() as connection:
        state = await parts.subjects.lock(connection, NETWORK)
        for subject in subjects:
            await parts.subjects.register(connection, state, subject, 0)
    settled = base - 8
    first = ["1:before", "2:after", "4:before", "3:middle", "5:after"]
    assert _run_child(database_url, quiet_devnet.url, settled, *first) == "5 killed, not complete"
    # The blocks on both sides of the seam are replaced while nobody fetches.
    assert await quiet_devnet.call_async("evm_revert", snapshot)
    for _ in range(7):
        await traffic.send(4)
    await feed.sync()
    then = ["4:middle", "6:before", "3:after", "5:middle", "2:before", "end"]
    assert _run_child(database_url, quiet_devnet.url, settled, *then) == "5 killed, complete"
    await traffic.send(4)
    await feed.sync()
    # The same chain, read by the stream alone.
    whole = Database(DatabaseOptions(url=sqlite_url(tmp_path / "whole.db")))
    await upgrade(whole)
    other = Parts(whole)
    async with whole.write() as connection:
        await other.subjects.register(connection, await other.subjects.lock(connection, NETWORK), EVERYTHING, 0)
    await ChainFeed(quiet_devnet, other, 0).sync()
    expected, found = await other.rows(), await parts.rows()
    await whole.close()
    assert expected["transfers"]
    assert _untimed(found["transfers"]) == _untimed(expected["transfers"])
    assert {name: rows for name, rows in found.items() if name != "transfers"} == {
        name: rows for name, rows in expected.items() if name != "transfers"
    }


def _untimed(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Without the timestamp, which nodes do not tell with logs of the past."""
    return sorted((row[:-1] for row in rows), key=repr)
