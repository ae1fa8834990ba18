"""The history of the index: refusals and failures of upstreams, and the seam with the stream."""

import asyncio
from typing import Any

import pytest

from capstan.chain.follower.models import Applied, Reverted
from capstan.index.job import HistoryJob
from capstan.index.models import EVERYTHING, Subject, SubjectKind
from tests.support.index_chain import NETWORK, Parts, bare
from tests.support.index_node import tools_for
from tests.support.index_pool import ScriptedPool
from tests.unit.index.history import ANN, COIN, GAMES, by_stream, random_chain, rows_of, source_of, start_at


@pytest.mark.parametrize(
    ("subject", "settled"),
    [
        (EVERYTHING, 59),
        (EVERYTHING, None),
        (ANN, 40),
        (ANN, 500),
        (Subject(SubjectKind.CONTRACT, GAMES), 40),
        (Subject(SubjectKind.CONTRACT, COIN), 500),
    ],
    ids=str,
)
async def test_history_is_what_the_stream_would_have_brought(
    parts: Parts, subject: Subject, settled: int | None
) -> None:
    chain = random_chain(60)
    scripted = ScriptedPool(chain)
    (state,) = await start_at(parts, chain, subject)
    assert await HistoryJob(tools_for(parts), source_of(scripted, parts, settled), state).run()
    assert await rows_of(parts, state.network_id) == await by_stream(parts.database, chain, subject)
    assert (await parts.store.coverage(NETWORK, subject)).complete
    assert len(await parts.coverage_rows()) == 1


@pytest.mark.parametrize(
    ("wording", "most"),
    [
        ("eth_getLogs is limited to a {blocks} range", 1_000),
        ("exceed maximum block range: {blocks}", 100),
        ("query exceeds max block range {blocks}", 64),
        ("block range is too wide", 77),
    ],
)
async def test_the_limit_of_an_upstream_is_learned_from_its_refusal(parts: Parts, wording: str, most: int) -> None:
    chain = random_chain(30, first=5_000)
    scripted = ScriptedPool(chain)
    scripted.most_blocks, scripted.wording = most, wording
    (state,) = await start_at(parts, chain, EVERYTHING)
    source = source_of(scripted, parts, 5_029)
    assert await HistoryJob(tools_for(parts, width=1), source, state).run()
    assert await rows_of(parts, state.network_id) == await by_stream(parts.database, chain, EVERYTHING)
    spans = [
        int(query["toBlock"], 16) - int(query["fromBlock"], 16) + 1
        for method, query in scripted.calls
        if "toBlock" in query
    ]
    refused = [span for span in spans if span > most]
    # A limit that was named is asked beyond once; one that was not is found by halves.
    assert len(refused) <= (2 if "{blocks}" in wording else 10)
    assert source.limit.blocks <= most


async def test_too_many_logs_are_asked_for_in_smaller_parts(parts: Parts) -> None:
    chain = random_chain(80)
    scripted = ScriptedPool(chain)
    scripted.most_logs = 12
    (state,) = await start_at(parts, chain, EVERYTHING)
    source = source_of(scripted, parts, 79)
    assert await HistoryJob(tools_for(parts), source, state).run()
    assert await rows_of(parts, state.network_id) == await by_stream(parts.database, chain, EVERYTHING)
    # That says nothing about other subjects.
    assert source.limit.blocks > 80


async def test_failures_on_the_way_lose_nothing(parts: Parts) -> None:
    chain = random_chain(60)
    scripted = ScriptedPool(chain)
    scripted.failures = 3
    (state,) = await start_at(parts, chain, ANN)
    assert await HistoryJob(tools_for(parts), source_of(scripted, parts, 59), state).run()
    assert await rows_of(parts, state.network_id) == await by_stream(parts.database, chain, ANN)


