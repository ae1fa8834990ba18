"""Whatever happens on the chain, the answers are what the contracts themselves say."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from capstan.core.hexes import to_checksum_address
from capstan.index.models import EVERYTHING, Collection, Coverage, HoldingPage, Subject, SubjectKind
from capstan.storage.schema import index_networks, index_subjects
from tests.support.data import DataSetup, data_services
from tests.support.devnet import EvmDevnet
from tests.support.index_chain import DERIVED, NETWORK, Parts
from tests.support.index_node import ChainFeed
from tests.support.truth import IDS_1155, Contracts, Traffic, Truth

# A seed for the details, how many transactions, how many blocks are then taken back, how far the index follows.
ROUND = st.tuples(
    st.integers(0, 2**32),
    st.integers(10, 40),
    st.one_of(st.none(), st.none(), st.integers(1, 5)),
    st.sampled_from([1, 3, 100]),
)
# In development mode the node is asked for its head each time, and the chain may take back what it called final.
SETTINGS = {"mode": "development", "nfts.floor_receipts": 0, "nfts.floor_listing_days": 0}
ROUNDS = 25
EXAMPLES = 5


class StoredIndex:
    """The index as the services ask it, without the fetching of history: the test feeds it."""

    def __init__(self, parts: Parts) -> None:
        self._store = parts.store

    def follow(self, network: str) -> None:
        """The test does."""

    async def tokens_of(self, network: str, holder: bytes) -> tuple[tuple[bytes, ...], Coverage]:
        return await self._store.tokens_of(network, Subject(SubjectKind.HOLDER, holder))

    async def owned(self, network: str, holder: bytes, *, page: int, limit: int) -> HoldingPage:
        subject = Subject(SubjectKind.HOLDER, holder)
        return await self._store.owned(network, subject, limit=limit, offset=(page - 1) * limit)

    async def collection(self, network: str, contract: bytes) -> tuple[Collection | None, Coverage]:
        return await self._store.collection(network, Subject(SubjectKind.CONTRACT, contract))

    async def owners(self, network: str, contract: bytes, token_id: int, *, limit: int) -> HoldingPage:
        return await self._store.owners(network, Subject(SubjectKind.CONTRACT, contract), token_id, limit=limit)


async def owned_by(setup: DataSetup, person: str, limit: int) -> list[tuple[str, int]]:
    """The whole list, page by page."""
    found: list[tuple[str, int]] = []
    page = 1
    while True:
        answer = await setup.owned(person, page, limit)
        found += [(item["contract"], int(item["token_id"])) for item in answer["nfts"]]
        if len(found) >= answer["total"]:
            assert len(found) == answer["total"]
            return found
        page += 1


async def check(setup: DataSetup, contracts: Contracts, truth: Truth, limit: int) -> None:
    """Every balance, owner, holder count and owned list."""
    unique, ranges, items = map(to_checksum_address, (contracts.unique, contracts.ranges, contracts.items))
    for person in map(str.lower, contracts.people):
        balances = await setup.balances(person)
        mine = {item["contract"].lower(): int(item["balance"]) for item in balances["tokens"]}
        assert mine.get(contracts.token.lower(), 0) == truth.tokens.get(person, 0)
        expected = [
            (to_checksum_address(each), number) for (each, number), who in truth.owners.items() if who == person
        ]
        expected += [(items, number) for number, who in truth.items if who == person]
        listed = await owned_by(setup, person, limit)
        assert listed == sorted(expected, key=lambda pair: (pair[0].lower(), pair[1]))
    for contract in (unique, ranges):
        shown = await setup.collection(contract)
        here = {who for (each, _), who in truth.owners.items() if each.lower() == contract.lower()}
        assert shown["num_owners"] == len(here)
        assert here == {who for each, who in truth.balances if each.lower() == contract.lower()}
        assert shown["total_supply"] == sum(each.lower() == contract.lower() for each, _ in truth.owners)
    shown = await setup.collection(items)
    assert shown["num_owners"] == len({who for _, who in truth.items})
    assert shown["total_supply"] == len({number for number, _ in truth.items})
    for number in IDS_1155:
        holders = [who for each, who in truth.items if each == number]
        owner = (await setup.nft(items, number))["owner"]
        assert owner == (to_checksum_address(holders[0]) if len(holders) == 1 else None)


async def begin(parts: Parts, first_block: int) -> None:
    """Forget everything, and follow the chain from this block on."""
    async with parts.database.write() as connection:
        for table in (*DERIVED, index_subjects, index_networks):
            await connection.execute(table.delete())
        network = await parts.subjects.lock(connection, NETWORK)
        await parts.subjects.register(connection, network, EVERYTHING, first_block)


def test_answers_are_what_the_contracts_say(quiet_devnet: EvmDevnet, tmp_path: Path) -> None:
    """Mints, transfers, burns, batches, ranges and reorganisations, thousands of steps on the real chain."""
    done = {"steps": 0, "reorganisations": 0, "checks": 0}

    async def run(rounds: list[Any]) -> None:
        start = quiet_devnet.block_number() + 1
        contracts = await Contracts.deploy(quiet_devnet, 5)
        async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path, settings=SETTINGS) as setup:
            parts = Parts(setup.database)
            await begin(parts, start)
            setup.data.use_index(StoredIndex(parts))
            feed, traffic = ChainFeed(quiet_devnet, parts, start), Traffic(quiet_devnet, contracts)
            snapshots: list[str] = []
            for place, (seed, steps, taken_back, follows) in enumerate(rounds):
                random = Random(seed)
                snapshots.append(await quiet_devnet.call_async("evm_snapshot"))
                await traffic.send(random, steps)
                if taken_back is not None and len(snapshots) >= taken_back:
                    assert await quiet_devnet.call_async("evm_revert", snapshots[-taken_back])
                    del snapshots[-taken_back:]
                    done["reorganisations"] += 1
                    await traffic.send(random, random.randrange(1, 4))
                # At times the index stands on a branch that is gone.
                await feed.sync(follows)
                if place % 5 == 4 or place == len(rounds) - 1:
                    await feed.sync()
                    truth = await Truth.read(quiet_devnet, contracts)
                    await check(setup, contracts, truth, random.choice([1, 3, 100]))
                    done["checks"] += 1
            done["steps"] += traffic.steps

    # Without shrinking: a failure is told at once, and the seeds in it say the rest.
    @settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.lists(ROUND, min_size=ROUNDS, max_size=ROUNDS))
    def examples(rounds: list[Any]) -> None:
        asyncio.run(run(rounds))

    examples()
    assert done["steps"] > 2_000
    assert done["reorganisations"] > 15
    assert done["checks"] >= EXAMPLES * ROUNDS // 5
