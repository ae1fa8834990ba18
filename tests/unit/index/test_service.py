"""The index as the capabilities see it: first questions, bounded waits, what is followed and what is not."""

import asyncio

import pytest

from capstan.chain.follower.models import Applied, Block
from capstan.core.errors import NotFound
from capstan.index.models import EVERYTHING, Subject, SubjectKind
from capstan.index.service import IndexedNetwork
from tests.support.index_chain import NETWORK, ZERO, Parts, block, erc20, erc721
from tests.support.index_pool import ScriptedPool
from tests.unit.index.history import ANN, GAMES, PEOPLE, PUNKS, TOKEN, Served, random_chain, start_at


async def test_the_first_question_fetches_the_history_and_the_stream_goes_on(parts: Parts) -> None:
    chain = random_chain(40)
    scripted = ScriptedPool(chain)
    await start_at(parts, chain)
    served = Served(parts, scripted)
    tokens, coverage = await served.index.tokens_of(NETWORK, PEOPLE[0])
    assert coverage.complete
    assert coverage.block == 39
    assert set(served.needed) == {NETWORK}
    found = await served.index.transfers(NETWORK, PEOPLE[0], nft=False)
    assert {item.contract for item in found.transfers if item.amount} == set(tokens)
    # Old logs come without a time; the blocks tell it.
    assert all(item.timestamp == 1_700_000_000 + item.block_number for item in found.transfers)
    calls = len(scripted.calls)
    extra = block(40, chain[-1].hash, [erc721(PUNKS, ZERO, PEOPLE[0], 4711)])
    await parts.feed(Applied(extra))
    owned = await served.index.owned(NETWORK, PEOPLE[0], limit=100)
    assert (PUNKS, 4711) in {(item.contract, item.token_id) for item in owned.holdings}
    assert owned.coverage.block == 40
    assert len(scripted.calls) == calls
    owner, _ = await served.index.owner(NETWORK, PUNKS, 4711)
    assert owner is not None
    assert owner.owner == PEOPLE[0]
    facts, _ = await served.index.collection(NETWORK, GAMES)
    assert facts is not None
    await served.backfill.close()


async def test_the_history_of_an_erc20_contract_is_given_up_soon(parts: Parts) -> None:
    """Otherwise one question about NFTs of a busy token would fetch all of its transfers."""
    chain: list[Block] = []
    for number in range(300):
        parent = chain[-1].hash if chain else "0x" + "00" * 32
        chain.append(block(number, parent, [erc20(TOKEN, PEOPLE[0], PEOPLE[1], 1)]))
    scripted = ScriptedPool(chain)
    scripted.most_blocks = 10
    await start_at(parts, chain)
    served = Served(parts, scripted, jobs={"most_without_nfts": 50, "width": 1})
    facts, coverage = await served.index.collection(NETWORK, TOKEN)
    assert (facts, coverage.complete) == (None, False)
    calls = len(scripted.calls)
    assert calls < 30
    assert not (await served.index.collection(NETWORK, TOKEN))[1].complete
    assert len(scripted.calls) == calls
    assert not (await parts.rows())["transfers"]
    await served.backfill.close()


async def test_a_question_does_not_wait_for_long(parts: Parts) -> None:
    chain = random_chain(30)
    scripted = ScriptedPool(chain)
    scripted.gate = asyncio.Event()
    await start_at(parts, chain)
    served = Served(parts, scripted, wait_seconds=0.2)
    first = await served.index.transfers(NETWORK, PEOPLE[0], nft=True)
    assert (first.coverage.block, first.coverage.complete) == (29, False)
    # The second does not wait again.
    async with asyncio.timeout(30):
        for _ in range(20):
            assert not (await served.index.tokens_of(NETWORK, PEOPLE[0]))[1].complete
    scripted.gate.set()
    async with asyncio.timeout(60):
        while not (await served.index.coverage(NETWORK, ANN)).complete:
            await asyncio.sleep(0.02)
    await served.backfill.close()


async def test_history_left_behind_is_taken_up(parts: Parts) -> None:
    chain = random_chain(30)
    (state,) = await start_at(parts, chain, ANN)
    served = Served(parts, ScriptedPool(chain))
    await served.backfill.look()
    await served.backfill.wait(state.id, 10)
    assert (await served.index.coverage(NETWORK, ANN)).complete
    await served.backfill.close()


async def test_before_the_stream_has_begun_nothing_is_complete(parts: Parts) -> None:
    served = Served(parts, ScriptedPool([]), wait_seconds=0.1)
    found = await served.index.owned(NETWORK, PEOPLE[0])
    assert (found.total, found.coverage.block, found.coverage.complete) == (0, None, False)
    await served.backfill.close()


async def test_questions_cannot_make_the_index_follow_without_end(parts: Parts) -> None:
    chain = random_chain(5)
    await start_at(parts, chain)
    served = Served(parts, ScriptedPool(chain), most_subjects=2)
    for person in PEOPLE[:3]:
        assert (await served.index.tokens_of(NETWORK, person))[1].complete
    # The first has made room; nothing pretends to be complete of it.
    assert not (await served.index.coverage(NETWORK, ANN)).complete
    assert (await served.index.coverage(NETWORK, Subject(SubjectKind.HOLDER, PEOPLE[2]))).complete
    async with parts.database.read() as connection:
        network = await parts.subjects.find_network(connection, NETWORK)
        assert network is not None
        assert await parts.subjects.count(connection, network.id) == 2
    await served.backfill.close()


async def test_the_zero_address_is_never_followed(parts: Parts) -> None:
    chain = random_chain(5)
    await start_at(parts, chain)
    scripted = ScriptedPool(chain)
    served = Served(parts, scripted)
    assert not (await served.index.owned(NETWORK, ZERO)).coverage.complete
    assert not scripted.calls


async def test_a_network_can_be_followed_for_notices_alone(parts: Parts) -> None:
    served = Served(parts, ScriptedPool([]))
    served.index.follow("polygon/mainnet")
    assert served.needed == []
    served.index.follow(NETWORK)
    assert served.needed == [NETWORK]


async def test_a_network_that_is_not_indexed_is_not_found(parts: Parts) -> None:
    served = Served(parts, ScriptedPool([]))
    with pytest.raises(NotFound, match="polygon/mainnet"):
        await served.index.owned("polygon/mainnet", PEOPLE[0])


async def test_a_network_can_change_between_full_and_on_demand(parts: Parts) -> None:
    chain = random_chain(25)
    await start_at(parts, chain)
    served = Served(parts, ScriptedPool(chain))
    served.network = IndexedNetwork(served.source, "full")
    await served.index.prepare()
    assert (await served.index.owned(NETWORK, PEOPLE[1])).coverage.complete
    assert (await served.index.coverage(NETWORK, EVERYTHING)).complete
    served.network = IndexedNetwork(served.source, "on_demand")
    await served.index.prepare()
    assert not (await served.index.coverage(NETWORK, ANN)).complete
    # Followed on its own now; what is there already is not counted twice.
    before = await parts.rows()
    assert (await served.index.owned(NETWORK, PEOPLE[0])).coverage.complete
    assert await parts.rows() == before
    await served.backfill.close()
