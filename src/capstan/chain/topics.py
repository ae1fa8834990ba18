"""Subscriptions at a network's WebSocket upstreams, one for all who want the same.

Used by the feed for Solana, whose subscriptions only a node can answer. A topic is a method and its parameters. The
first who joins it makes the subscription at an upstream; whoever joins later shares it. When the connection is lost
the topic is subscribed to again, at the next upstream that takes it, as long as somebody listens. What a node would
have told in between is lost, as it is for a client of that node: Solana has no way to ask for it again.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog
from msgspec import Raw

from capstan.chain.errors import ChainError, EveryUpstreamFailed, NodeUnable, UpstreamFailure
from capstan.chain.websocket import UpstreamSubscription, WebSocketUpstream

log = structlog.get_logger(__name__)

Listener = Callable[[Raw], None]

_SUBSCRIBE_SECONDS = 10.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
# What may come for a listener before it has told its client the id of the subscription.
_MOST_HELD = 64


class Member:
    """One listener of a topic. Nothing is told before `open`; what came until then is told by it."""

    def __init__(self, topic: "_Topic", listener: Listener) -> None:
        self._topic = topic
        self._listener = listener
        self._held: list[Raw] | None = []

    def tell(self, result: Raw) -> None:
        """Called by the topic for each result."""
        if self._held is None:
            self._listener(result)
        elif len(self._held) < _MOST_HELD:
            self._held.append(result)

    def open(self) -> None:
        """From now on the listener is called."""
        held, self._held = self._held or [], None
        for result in held:
            self._listener(result)

    def leave(self) -> None:
        """Listen no more. The last to leave ends the subscription at the upstream."""
        self._topic.remove(self)


class Topics:
    """The subscriptions of one network. All methods must be called with the event loop running."""

    def __init__(self, network: str, upstreams: Sequence[WebSocketUpstream] = ()) -> None:
        self.network = network
        self._upstreams = tuple(upstreams)
        self._topics: dict[tuple[str, bytes], _Topic] = {}

    @property
    def upstreams(self) -> tuple[WebSocketUpstream, ...]:
        """Where subscriptions are made, those first that have not failed lately."""
        return self._upstreams

    def __len__(self) -> int:
        return len(self._topics)

    def use(self, upstreams: Sequence[WebSocketUpstream]) -> None:
        """Use these upstreams from now on. Topics on one that is not among them move over."""
        dropped = [upstream for upstream in self._upstreams if upstream not in upstreams]
        self._upstreams = tuple(upstreams)
        for upstream in dropped:
            upstream.retire()

    async def join(self, method: str, params: bytes, unsubscribe: str, listener: Listener) -> Member:
        """Listen to a topic. Raises the node's own error, and `EveryUpstreamFailed` when no upstream takes it."""
        key = (method, params)
        topic = self._topics.get(key)
        if topic is None:
            topic = self._topics[key] = _Topic(self, key, unsubscribe)
        member = topic.add(listener)
        try:
            await asyncio.shield(topic.ready)
        except BaseException:
            topic.remove(member)
            raise
        return member

    def forget(self, key: tuple[str, bytes]) -> None:
        """Called by a topic that has ended."""
        self._topics.pop(key, None)

    def prefer_next(self, upstream: WebSocketUpstream) -> None:
        """Try this upstream last from now on: it has just failed."""
        if upstream in self._upstreams:
            self._upstreams = (*(other for other in self._upstreams if other is not upstream), upstream)

    def retire(self) -> None:
        """End every subscription soon."""
        for topic in tuple(self._topics.values()):
            topic.stop()
        self.use(())

    async def close(self) -> None:
        """End every subscription and every connection."""
        tasks = [topic.stop() for topic in tuple(self._topics.values())]
        await asyncio.gather(*tasks, return_exceptions=True)
        for upstream in self._upstreams:
            await upstream.close()


class _Topic:
    """One subscription at one upstream at a time, and those who listen to it."""

    def __init__(self, topics: Topics, key: tuple[str, bytes], unsubscribe: str) -> None:
        self._topics = topics
        self._key = key
        self._unsubscribe = unsubscribe
        self._members: dict[Member, None] = {}
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Nobody may be left to look at a failure.
        self.ready.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._task = asyncio.get_running_loop().create_task(self._keep(), name=f"topic {key[0]}")

    def add(self, listener: Listener) -> Member:
        member = Member(self, listener)
        self._members[member] = None
        return member

    def remove(self, member: Member) -> None:
        self._members.pop(member, None)
        if not self._members:
            self.stop()

    def stop(self) -> "asyncio.Task[None]":
        """End the subscription. Whoever wants the same from now on makes a new one."""
        self._topics.forget(self._key)
        self._task.cancel()
        return self._task

    async def _keep(self) -> None:
        """Hold a subscription until cancelled, making it again whenever it is lost."""
        failures = 0
        while True:
            try:
                subscription = await self._subscribe()
            except (ChainError, EveryUpstreamFailed) as error:
                if not self.ready.done():
                    self._topics.forget(self._key)
                    self.ready.set_exception(error)
                    return
                log.warning("topic_not_restored", network=self._topics.network, method=self._key[0], reason=str(error))
                await asyncio.sleep(min(_FIRST_PAUSE_SECONDS * (1 << min(failures, 10)), _LONGEST_PAUSE_SECONDS))
                failures += 1
                continue
            failures = 0
            if not self.ready.done():
                self.ready.set_result(None)
            try:
                await subscription.wait_lost()
            finally:
                await asyncio.shield(subscription.close())

    async def _subscribe(self) -> UpstreamSubscription:
        """A subscription at the first upstream that takes it. Raises a node's own error if one had one."""
        method, params = self._key
        unable: NodeUnable | None = None
        for upstream in self._topics.upstreams:
            try:
                return await upstream.subscribe(
                    method, params, self._told, unsubscribe=self._unsubscribe, timeout=_SUBSCRIBE_SECONDS
                )
            except NodeUnable as error:
                unable = error
            except UpstreamFailure as error:
                log.info("topic_refused", network=self._topics.network, upstream=upstream.name, reason=str(error))
                self._topics.prefer_next(upstream)
        if unable is not None:
            raise unable
        raise EveryUpstreamFailed(f"no WebSocket upstream of {self._topics.network} takes subscriptions at present")

    def _told(self, result: Raw) -> None:
        for member in tuple(self._members):
            member.tell(result)
