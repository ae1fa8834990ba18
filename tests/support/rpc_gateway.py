"""A gateway in front of one network, with its charges written down. The nodes are faulty ones or a real one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from capstan.chain.filters import FilterRouter
from capstan.chain.models import UpstreamSpec
from capstan.chain.registry import ChainRegistry, Network
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from capstan.core.errors import ApiError
from capstan.rpc.cache.gateway import RpcCache
from capstan.rpc.cache.models import NoHeads
from capstan.rpc.forwarding import Forwarder
from capstan.rpc.logs import LogReader
from capstan.rpc.models import RpcReply
from capstan.rpc.preparing import RpcLimits
from capstan.rpc.service import RpcService
from tests.support.faulty_node import Answer, FaultyNode, network_spec, results

COSTS = {"eth_chainId": 0, "eth_blockNumber": 1, "eth_call": 3, "eth_sendRawTransaction": 4}


class Key:
    """A caller with these scopes."""

    account_id = "acc_1"
    key_id = "key_1"

    def __init__(self, *scopes: str) -> None:
        self.scopes = scopes

    def has_scope(self, scope: str) -> bool:
        return scope in self.scopes


BOTH = Key("rpc:read", "rpc:write")


class FixedHeads(NoHeads):
    """A head that does not move and is never announced, so that every question reaches a node."""

    is_fresh = False

    def __init__(self, head: int | None) -> None:
        self.latest_number = head

    def nudge(self) -> None:
        """There is nothing to look for."""


class UsageLog:
    """What the service recorded: method, units, failed, cached."""

    def __init__(self) -> None:
        self.records: list[tuple[str, int, bool, bool]] = []

    def record(
        self,
        account_id: str,
        key_id: str,
        network: str,
        method: str,
        units: int,
        failed: bool,
        microseconds: int,
        cached: bool = False,
    ) -> None:
        assert (account_id, key_id) == ("acc_1", "key_1")
        self.records.append((method, units, failed, cached))


class Gateway:
    """A service in front of one network, with its charges written down."""

    def __init__(self, service: RpcService, network: Network, usage: UsageLog) -> None:
        self.service = service
        self.network = network
        self.usage = usage
        self.nodes: list[FaultyNode] = []
        self.charged: list[tuple[int, int]] = []
        self.refunded: list[int] = []
        self.refuse: ApiError | None = None

    async def charge(self, requests: int, units: int) -> None:
        self.charged.append((requests, units))
        if self.refuse is not None:
            raise self.refuse

    async def refund(self, units: int) -> None:
        self.refunded.append(units)

    async def send(self, body: bytes, caller: Key = BOTH) -> RpcReply:
        return await self.service.handle(
            caller, self.network, body, charge=self.charge, refund=self.refund, request_id="req_1"
        )

    async def ask(self, body: Any, caller: Key = BOTH) -> Any:
        reply = await self.send(json.dumps(body).encode(), caller)
        assert reply.status == 200
        assert dict(reply.headers)["Content-Type"] == "application/json"
        return json.loads(reply.body)


@asynccontextmanager
async def gateway(
    *answers: Answer, limits: RpcLimits | None = None, head: int | None = None, **changes: Any
) -> AsyncIterator[Gateway]:
    """A gateway to faulty nodes that answer so; without any, to one that answers everything with 0x1."""
    timeout = changes.pop("timeout_seconds", 5.0)
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(FaultyNode(answer)) for answer in answers or (results("0x1"),)]
        specs = [node.spec(f"node-{place}", timeout_seconds=timeout) for place, node in enumerate(nodes)]
        tested = await stack.enter_async_context(gateway_to(*specs, limits=limits, head=head, **changes))
        tested.nodes = nodes
        async with asyncio.timeout(20):
            yield tested


@asynccontextmanager
async def gateway_to(
    *upstreams: UpstreamSpec, limits: RpcLimits | None = None, head: int | None = None, **changes: Any
) -> AsyncIterator[Gateway]:
    """A gateway to these upstreams."""
    clock = SystemClock()
    registry = ChainRegistry(open_session(), clock)
    registry.replace([network_spec(*upstreams, **changes)])
    cache, usage = RpcCache(clock), UsageLog()
    forwarder = Forwarder(cache, LogReader(cache, clock), FilterRouter(clock), clock, heads=lambda _: FixedHeads(head))
    service = RpcService(
        cost=lambda method, archive: COSTS.get(method, 2) * (10 if archive else 1),
        head=lambda _: head,
        clock=clock,
        forwarder=forwarder,
        usage=usage,
        limits=limits,
    )
    try:
        yield Gateway(service, registry.networks()[0], usage)
    finally:
        await cache.close()
        await registry.close()


def call(method: str, *params: Any, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": list(params)}


def notification(method: str, *params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": list(params)}
