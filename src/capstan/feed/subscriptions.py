"""The subscriptions of one socket: `eth_subscribe` and `eth_unsubscribe` on EVM networks.

A session has one of these, by the family of its network, and gives it the calls that it handles. Those of Solana
networks are in `solana`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from capstan.core import jsonrpc
from capstan.core.frames import INTERNAL_ERROR
from capstan.core.hexes import to_quantity
from capstan.core.jsonrpc import INVALID_PARAMS, LIMIT_EXCEEDED
from capstan.feed.filters import BadSubscription, Kind, Wanted, read_id, read_subscription
from capstan.feed.hub import Hub, Subscription
from capstan.feed.models import FeedLimits, Late, Socket
from capstan.feed.notifications import new_id
from capstan.feed.replay import SocketGone, replay

log = structlog.get_logger(__name__)

# geth's code for "subscription not found" and other errors of the server.
_SERVER_ERROR = -32000
# Replays of one socket that may run at the same time, and how far ahead of the head one may begin.
_MOST_REPLAYS = 8
_MOST_AHEAD = 128


class Subscriptions(Protocol):
    """How the subscription methods of one chain family are answered on one socket."""

    def handles(self, method: str) -> bool:
        """Whether the method is answered here and not by the gateway."""
        ...

    def answer(self, method: str, params: bytes, call_id: bytes) -> bytes | Awaitable[Late]:
        """The reply to one call, which must be sent before anything else runs, or what will give it."""
        ...

    def __len__(self) -> int: ...

    def end(self) -> None:
        """The socket is gone."""
        ...


class EvmSubscriptions:
    """Subscriptions to the canonical stream."""

    def __init__(
        self,
        hub: Hub,
        socket: Socket,
        limits: FeedLimits,
        *,
        push: Callable[[bytes], None],
        may_subscribe: Callable[[], bool],
    ) -> None:
        self._hub = hub
        self._socket = socket
        self._limits = limits
        self._push = push
        self._may_subscribe = may_subscribe
        self._subscriptions: dict[str, Subscription] = {}
        self._replays: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._subscriptions)

    def handles(self, method: str) -> bool:
        return method in ("eth_subscribe", "eth_unsubscribe")

    def answer(self, method: str, params: bytes, call_id: bytes) -> bytes:
        try:
            if method == "eth_unsubscribe":
                self._unsubscribe(read_id(params))
                return jsonrpc.result_reply(call_id, b"true")
            wanted = read_subscription(params)
            self._check(wanted)
            return jsonrpc.result_reply(call_id, b'"%b"' % self._subscribe(wanted).encode())
        except BadSubscription as error:
            return jsonrpc.error_reply(call_id, error.code, error.message)

    def end(self) -> None:
        for task in self._replays.values():
            task.cancel()
        for subscription in self._subscriptions.values():
            self._hub.remove(subscription)
        self._subscriptions.clear()
        self._replays.clear()

    def _check(self, wanted: Wanted) -> None:
        """Raise `BadSubscription` when a limit or the state of the stream forbids it."""
        most = self._limits.subscriptions_per_socket
        if len(self._subscriptions) >= most:
            raise BadSubscription(f"this socket has {most} subscriptions, the most that one may have", LIMIT_EXCEEDED)
        if not self._may_subscribe():
            message = "messages pushed to this account exceed its compute units per second; subscribe to less"
            raise BadSubscription(message, LIMIT_EXCEEDED)
        if self._hub.stream.halted:
            message = f"the stream of this network has stopped: {self._hub.stream.halted}"
            raise BadSubscription(message, _SERVER_ERROR)
        if wanted.from_block is not None:
            self._check_replay(wanted.from_block)

    def _check_replay(self, first: int) -> None:
        if len(self._replays) >= _MOST_REPLAYS:
            message = f"{_MOST_REPLAYS} replays are under way on this socket; wait for one to end"
            raise BadSubscription(message, LIMIT_EXCEEDED)
        head = self._hub.head_number()
        if head is None:
            raise BadSubscription("the head of this network is not known yet; try again shortly", _SERVER_ERROR)
        most = self._limits.replay_blocks
        if head - first + 1 > most:
            earliest = to_quantity(head - most + 1)
            message = f"fromBlock is too old: at most {most} blocks are replayed, now from {earliest} on"
            raise BadSubscription(message, INVALID_PARAMS)
        if first > head + _MOST_AHEAD:
            raise BadSubscription(f"fromBlock is more than {_MOST_AHEAD} blocks ahead of the head", INVALID_PARAMS)

    def _subscribe(self, wanted: Wanted) -> str:
        subscription = Subscription(new_id(), wanted, self._push)
        self._subscriptions[subscription.id] = subscription
        loop = asyncio.get_running_loop()
        if wanted.from_block is not None:
            self._replays[subscription.id] = loop.create_task(self._replay(subscription), name="feed-replay")
            return subscription.id
        self._hub.add(subscription)
        if wanted.kind is Kind.SYNCING:
            # As geth does: the present state at once, but after the reply.
            loop.call_soon(self._tell_syncing, subscription)
        return subscription.id

    def _tell_syncing(self, subscription: Subscription) -> None:
        if subscription.id in self._subscriptions:
            self._hub.tell_syncing([subscription])

    def _unsubscribe(self, subscription_id: str) -> None:
        subscription = self._subscriptions.pop(subscription_id, None)
        if subscription is None:
            raise BadSubscription("subscription not found", _SERVER_ERROR)
        task = self._replays.pop(subscription_id, None)
        if task is not None:
            task.cancel()
        self._hub.remove(subscription)

    async def _replay(self, subscription: Subscription) -> None:
        try:
            await replay(self._hub, subscription, self._socket, buffer_bytes=self._limits.replay_buffer_bytes)
        except SocketGone:
            return
        except Exception:
            log.exception("feed_replay_failed")
            self._socket.close(INTERNAL_ERROR, "the replay failed; connect again")
        finally:
            self._replays.pop(subscription.id, None)
