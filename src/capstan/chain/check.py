"""Asks upstreams whether they are there and on the right chain.

Called by `capstan networks check` and `capstan doctor`. It only reads, and every question has a timeout.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeVar

import aiohttp
import msgspec
from msgspec import Raw

from capstan.chain.clients import client_for
from capstan.chain.errors import ChainError
from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.chain.upstream import UpstreamClient
from capstan.chain.websocket import WebSocketUpstream

T = TypeVar("T")

_SECONDS = 10.0


class UpstreamCheck(msgspec.Struct, frozen=True):
    """What one upstream answered. `problem` is empty when all is well."""

    network: str
    upstream: str
    head: int | None
    # Unix time of the head, where the node tells it; compared with our own clock by `capstan doctor`.
    head_time: int | None
    problem: str


async def check_upstreams(
    specs: Iterable[NetworkSpec],
    session: aiohttp.ClientSession,
    *,
    chain_ids: Mapping[str, int],
    genesis: Mapping[str, str],
) -> list[UpstreamCheck]:
    """Check all upstreams of all networks at once."""
    pairs = [(spec, upstream) for spec in specs for upstream in spec.upstreams]
    return list(
        await asyncio.gather(
            *(
                _check(spec, upstream, session, chain_ids.get(spec.name), genesis.get(spec.name, ""))
                for spec, upstream in pairs
            )
        )
    )


async def _check(
    spec: NetworkSpec, upstream: UpstreamSpec, session: aiohttp.ClientSession, chain_id: int | None, genesis: str
) -> UpstreamCheck:
    client = client_for(upstream, spec.family, session)
    head_time: int | None
    try:
        if spec.family == "evm":
            head, head_time, problem = await _check_evm(client, chain_id)
        elif isinstance(client, WebSocketUpstream):
            head, head_time, problem = await _check_solana_socket(client), None, ""
        else:
            head, head_time, problem = await _check_solana(client, genesis)
    except (ChainError, TimeoutError, ValueError, msgspec.DecodeError) as error:
        return UpstreamCheck(spec.name, upstream.name, None, None, f"did not answer as a node should: {error}")
    finally:
        await client.close()
    return UpstreamCheck(spec.name, upstream.name, head, head_time, problem)


class _Head(msgspec.Struct):
    number: str
    timestamp: str


async def _check_evm(client: UpstreamClient, chain_id: int | None) -> tuple[int, int, str]:
    found = int(await _ask(client, "eth_chainId", b"[]", str), 16)
    latest = await _ask(client, "eth_getBlockByNumber", b'["latest",false]', _Head)
    head, head_time = int(latest.number, 16), int(latest.timestamp, 16)
    if chain_id is not None and found != chain_id:
        return head, head_time, f"is on chain id {found}, this network has {chain_id}; check the address"
    return head, head_time, ""


async def _check_solana(client: UpstreamClient, genesis: str) -> tuple[int, None, str]:
    found = await _ask(client, "getGenesisHash", b"[]", str)
    head = await _ask(client, "getSlot", b"[]", int)
    if genesis and found != genesis:
        return head, None, f"has the genesis hash {found}, this network has {genesis}; check the address"
    return head, None, ""


class _Slot(msgspec.Struct):
    slot: int


async def _check_solana_socket(client: WebSocketUpstream) -> int:
    """The next slot that the node tells of. Its WebSocket answers subscriptions only, so the chain is not known."""
    told: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()

    def tell(result: Raw) -> None:
        if not told.done():
            told.set_result(result)

    subscription = await client.subscribe("slotSubscribe", b"[]", tell, unsubscribe="slotUnsubscribe", timeout=_SECONDS)
    try:
        async with asyncio.timeout(_SECONDS):
            return msgspec.json.decode(await told, type=_Slot).slot
    finally:
        await subscription.close()


async def _ask(client: UpstreamClient, method: str, params: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(await client.call(method, params, timeout=_SECONDS), type=kind)
