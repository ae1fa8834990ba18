"""Answers "whose key is this?" on every request, from memory when it can.

Called by the server for each request. A key that was seen is kept in a bounded cache; a background task asks the
database several times a second which accounts have changed and drops their entries, so that a revocation or
suspension made by any process acts within a second. If the database cannot be asked for longer than
`max_staleness_seconds`, cached answers are no longer trusted and callers get `StorageUnavailable`. The key itself is
never kept: entries are found by its SHA-256.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from hashlib import sha256

import structlog

from capstan.access.models import ALL_SCOPES, NO_OVERRIDES, Account, ApiKey, Caller
from capstan.access.secrets import digest, well_formed
from capstan.access.store import AccessStore
from capstan.core.clock import Clock, utc

log = structlog.get_logger(__name__)


class KeyDirectory:
    """The cache of keys in front of the store."""

    def __init__(
        self,
        store: AccessStore,
        clock: Clock,
        *,
        poll_seconds: float = 0.25,
        max_staleness_seconds: float = 30.0,
        cache_entries: int = 100_000,
        last_used_flush_seconds: float = 5.0,
    ) -> None:
        self._store = store
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._max_staleness_seconds = max_staleness_seconds
        self._cache_entries = cache_entries
        self._last_used_flush_seconds = last_used_flush_seconds
        self._callers: OrderedDict[bytes, Caller] = OrderedDict()
        self._by_account: dict[str, set[bytes]] = {}
        self._used: set[str] = set()
        self._looking: dict[bytes, asyncio.Future[Caller | None]] = {}
        self._version = 0
        self._trusted_until = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._watchers: list[Callable[[Collection[str] | None], None]] = []

    def on_change(self, callback: Callable[[Collection[str] | None], None]) -> None:
        """Call back with the accounts whose keys or status have changed; None when it may be all of them."""
        self._watchers.append(callback)

    async def start(self) -> None:
        """Read the present version and begin to watch for changes."""
        self._version = await self._store.version()
        self._trusted_until = self._clock.monotonic() + self._max_staleness_seconds
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._note_use())]

    async def close(self) -> None:
        """Stop watching and write the last uses."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._flush_used()

    def find_now(self, secret: bytes) -> Caller | None:
        """The caller behind a key, if it is cached and the cache may be trusted. Never waits."""
        return self.find_known(sha256(secret).digest(), self._clock.monotonic())

    def find_known(self, key: bytes, now: float) -> Caller | None:
        """The same by the SHA-256 of the key, at this moment of the monotonic clock."""
        if now > self._trusted_until:
            return None
        caller = self._callers.get(key)
        if caller is not None and caller.key_id not in self._used:
            # Once between two writings of the last uses: which key was used last need not be known better than that.
            self._used.add(caller.key_id)
            self._callers.move_to_end(key)
        return caller

    async def find(self, secret: str) -> Caller | None:
        """The caller behind a key, or None when the key does not count."""
        if not well_formed(secret):
            return None
        cached = self.find_now(secret.encode())
        if cached is not None:
            return cached
        return await self.find_digest(digest(secret))

    async def find_digest(self, key: bytes) -> Caller | None:
        """The same for a key of which only the SHA-256 is known, as whoever keeps a connection open knows it."""
        cached = self._callers.get(key) if self._clock.monotonic() <= self._trusted_until else None
        if cached is not None:
            return cached
        # Many requests with a new key at once are one look-up: the others wait for it.
        looking = self._looking.get(key)
        if looking is None:
            looking = asyncio.ensure_future(self._look_up(key))
            self._looking[key] = looking
            looking.add_done_callback(lambda done: self._looked(key, done))
        # Shielded, so that a request that is given up does not take the answer from the others.
        return await asyncio.shield(looking)

    def _looked(self, key: bytes, done: "asyncio.Future[Caller | None]") -> None:
        self._looking.pop(key, None)
        if not done.cancelled():
            # Whoever waited has been told; if nobody did, the failure is nobody's business.
            done.exception()

    async def _look_up(self, key: bytes) -> Caller | None:
        version = self._version
        found = await self._store.key_by_digest(key)
        caller = _caller(*found) if found else None
        if caller is None:
            return None
        # A change seen while the row was read may be about this very key: use the answer once, do not keep it.
        if version == self._version:
            self._keep(key, caller)
        self._used.add(caller.key_id)
        return caller

    async def refresh(self) -> None:
        """Drop what has changed since the last look. The watcher calls this; so may whoever made a change."""
        latest, changed = await self._store.changes_since(self._version)
        if changed is None:
            self._callers.clear()
            self._by_account.clear()
        else:
            for account_id in changed:
                for key in self._by_account.pop(account_id, ()):
                    self._callers.pop(key, None)
        self._version = latest
        self._trusted_until = self._clock.monotonic() + self._max_staleness_seconds
        if changed is None or changed:
            for watcher in self._watchers:
                watcher(changed)

    def _keep(self, key: bytes, caller: Caller) -> None:
        self._callers[key] = caller
        self._by_account.setdefault(caller.account_id, set()).add(key)
        if len(self._callers) > self._cache_entries:
            old_key, old = self._callers.popitem(last=False)
            siblings = self._by_account.get(old.account_id)
            if siblings is not None:
                siblings.discard(old_key)
                if not siblings:
                    del self._by_account[old.account_id]

    async def _watch(self) -> None:
        healthy = True
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self.refresh()
            except Exception as error:
                # Whatever it was, the watch goes on: without it, revocations would not be noticed.
                if healthy:
                    log.warning("access_watch_failed", reason=repr(error), trusted_for=self._max_staleness_seconds)
                healthy = False
            else:
                if not healthy:
                    log.info("access_watch_recovered")
                healthy = True

    async def _note_use(self) -> None:
        while True:
            await asyncio.sleep(self._last_used_flush_seconds)
            await self._flush_used()

    async def _flush_used(self) -> None:
        used, self._used = self._used, set()
        if not used:
            return
        try:
            await self._store.touch_keys(used, utc(self._clock))
        except Exception as error:
            # The time of last use is a convenience; losing one flush is better than holding ever more in memory.
            log.warning("last_used_not_written", keys=len(used), reason=repr(error))


def _caller(key: ApiKey, account: Account) -> Caller | None:
    if key.revoked_at is not None:
        return None
    return Caller(
        account_id=account.id,
        key_id=key.id,
        mode=key.mode,
        plan=account.plan,
        # The one object for "none", so that the common case is recognised at a glance.
        overrides=NO_OVERRIDES if account.overrides == NO_OVERRIDES else account.overrides,
        scopes=ALL_SCOPES if key.scopes is None else frozenset(key.scopes),
        suspended=account.status == "suspended",
    )
