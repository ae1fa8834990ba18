"""Script calls to Redis, gathered into pipelines.

Calls made in the same turn of the event loop, and those that come while as many pipelines as allowed are under way,
travel in one round trip. The Redis limiter hands calls in and gets each call's answer, or `RedisAway` when there is
none within the deadline. Nothing is retried here, except a call whose script the server did not know.
"""

import asyncio
import hashlib
from asyncio import Future
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis, RedisCluster
from redis.exceptions import NoScriptError, RedisError

# More pipelines at once would only make each smaller.
_PIPELINES = 4
_CALLS_PER_PIPELINE = 256
_WAITING_CALLS = 10_000


class RedisAway(Exception):
    """Redis did not answer. The call may or may not have been carried out."""


class _Call(msgspec.Struct):
    keys: Sequence[str]
    arguments: Sequence[int]
    answer: Future[list[int]]


class ScriptBatcher:
    """Runs one Lua script, many calls to a round trip."""

    def __init__(self, client: "Redis | RedisCluster", script: str, timeout_seconds: float) -> None:
        self._client: Any = client
        self._script = script
        # The name under which the server caches a script; not a matter of security.
        self._digest = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        self._timeout_seconds = timeout_seconds
        self._waiting: deque[_Call] = deque()
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, keys: Sequence[str], arguments: Sequence[int]) -> list[int]:
        """The script's answer to one call."""
        if len(self._waiting) >= _WAITING_CALLS:
            raise RedisAway(f"{_WAITING_CALLS} calls are waiting already")
        loop = asyncio.get_running_loop()
        call = _Call(keys, arguments, loop.create_future())
        self._waiting.append(call)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._send)
        return await call.answer

    async def call_alone(self, keys: Sequence[str], arguments: Sequence[int]) -> None:
        """One call outside every pipeline, script included: whether the server answers at all.

        On a cluster this is also what makes the client look for the nodes again.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._client.execute_command("EVAL", self._script, len(keys), *keys, *arguments)
        except (RedisError, OSError, TimeoutError) as error:
            raise RedisAway(type(error).__name__) from error

    def refuse_waiting(self, error: RedisAway) -> None:
        """Refuse every call that has not been sent."""
        _refuse(self._waiting, error)
        self._waiting.clear()

    async def close(self) -> None:
        """Let what is under way finish; refuse what waits."""
        self.refuse_waiting(RedisAway("the limiter is closing"))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._timeout_seconds + 1.0)

    def _send(self) -> None:
        self._scheduled = False
        while self._waiting and len(self._tasks) < _PIPELINES:
            count = min(len(self._waiting), _CALLS_PER_PIPELINE)
            calls = [self._waiting.popleft() for _ in range(count)]
            task = asyncio.create_task(self._execute(calls), name="limits-redis-pipeline")
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting:
            self._send()

    async def _execute(self, calls: list[_Call]) -> None:
        """Carry out some calls; every one of them is answered or refused when this ends."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                unknown = await self._pipeline("EVALSHA", self._digest, calls)
                if unknown:
                    await self._pipeline("EVAL", self._script, unknown)
        except (RedisError, OSError, TimeoutError) as error:
            _refuse(calls, RedisAway(type(error).__name__))
        finally:
            # Only for what nobody foresaw; those who wait must not wait for ever.
            _refuse(calls, RedisAway("the pipeline failed"))

    async def _pipeline(self, command: str, script: str, calls: list[_Call]) -> list[_Call]:
        """One round trip. Returns the calls the server could not run because it does not have the script."""
        pipeline = self._client.pipeline(transaction=False)
        for call in calls:
            # Not pipeline.evalsha(): the cluster client blocks that method, though it routes the command by its keys.
            pipeline.execute_command(command, script, len(call.keys), *call.keys, *call.arguments)
        unknown: list[_Call] = []
        for call, answer in zip(calls, await pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(answer, NoScriptError) and command == "EVALSHA":
                unknown.append(call)
            elif isinstance(answer, Exception):
                _refuse([call], RedisAway(type(answer).__name__))
            elif not call.answer.done():
                call.answer.set_result(answer)
        return unknown


def _refuse(calls: Iterable[_Call], error: RedisAway) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(error)
