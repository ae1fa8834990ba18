"""Reading contracts from nodes that differ from the development chain: no EIP-1898, no Multicall3, a reorganisation."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from eth_abi.abi import decode, encode

from capstan.chain.calls.models import BlockChanged, BlockRef, ContractCall
from capstan.chain.calls.reader import StateReader
from capstan.chain.errors import EveryUpstreamFailed
from capstan.chain.registry import ChainRegistry, Network
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from tests.support.faulty_node import FaultyNode, network_spec

HASH, OTHER = "0x" + "aa" * 32, "0x" + "bb" * 32
BLOCK = BlockRef(16, HASH, 1_700_000_000)
MULTICALL = "0xcA11bde05977b3631167028862bE2a173976CA11"
CALLS = [ContractCall(bytes([number]) * 20, bytes(4)) for number in range(1, 5)]

Answer = Callable[[dict[str, Any]], Any]


class Refused(Exception):
    """An error that the node answers with."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def contract(to: str, _data: str) -> bytes | None:
    """What each contract returns: its first byte; contract 3 reverts."""
    number = int(to[2:4], 16)
    return None if number == 3 else number.to_bytes(32, "big")


def node(*, by_hash: bool = True, multicall: bool = True, block_hash: str = HASH, limit: int = 10**9) -> Answer:
    """The answers of a node. A multicall gets at most `limit` calls done before the gas runs out."""

    def answer(call: dict[str, Any]) -> Any:
        if call["method"] == "eth_getBlockByNumber":
            return {"number": call["params"][0], "hash": block_hash, "timestamp": "0x6553f100"}
        transaction, block = call["params"]
        if isinstance(block, dict) and not by_hash:
            raise Refused(-32602, "invalid argument 1: json: cannot unmarshal object into Go value of type string")
        if transaction["to"] == MULTICALL.lower():
            if not multicall:
                return "0x"
            (asked,) = decode(["(address,bool,bytes)[]"], bytes.fromhex(transaction["data"][10:]))
            results = [contract(to, data) if to != MULTICALL.lower() else bytes(32) for to, _, data in asked]
            done = [item if place < limit else None for place, item in enumerate(results)]
            return "0x" + encode(["(bool,bytes)[]"], [[(item is not None, item or b"") for item in done]]).hex()
        result = contract(transaction["to"], transaction["data"])
        if result is None:
            raise Refused(3, "execution reverted")
        return "0x" + result.hex()

    return answer


@asynccontextmanager
async def chain(answer: Answer) -> AsyncIterator[tuple[Network, FaultyNode]]:
    async def respond(_request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        try:
            body = {"result": answer(call)}
        except Refused as error:
            body = {"error": {"code": error.code, "message": error.message}}
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], **body})

    registry = ChainRegistry(open_session(), SystemClock())
    async with FaultyNode(respond) as faulty, asyncio.timeout(20):
        registry.replace([network_spec(faulty.spec())])
        try:
            yield registry.networks()[0], faulty
        finally:
            await registry.close()


def numbers(results: list[bytes | None]) -> list[int | None]:
    return [None if result is None else int.from_bytes(result, "big") for result in results]


async def read(answer: Answer, multicall: str = MULTICALL) -> tuple[list[int | None], FaultyNode]:
    async with chain(answer) as (network, faulty):
        return numbers(await StateReader(lambda _: multicall).read(network, BLOCK, CALLS)), faulty


async def test_many_calls_are_one_question_bound_to_the_block_hash() -> None:
    results, faulty = await read(node())
    assert results == [1, 2, None, 4]
    assert faulty.methods == ["eth_call"]
    assert faulty.calls[0]["params"][1] == {"blockHash": HASH, "requireCanonical": True}
    assert int(faulty.calls[0]["params"][0]["gas"], 16) <= 16_777_216


async def test_without_multicall_each_call_is_a_question() -> None:
    results, faulty = await read(node(), multicall="")
    assert (results, len(faulty.calls)) == ([1, 2, None, 4], 4)


async def test_multicall_that_is_not_deployed_is_done_without() -> None:
    results, faulty = await read(node(multicall=False))
    assert (results, len(faulty.calls)) == ([1, 2, None, 4], 5)


async def test_node_without_eip_1898_is_asked_by_number_and_the_hash_is_checked() -> None:
    async with chain(node(by_hash=False)) as (network, faulty):
        reader = StateReader(lambda _: MULTICALL)
        assert numbers(await reader.read(network, BLOCK, CALLS)) == [1, 2, None, 4]
        assert faulty.methods == ["eth_call", "eth_call", "eth_getBlockByNumber"]
        await reader.read(network, BLOCK, CALLS)
        # The second time it is known.
        assert faulty.methods[3:] == ["eth_call", "eth_getBlockByNumber"]


async def test_block_that_was_replaced_during_the_reading_is_noticed() -> None:
    with pytest.raises(BlockChanged, match="block 16"):
        await read(node(by_hash=False, block_hash=OTHER))


async def test_block_that_no_node_has_is_noticed() -> None:
    def gone(_call: dict[str, Any]) -> Any:
        raise Refused(-32000, "header not found")

    with pytest.raises(BlockChanged, match="no upstream"):
        await read(gone)


async def test_what_the_gas_did_not_suffice_for_is_asked_again() -> None:
    results, faulty = await read(node(limit=2))
    assert results == [1, 2, None, 4]
    assert len(faulty.calls) <= 6


@pytest.mark.parametrize("message", ["out of gas", "gas required exceeds allowance (50000000)"])
async def test_question_that_fails_as_a_whole_is_asked_one_by_one(message: str) -> None:
    usual = node()

    def answer(call: dict[str, Any]) -> Any:
        if call["params"][0]["to"] == MULTICALL.lower():
            raise Refused(-32000, message)
        return usual(call)

    results, _ = await read(answer)
    assert results == [1, 2, None, 4]


async def test_nonsense_from_multicall_is_not_believed() -> None:
    usual = node()

    def answer(call: dict[str, Any]) -> Any:
        return "0x" + "ff" * 64 if call["params"][0]["to"] == MULTICALL.lower() else usual(call)

    results, _ = await read(answer)
    assert results == [1, 2, None, 4]


async def test_nonsense_from_the_node_is_its_failure() -> None:
    with pytest.raises(EveryUpstreamFailed):
        await read(lambda _call: 42)


async def test_reading_nothing_asks_nothing() -> None:
    async with chain(node()) as (network, faulty):
        assert await StateReader(lambda _: MULTICALL).read(network, BLOCK, []) == []
        assert faulty.calls == []


async def test_many_calls_are_cut_into_questions() -> None:
    calls = [ContractCall(bytes([1]) * 20, bytes(36)) for _ in range(2500)]
    async with chain(node()) as (network, faulty):
        results = await StateReader(lambda _: MULTICALL).read(network, BLOCK, calls)
    assert numbers(results) == [1] * 2500
    assert len(faulty.calls) == 3
