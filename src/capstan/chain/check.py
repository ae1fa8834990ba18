"""Asks upstreams whether they are there and on the right chain.

Called by `capstan networks check` and `capstan doctor`. It only reads, and every question has a timeout.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeVar

import aiohttp
import msgspec

from capstan.chain.clients import client_for
from capstan.chain.errors import ChainError
from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.chain.upstream import UpstreamClient

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
        else:
            head, head_time, problem = await _check_solana(client, genesis)
    except (ChainError, ValueError, msgspec.DecodeError) as error:
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


async def _ask(client: UpstreamClient, method: str, params: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(await client.call(method, params, timeout=_SECONDS), type=kind)
