"""State of a block, from nodes that can do more or less."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from capstan.bundler.validation.state import EMPTY_CODE_HASH, ChainState
from capstan.chain.calls.models import BlockChanged, BlockRef
from capstan.chain.errors import EveryUpstreamFailed
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from capstan.core.hexes import keccak256, to_data
from tests.support.faulty_node import FaultyNode, network_spec

_CONTRACT, _PERSON, _NOBODY = b"\xc0" * 20, b"\x01" * 20, b"\x02" * 20
_CODE = b"\x60\x01"
_BLOCK, _NEXT = BlockRef(7, "0x" + "07" * 32, 70), BlockRef(8, "0x" + "08" * 32, 80)
_SLOTS = [bytes(32), (1).to_bytes(32, "big")]
_METHOD_MISSING = {"code": -32601, "message": "the method eth_getProof does not exist"}


class Unable(Exception):
    """The node answers with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.error = error


def _answer(method: str, params: list[Any]) -> Any:
    """A node that has a contract, a person with some ether, and nobody else."""
    address = bytes.fromhex(params[0][2:])
    code = _CODE if address == _CONTRACT else b""
    match method:
        case "eth_getProof":
            return {
                "balance": "0x5" if address == _PERSON else "0x0",
                "nonce": "0x1" if address != _NOBODY else "0x0",
                # As some nodes tell of an account that does not exist.
                "codeHash": to_data(bytes(32) if address == _NOBODY else keccak256(code)),
                "storageProof": [{"key": hex(int(key, 16)), "value": "0x9"} for key in params[1]],
            }
        case "eth_getCode":
            return to_data(code)
        case "eth_getBalance":
            return "0x5" if address == _PERSON else "0x0"
        case "eth_getTransactionCount":
            return "0x1" if address != _NOBODY else "0x0"
        case _:
            return "0x" + "00" * 31 + "09"


@asynccontextmanager
async def _chain(answer: Callable[[str, list[Any]], Any]) -> AsyncIterator[tuple[ChainState, FaultyNode]]:
    async def respond(_request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        try:
            body = {"result": answer(call["method"], call["params"])}
        except Unable as unable:
            body = {"error": unable.error}
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], **body})

    registry = ChainRegistry(open_session(), SystemClock())
    async with FaultyNode(respond) as faulty:
        registry.replace([network_spec(faulty.spec())])
        try:
            yield ChainState(registry.networks()[0]), faulty
        finally:
            await registry.close()


async def _check(state: ChainState, block: BlockRef) -> None:
    known = await state.fetch(block, [_CONTRACT, _PERSON, _NOBODY], {_CONTRACT: _SLOTS})
    assert known.accounts == {
        _CONTRACT: (0, 1, keccak256(_CODE)),
        _PERSON: (5, 1, EMPTY_CODE_HASH),
        _NOBODY: (0, 0, EMPTY_CODE_HASH),
    }
    assert known.storage[_CONTRACT] == {slot: (9).to_bytes(32, "big") for slot in _SLOTS}
    assert known.codes[keccak256(_CODE)] == _CODE


async def test_an_account_with_its_slots_is_one_question_and_code_is_asked_for_once() -> None:
    async with _chain(_answer) as (state, node):
        await _check(state, _BLOCK)
        assert sorted(node.methods) == ["eth_getCode"] * 3 + ["eth_getProof"] * 3
        assert all(call["params"][-1] == {"blockHash": _BLOCK.hash} for call in node.calls)
        # The same again is known.
        await _check(state, _BLOCK)
        assert state.round_trips == 1
        await _check(state, _NEXT)
        assert sorted(node.methods[6:]) == ["eth_getProof"] * 3
        assert state.round_trips == 2


async def test_a_node_without_proofs_is_asked_one_by_one() -> None:
    def answer(method: str, params: list[Any]) -> Any:
        if method == "eth_getProof":
            raise Unable(_METHOD_MISSING)
        return _answer(method, params)

    async with _chain(answer) as (state, node):
        await _check(state, _BLOCK)
        assert node.methods.count("eth_getStorageAt") == 2
        asked = node.methods.count("eth_getProof")
        await _check(state, _NEXT)
        # What the node cannot do is not asked again.
        assert node.methods.count("eth_getProof") == asked


async def test_a_node_that_takes_no_hashes_is_given_numbers() -> None:
    def answer(method: str, params: list[Any]) -> Any:
        if method == "eth_getBlockByNumber":
            return {"number": "0x7", "hash": _BLOCK.hash, "timestamp": "0x46"}
        if not isinstance(params[-1], str):
            raise Unable({"code": -32602, "message": "invalid argument: hex string expected"})
        return _answer(method, params)

    async with _chain(answer) as (state, node):
        await _check(state, _BLOCK)
        assert {call["params"][-1] for call in node.calls if isinstance(call["params"][-1], str)} == {"0x7"}
        # Another block has that number now.
        replaced = BlockRef(7, "0x" + "77" * 32, 70)
        with pytest.raises(BlockChanged):
            await state.fetch(replaced, [_CONTRACT], {})


async def test_a_block_that_no_node_has_any_more_is_told_so() -> None:
    def answer(_method: str, _params: list[Any]) -> Any:
        raise Unable({"code": -32000, "message": "header not found"})

    async with _chain(answer) as (state, _):
        with pytest.raises(BlockChanged):
            await state.fetch(_BLOCK, [_CONTRACT], {})


@pytest.mark.parametrize("nonsense", [None, "0x", 5, {"balance": "0x0"}])
async def test_nonsense_is_an_error_of_the_upstream(nonsense: object) -> None:
    def answer(method: str, params: list[Any]) -> Any:
        return nonsense if method == "eth_getProof" else _answer(method, params)

    async with _chain(answer) as (state, _):
        with pytest.raises(EveryUpstreamFailed):
            await state.fetch(_BLOCK, [_CONTRACT], {})


async def test_code_that_is_not_that_of_the_hash_is_not_believed() -> None:
    def answer(method: str, params: list[Any]) -> Any:
        return "0x6002" if method == "eth_getCode" else _answer(method, params)

    async with _chain(answer) as (state, _):
        with pytest.raises(EveryUpstreamFailed):
            await state.fetch(_BLOCK, [_CONTRACT], {})
