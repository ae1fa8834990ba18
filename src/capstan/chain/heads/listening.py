"""Listens to the new heads of an upstream that tells them by itself, over WebSocket.

The head tracker starts one listener for each such upstream, besides asking it in the usual rhythm: whichever is faster
wins, and a subscription that dies in silence costs no more than the polling finds. It listens only while somebody is
interested in the network. It judges nothing: every head is handed to the tracker.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.errors import ChainError, NodeError
from capstan.chain.heads.headers import Header
from capstan.core.hexes import parse_quantity

log = structlog.get_logger(__name__)

_SUBSCRIBE_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
# An upstream that does not know the subscription is asked again only after so long.
_REFUSED_SECONDS = 600.0


class Subscription(Protocol):
    """A subscription at an upstream, as long as it lasts."""

    async def wait_lost(self) -> None: ...
    async def close(self) -> None: ...


@runtime_checkable
class Subscribable(Protocol):
    """A client of an upstream that can be subscribed to."""

    async def subscribe(
        self, method: str, params: bytes, listener: Callable[[Raw], None], *, unsubscribe: str, timeout: float
    ) -> Subscription:
        """`listener` is called with each result. Raises `ChainError`."""
        ...


class _Head(msgspec.Struct, rename="camel"):
    number: str
    hash: str
    parent_hash: str
    timestamp: str


_HEAD = msgspec.json.Decoder(_Head)


class HeadListener:
    """The subscription to `newHeads` of one upstream."""

    def __init__(
        self,
        name: str,
        upstream: Subscribable,
        observe: Callable[[Header], Awaitable[None]],
        is_idle: Callable[[], bool],
    ) -> None:
        self._name = name
        self._upstream = upstream
        self._observe = observe
        self._is_idle = is_idle
        self._newest: Header | None = None
        self._told = asyncio.Event()

    async def run(self) -> None:
        """Listen for ever, as long as somebody is interested."""
        failures = 0
        while True:
            if self._is_idle():
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            try:
                await self._listen()
                failures = 0
                pause = _FIRST_PAUSE_SECONDS
            except NodeError as error:
                log.info("head.not_told", upstream=self._name, reason=str(error))
                pause = _REFUSED_SECONDS
            except ChainError as error:
                failures += 1
                log.debug("head.not_told", upstream=self._name, reason=str(error))
                pause = min(_FIRST_PAUSE_SECONDS * 2 ** min(failures, 10), _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)

    async def _listen(self) -> None:
        """Until the connection ends or nobody is interested."""
        subscription = await self._upstream.subscribe(
            "eth_subscribe", b'["newHeads"]', self._hear, unsubscribe="eth_unsubscribe", timeout=_SUBSCRIBE_SECONDS
        )
        lost = asyncio.ensure_future(subscription.wait_lost())
        try:
            while not lost.done() and not self._is_idle():
                told = asyncio.ensure_future(self._told.wait())
                await asyncio.wait((lost, told), timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
                await self._hand_over()
        finally:
            lost.cancel()
            await subscription.close()

    def _hear(self, raw: Raw) -> None:
        """Keep the newest: the tracker fetches what lies between."""
        try:
            head = _HEAD.decode(raw)
            number, timestamp = parse_quantity(head.number, lenient=True), parse_quantity(head.timestamp, lenient=True)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
            log.debug("head.not_a_head", upstream=self._name)
            return
        self._newest = Header(number, head.hash.lower(), head.parent_hash.lower(), timestamp)
        self._told.set()

    async def _hand_over(self) -> None:
        self._told.clear()
        newest, self._newest = self._newest, None
        if newest is None:
            return
        try:
            await self._observe(newest)
        except ChainError as error:
            log.debug("head.not_linked", upstream=self._name, reason=str(error))
        except Exception:
            # A mistake of ours must not end the task: the heads would come by polling alone for good.
            log.exception("head.mistake", upstream=self._name)
