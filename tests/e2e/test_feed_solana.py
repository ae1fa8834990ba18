"""Solana's subscriptions through the feed: solana-py unchanged, and upstreams that die."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed, Processed
from solana.rpc.websocket_api import SolanaWsClient
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.rpc.responses import AccountNotification, RootNotification, SignatureNotification, SlotNotification

from tests.support.feed_client import FeedClient, RpcError, connected, socket_url
from tests.support.relay import Relay
from tests.support.service import RunCapstan, Service, StartService, run_json, variables
from tests.support.solana import websocket_url
from tests.support.solana_client import SOL, next_of, pay, sign

NETWORK = "solana/devnet"


@pytest.fixture(scope="module")
def relays(solana_devnet: str) -> Iterator[list[Relay]]:
    """Two WebSocket upstreams on the same node."""
    with ExitStack() as stack:
        made = []
        for name in ("first", "second"):
            relay = Relay(name, websocket_url(solana_devnet).replace("ws", "http", 1))
            stack.callback(relay.kill)
            relay.start()
            made.append(relay)
        yield made


@pytest.fixture(scope="module")
def url(solana_devnet: str, relays: list[Relay], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the feed of a service with both, and of a key for it."""
    directory = tmp_path_factory.mktemp("solana-feed")
    data = ("--data-dir", str(directory / "data"))
    key = run_json("keys", "create", "--plan", "enterprise", *data)["key"]
    sockets = [{"name": relay.name, "url": relay.url.replace("http", "ws", 1)} for relay in relays]
    service = Service([*data], variables(_settings([{"name": "calls", "url": solana_devnet}, *sockets])), directory)
    try:
        yield socket_url(service.base_url, NETWORK, key)
    finally:
        service.kill()


def _settings(upstreams: list[dict[str, str]]) -> dict[str, Any]:
    return {f"networks.{NETWORK}.upstreams": upstreams, f"networks.{NETWORK}.genesis_hash": ""}


@pytest.fixture
async def client(url: str) -> AsyncIterator[FeedClient]:
    async with connected(url) as opened:
        yield opened


async def test_solana_py_subscribes_through_the_feed(url: str, solana_devnet: str) -> None:
    """Slots, roots, an account and a signature, each told as the node tells it."""
    payer, to = Keypair(), Pubkey.new_unique()
    async with AsyncClient(solana_devnet) as direct, SolanaWsClient(url) as sockets:
        airdrop = await direct.request_airdrop(payer.pubkey(), 2 * SOL)
        await direct.confirm_transaction(airdrop.value, Confirmed, sleep_seconds=0.05)
        slots = await sockets.slot_subscribe()
        first = await next_of(sockets, SlotNotification)
        second = await next_of(sockets, SlotNotification)
        assert second.result.slot == first.result.slot + 1
        await sockets.root_subscribe()
        assert (await next_of(sockets, RootNotification)).result <= second.result.slot + 5
        await sockets.unsubscribe(slots)
        account = await sockets.account_subscribe(pubkey=to, commitment=Processed, encoding="base64")
        transaction = await sign(direct, [pay(payer, to, SOL)], payer)
        await sockets.signature_subscribe(signature=transaction.signatures[0], commitment=Confirmed)
        await direct.send_transaction(transaction)
        told = await next_of(sockets, AccountNotification)
        assert told.subscription == account.subscription_id
        assert told.result.value.lamports == SOL
        await next_of(sockets, SignatureNotification)


async def test_the_node_refuses_in_its_own_words(client: FeedClient) -> None:
    """Errors of the node are passed on; an id that is not ours is refused as a node would."""
    with pytest.raises(RpcError, match="Invalid pubkey") as refused:
        await client.call("accountSubscribe", "not a key")
    assert refused.value.code == -32602
    with pytest.raises(RpcError, match="Invalid subscription id") as refused:
        await client.call("slotUnsubscribe", 4711)
    assert refused.value.code == -32602


async def test_reads_and_subscriptions_share_a_socket(client: FeedClient) -> None:
    """Every read of the gateway works on it, and what is not a method does not."""
    assert await client.call("getHealth") == "ok"
    assert (await client.call("getSlot")) >= 0
    with pytest.raises(RpcError) as refused:
        await client.call("eth_subscribe", "newHeads")
    assert refused.value.code == -32601


async def test_the_death_of_an_upstream_is_not_seen(client: FeedClient, relays: list[Relay]) -> None:
    """The subscription keeps its id and goes on, whichever upstream is killed."""
    slots = await client.call("slotSubscribe")
    await client.wait_for(lambda: len(client.of(slots)) >= 2)
    for relay in (*relays, *relays):
        relay.kill()
        wanted = len(client.of(slots)) + 3
        await client.wait_for(partial(_told, client, slots, wanted))
        relay.start()
    numbers = [told["slot"] for told in client.of(slots)]
    assert numbers == sorted(set(numbers)), "in order, and none twice"


def _told(client: FeedClient, subscription: str, count: int) -> bool:
    return len(client.of(subscription)) >= count


async def test_many_clients_are_one_subscription_at_the_node(url: str) -> None:
    """Each has an id of its own that the others cannot guess; all are told the same."""
    async with connected(url) as one, connected(url) as two:
        first, second = await one.call("slotSubscribe"), await two.call("slotSubscribe")
        assert first != second
        await one.wait_for(lambda: len(one.of(first)) >= 3)
        await two.wait_for(lambda: len(two.of(second)) >= 3)
        assert await one.call("slotUnsubscribe", first) is True
        with pytest.raises(RpcError):
            await one.call("slotUnsubscribe", second)
        seen = len(two.of(second))
        await two.wait_for(lambda: len(two.of(second)) >= seen + 2)


async def test_without_a_websocket_upstream_it_says_so(
    solana_devnet: str, start_service: StartService, capstan: RunCapstan
) -> None:
    """The network answers calls and refuses subscriptions."""
    service = start_service(_settings([{"name": "calls", "url": solana_devnet}]))
    made = await asyncio.to_thread(capstan, "keys", "create", "--plan", "enterprise")
    async with connected(socket_url(service.base_url, NETWORK, made["key"])) as client:
        with pytest.raises(RpcError, match="no WebSocket upstream"):
            await client.call("slotSubscribe")
