"""All sockets of this process: makes their sessions, keeps within the bounds on their number, and ends them.

The server calls `open` for each handshake that was admitted. A hub is made for a network when the first socket to it
comes. In the background it looks at what concerns open sockets: keys that were revoked, accounts that were suspended,
sockets that nobody uses, streams that have stopped.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Protocol

import structlog

from capstan.access.models import Caller
from capstan.chain.registry import Network
from capstan.core.errors import RateLimited, Unavailable
from capstan.core.frames import BAD_KEY, GOING_AWAY, INTERNAL_ERROR, NORMAL, SERVICE_RESTART, UNKNOWN_NETWORK
from capstan.feed.hub import Hub
from capstan.feed.models import Socket
from capstan.feed.session import Session, Surroundings
from capstan.feed.solana import SolanaSubscriptions
from capstan.feed.stream import Stream
from capstan.feed.subscriptions import EvmSubscriptions, Subscriptions

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 1.0
_LOOKS_FOR_IDLE = 10
_KEY_ATTEMPTS = 5
_KEY_PAUSE_SECONDS = 0.2
_RETRY_SECONDS = 1


class Keys(Protocol):
    """The key directory, as far as open sockets need it."""

    def on_change(self, callback: Callable[[Collection[str] | None], None]) -> None:
        """Call back with the accounts that have changed; None when it may be all of them."""
        ...

    async def find_digest(self, key_digest: bytes) -> Caller | None:
        """The caller behind a key, or None when the key does not count any more."""
        ...


class FeedService:
    """The sockets of this process."""

    def __init__(
        self,
        around: Surroundings,
        keys: Keys,
        *,
        stream_of: Callable[[str], Stream],
        head_of: Callable[[Network], int | None],
        idle_seconds: float,
    ) -> None:
        self._around = around
        self._keys = keys
        self._stream_of = stream_of
        self._head_of = head_of
        self._idle_seconds = idle_seconds
        self._hubs: dict[str, Hub] = {}
        self._sessions: dict[Session, bytes] = {}
        self._by_account: dict[str, set[Session]] = {}
        self._by_key: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def sessions(self) -> Collection[Session]:
        """Every open socket."""
        return self._sessions.keys()

    @property
    def pushed(self) -> int:
        """How many messages have been pushed and counted so far."""
        return self._around.meter.total

    def subscriptions(self) -> Iterable[tuple[str, str, int]]:
        """Network, kind and number of what is subscribed to."""
        for name, hub in self._hubs.items():
            for kind, count in hub.counts().items():
                yield name, kind, count

    def start(self) -> None:
        """Begin to look after open sockets."""
        self._around.meter.start()
        self._keys.on_change(self._keys_changed)
        self._begin(self._look())

    async def close(self) -> None:
        """End everything. The server has closed the sockets before."""
        for session in list(self._sessions):
            session.close(GOING_AWAY, "the server is stopping")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._around.meter.close()
        for hub in self._hubs.values():
            hub.close()

    def open(self, socket: Socket, caller: Caller, key_digest: bytes, network: Network) -> Session:
        """A session for a new socket. Raises `RateLimited` or `Unavailable` when there are too many."""
        limits = self._around.limits
        if len(self._sessions) >= limits.sockets:
            raise Unavailable("this server has too many sockets open; try again shortly", retry_after=_RETRY_SECONDS)
        if self._by_key.get(caller.key_id, 0) >= limits.sockets_per_key:
            message = f"this key has {limits.sockets_per_key} sockets open, the most it may have; close one"
            raise RateLimited(message, retry_after=_RETRY_SECONDS)
        session = Session(socket, caller, network, self._around, on_end=self._ended)
        session.subscriptions = self._subscriptions_for(session, socket)
        self._sessions[session] = key_digest
        self._by_account.setdefault(caller.account_id, set()).add(session)
        self._by_key[caller.key_id] = self._by_key.get(caller.key_id, 0) + 1
        return session

    def networks_changed(self, find: Callable[[str], Network | None]) -> None:
        """Call after the networks were replaced: sockets go on with the new one, or end when there is none."""
        for session in list(self._sessions):
            network = find(session.network.name)
            if network is None:
                session.close(UNKNOWN_NETWORK, "this network is not served any more")
            else:
                session.network = network
        for name, hub in list(self._hubs.items()):
            if find(name) is not None and self._stream_of(name) is hub.stream:
                continue
            for session in [one for one in self._sessions if one.network.name == name]:
                session.close(SERVICE_RESTART, "the configuration of this network has changed; connect again")
            hub.close()
            del self._hubs[name]

    def _subscriptions_for(self, session: Session, socket: Socket) -> Subscriptions:
        if session.network.spec.family == "solana":
            # Asked for each time: a reload gives the session another network.
            return SolanaSubscriptions(
                lambda: session.network.topics,
                self._around.limits,
                push=session.push,
                may_subscribe=session.may_subscribe,
            )
        return EvmSubscriptions(
            self._hub(session.network),
            socket,
            self._around.limits,
            push=session.push,
            may_subscribe=session.may_subscribe,
        )

    def _hub(self, network: Network) -> Hub:
        hub = self._hubs.get(network.name)
        if hub is None:
            hub = Hub(self._stream_of(network.name), lambda: self._head_of(network))
            self._hubs[network.name] = hub
        return hub

    def _ended(self, session: Session) -> None:
        if self._sessions.pop(session, None) is None:
            return
        caller = session.caller
        siblings = self._by_account.get(caller.account_id, set())
        siblings.discard(session)
        if not siblings:
            self._by_account.pop(caller.account_id, None)
        left = self._by_key[caller.key_id] - 1
        if left:
            self._by_key[caller.key_id] = left
        else:
            del self._by_key[caller.key_id]

    def _keys_changed(self, accounts: Collection[str] | None) -> None:
        for account_id in list(self._by_account) if accounts is None else accounts:
            if account_id in self._by_account:
                self._begin(self._check_keys(account_id))

    async def _check_keys(self, account_id: str) -> None:
        """Ask again for the keys of an account's sockets, one question for each key."""
        found: dict[bytes, Caller | None] = {}
        for session in list(self._by_account.get(account_id, ())):
            key_digest = self._sessions.get(session)
            if key_digest is None:
                continue
            if key_digest not in found:
                found[key_digest] = await self._find(key_digest, session.caller)
            caller = found[key_digest]
            if caller is None:
                session.close(BAD_KEY, "the API key is not valid any more")
            elif caller.suspended:
                session.close(BAD_KEY, "this account is suspended")
            else:
                session.caller = caller

    async def _find(self, key_digest: bytes, known: Caller) -> Caller | None:
        for attempt in range(_KEY_ATTEMPTS):
            try:
                return await self._keys.find_digest(key_digest)
            except Exception as error:
                log.warning("feed_key_not_checked", attempt=attempt, reason=repr(error))
                await asyncio.sleep(_KEY_PAUSE_SECONDS)
        # The database is away: as over HTTP, what was known before still holds for a while.
        return known

    async def _look(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            looks += 1
            for name, hub in list(self._hubs.items()):
                hub.tell_syncing()
                if hub.stream.halted:
                    self._close_subscribed(name, hub.stream.halted)
            if looks % _LOOKS_FOR_IDLE == 0:
                self._close_idle()

    def _close_subscribed(self, network: str, reason: str) -> None:
        """A stream that has stopped is not kept secret from those who wait for it."""
        for session in list(self._sessions):
            if session.network.name == network and len(session.subscriptions):
                session.close(INTERNAL_ERROR, f"the stream has stopped: {reason}")

    def _close_idle(self) -> None:
        before = self._around.clock.monotonic() - self._idle_seconds
        for session in list(self._sessions):
            if session.last_used < before and session.is_idle:
                session.close(NORMAL, f"nothing was asked for {self._idle_seconds:g} s")

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
