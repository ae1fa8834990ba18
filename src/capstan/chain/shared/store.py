"""The state that the processes of a cluster share of one network, in Redis: leases, streams of entries, blocks.

Used by `leadership`, `blocks` and `network`. Every command has a time limit; a failure is `ShareAway`, and nothing is
repeated here. All keys of a network carry the same hash tag, so that they stay together on Redis Cluster. The clients
belong to whoever made them.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from redis.exceptions import NoScriptError, RedisError

from capstan.chain.models import NetworkSpec
from capstan.chain.shared.models import ShareOptions
from capstan.chain.shared.scripts import CLAIM, PUBLISH, STORE, TICK

_PREFIX = "capstan:stream:"
_READ_COUNT = 256


class ShareAway(Exception):
    """Redis did not answer, or not as it must."""


class Standing(msgspec.Struct, frozen=True):
    """Who leads a topic, as Redis sees it."""

    # Empty: nobody.
    holder: str
    token: int
    # The time of the Redis server.
    now: float
    wanted: bool


class SharedStore:
    """One network in Redis, for one process. `reading` is a client whose commands may wait for news."""

    def __init__(self, client: Any, reading: Any, spec: NetworkSpec, holder: str, options: ShareOptions) -> None:
        self.network = spec.name
        self.holder = holder
        self._client = client
        self._reading = reading
        self._options = options
        self._tag = f"{_PREFIX}{{{group_of(spec)}}}"

    async def tick(self, topic: str, *, lead: bool, wanted: bool) -> Standing:
        """Renew, take or give up the lead of a topic, and see how things stand."""
        seconds = self._options.lease_seconds
        answer = await self._run(
            TICK,
            (self._key(topic, "lease"), self._key(topic, "token"), self._key(topic, "wanted")),
            (self.holder, int(seconds * 1000), int(lead), int(wanted), int(seconds * 2000)),
        )
        try:
            holder, token, now, anybody = answer
            return Standing(bytes(holder).decode(), int(token), int(now) / 1_000_000, bool(anybody))
        except (TypeError, ValueError) as error:
            raise ShareAway(f"an answer that is none: {error}") from error

    async def publish(self, topic: str, token: int, entries: Sequence[bytes]) -> bool:
        """Add entries to the stream of a topic; false, and nothing is added, when another process leads it."""
        keys = (self._key(topic, "lease"), self._key(topic, "entries"))
        return bool(await self._run(PUBLISH, keys, (token, self._length(topic), *entries)))

    async def backlog(self, topic: str) -> list[tuple[str, bytes]]:
        """All entries that are kept, oldest first, each with its id."""
        key, count = self._key(topic, "entries"), self._length(topic)
        rows = await self._command(self._client, "XREVRANGE", key, "+", "-", "COUNT", count)
        return _entries(list(reversed(rows or ())))

    async def read(self, topic: str, after: str) -> list[tuple[str, bytes]]:
        """The entries after this id; waits for some, a while."""
        wait = int(self._options.read_seconds * 1000)
        key = self._key(topic, "entries")
        command = ("XREAD", "COUNT", _READ_COUNT, "BLOCK", wait, "STREAMS", key, after)
        seconds = self._options.read_seconds + self._options.command_seconds
        streams = await self._command(self._reading, *command, seconds=seconds)
        if isinstance(streams, dict):
            streams = list(streams.items())
        return _entries(streams[0][1]) if streams else []

    async def claim(self, block_hash: str, demand: int) -> bytes | bool:
        """The block; or whether it is for us to fetch it."""
        milliseconds = int(self._options.wait_seconds * 1000)
        answer = await self._run(CLAIM, self._block_keys(block_hash), (int(demand), self.holder, milliseconds))
        return bytes(answer) if isinstance(answer, bytes) else answer == 1

    async def store(self, block_hash: str, content: bytes, notice: bytes) -> None:
        """Keep a block for a while, or nothing, end our claim on it, and tell those who wait."""
        topic = "heads"
        await self._run(
            STORE,
            (*self._block_keys(block_hash), self._key(topic, "entries")),
            (content, int(self._options.block_seconds * 1000), self.holder, self._length(topic), notice),
        )

    def _key(self, topic: str, name: str) -> str:
        return f"{self._tag}:{topic}:{name}"

    def _block_keys(self, block_hash: str) -> tuple[str, str]:
        return f"{self._tag}:block:{block_hash}", f"{self._tag}:claim:{block_hash}"

    def _length(self, topic: str) -> int:
        return self._options.pending_entries if topic == "pending" else self._options.entries

    async def _run(self, script: str, keys: Sequence[str], arguments: Sequence[str | int | bytes]) -> Any:
        # The name under which the server caches a script; not a matter of security.
        digest = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            return await self._command(self._client, "EVALSHA", digest, len(keys), *keys, *arguments)
        except ShareAway as error:
            if not isinstance(error.__cause__, NoScriptError):
                raise
        return await self._command(self._client, "EVAL", script, len(keys), *keys, *arguments)

    async def _command(self, client: Any, *words: str | int | bytes, seconds: float | None = None) -> Any:
        try:
            async with asyncio.timeout(seconds or self._options.command_seconds):
                answer = await client.execute_command(*words)
        except (RedisError, OSError, TimeoutError, AttributeError) as error:
            # An AttributeError is what the client of a cluster raises when a connection is closed under its hands.
            _raise_if_cancelled()
            raise ShareAway(f"{type(error).__name__}: {error}") from error
        _raise_if_cancelled()
        return answer


def _raise_if_cancelled() -> None:
    """The client of a cluster takes a cancellation for a lost connection and tries again; then it must end here."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def group_of(spec: NetworkSpec) -> str:
    """The name of a network among processes that ask the same upstreams: only these can speak for each other."""
    upstreams = sorted((upstream.name, upstream.url) for upstream in spec.upstreams)
    digest = hashlib.sha256(repr((spec.name, upstreams)).encode()).hexdigest()
    return f"{spec.name}:{digest[:16]}"


def _entries(rows: Sequence[Any]) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for identity, fields in rows:
        values = list(fields.values()) if isinstance(fields, dict) else list(fields[1::2])
        if values:
            found.append((bytes(identity).decode(), bytes(values[0])))
    return found