async def test_a_job_given_up_is_continued_where_it_ended(parts: Parts) -> None:
    chain = random_chain(60)
    scripted = ScriptedPool(chain)
    (state,) = await start_at(parts, chain, EVERYTHING)
    source = source_of(scripted, parts, 40)
    seen = 0

    async def fail_later(method: str, _query: Any) -> None:
        nonlocal seen
        seen += method == "eth_getBlockByHash"
        if seen == 5:
            scripted.failures = 1_000

    scripted.before = fail_later
    assert not await HistoryJob(tools_for(parts, most_failures=0), source, state).run()
    assert not (await parts.store.coverage(NETWORK, EVERYTHING)).complete
    scripted.failures, scripted.before = 0, None
    scripted.calls.clear()
    # Another process: the first has given the subject back.
    assert await HistoryJob(tools_for(parts, "process-2"), source, state).run()
    assert await rows_of(parts, state.network_id) == await by_stream(parts.database, chain, EVERYTHING)
    assert not [query for method, query in scripted.calls if method == "eth_getLogs" and "fromBlock" in query]


async def test_logs_of_other_blocks_are_refused(parts: Parts) -> None:
    chain = random_chain(20)
    scripted = ScriptedPool(chain)
    (state,) = await start_at(parts, chain, EVERYTHING)
    scripted.spoil = lambda logs: [{**log, "blockNumber": "0xfff"} for log in logs]
    job = HistoryJob(tools_for(parts, most_failures=0), source_of(scripted, parts, 19), state)
    assert not await job.run()
    scripted.spoil = lambda logs: [{**log, "blockHash": "0x" + "ab" * 32} for log in logs]
    job = HistoryJob(tools_for(parts, most_failures=0), source_of(scripted, parts, -1), state)
    assert not await job.run()
    # Only what the stream brought is there.
    assert {row[1] for row in (await parts.rows())["transfers"]} <= {19}


@pytest.mark.parametrize(("at", "settled"), [(0, 5), (2, 14), (4, 5), (6, 19), (9, 5), (13, 14), (17, 5), (24, 5)])
async def test_a_reorganisation_while_history_is_fetched_leaves_no_gap_and_no_double(
    parts: Parts, at: int, settled: int
) -> None:
    """The stream takes back blocks on both sides of the seam and brings others, at any point of the fetching."""
    chain = random_chain(24)
    scripted = ScriptedPool(chain)
    parts.chain = [chain[20]]
    await parts.feed(Applied(chain[20]))
    (state,) = await start_at(parts, chain[:21], ANN)
    for item in chain[21:]:
        await parts.feed(Applied(item))
    fork = random_chain(6, seed=9, parent=chain[15].hash, first=16)
    # What was final stays.
    fork = fork if settled <= 15 else random_chain(6, seed=9, parent=chain[19].hash, first=20)
    common = fork[0].number

    async def reorganise(_method: str, _query: Any) -> None:
        if len(scripted.calls) != at + 1:
            return
        # The node goes first, the stream follows.
        scripted.stale = scripted.chain[common:]
        scripted.chain = [*chain[:common], *fork]
        for item in reversed(chain[common:]):
            await parts.feed(Reverted(bare(item)))
        for item in fork:
            await parts.feed(Applied(item))

    scripted.before = reorganise
    assert await HistoryJob(tools_for(parts, width=2), source_of(scripted, parts, settled), state).run()
    if len(scripted.calls) <= at:
        pytest.skip("the history was there before the reorganisation")
    assert await rows_of(parts, state.network_id) == await by_stream(parts.database, scripted.chain, ANN)


async def test_two_processes_do_not_fetch_the_same(parts: Parts) -> None:
    chain = random_chain(20)
    scripted = ScriptedPool(chain)
    scripted.gate = asyncio.Event()
    (state,) = await start_at(parts, chain, ANN)
    source = source_of(scripted, parts, 19)
    first = asyncio.create_task(HistoryJob(tools_for(parts, "process-1"), source, state).run())
    async with asyncio.timeout(60):
        while not scripted.calls:
            await asyncio.sleep(0.01)
    assert not await HistoryJob(tools_for(parts, "process-2"), source, state).run()
    scripted.gate.set()
    assert await first
    assert await rows_of(parts, state.network_id) == await by_stream(parts.database, chain, ANN)
