"""Completes the bodies of events before they are first sent: symbols and decimals of tokens, metadata of NFTs.

Called by the deliverer. What it needs from the data services comes through ports that the composition root fills. It
waits a bounded time; what is not known by then is null rather than late. A completed body is written before it is sent,
so every attempt sends the same bytes.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import structlog

from capstan.core.errors import ApiError
from capstan.core.hexes import parse_address
from capstan.webhooks.delivery.models import DueEvent, Target
from capstan.webhooks.payloads import TokenFacts, fill_token

log = structlog.get_logger(__name__)

# Both raise `ApiError` when the network cannot say. The first two arguments are the network and the contract.
TokenPort = Callable[[str, str], Awaitable[TokenFacts]]
NftPort = Callable[[str, str, str], Awaitable[dict[str, Any] | None]]
BodyWriter = Callable[[Sequence[tuple[int, bytes]]], Awaitable[None]]
_MOST_TOKENS = 100_000


class KnownTokens:
    """What tokens said of themselves, for matching, which may not wait. Forgotten with the process."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, bytes], TokenFacts] = OrderedDict()

    def get(self, network: str, contract: bytes) -> TokenFacts | None:
        """What is known."""
        return self._known.get((network, contract))

    def put(self, network: str, contract: bytes, facts: TokenFacts) -> None:
        """Remember it."""
        self._known[network, contract] = facts
        while len(self._known) > _MOST_TOKENS:
            self._known.popitem(last=False)

    def forget(self, network: str) -> None:
        """The chain is another one."""
        for key in [key for key in self._known if key[0] == network]:
            del self._known[key]


class Lookups:
    """Fills in what matching could not know."""

    def __init__(self, tokens: TokenPort, nfts: NftPort, known: KnownTokens, *, seconds: float) -> None:
        self._tokens = tokens
        self._nfts = nfts
        self._known = known
        self._seconds = seconds

    async def fill(self, target: Target, events: Sequence[DueEvent], write: BodyWriter) -> list[DueEvent]:
        """The events with their bodies complete."""
        needed = sorted({event.needs for event in events if event.needs is not None})
        if not needed:
            return list(events)
        found = dict(zip(needed, await asyncio.gather(*(self._find(target, each) for each in needed)), strict=True))
        filled = [event if event.needs is None else _completed(target, event, found[event.needs]) for event in events]
        await write([(new.seq, new.body) for old, new in zip(events, filled, strict=True) if old.needs is not None])
        return filled

    async def _find(self, target: Target, needs: str) -> TokenFacts | dict[str, Any] | None:
        what, contract, *rest = needs.split(":")
        try:
            async with asyncio.timeout(self._seconds):
                if what == "nft":
                    return await self._nfts(target.network, contract, rest[0])
                facts = await self._tokens(target.network, contract)
        except (ApiError, TimeoutError) as error:
            log.info("webhooks.not_looked_up", network=target.network, what=needs, reason=str(error)[:200])
            return None
        self._known.put(target.network, parse_address(contract), facts)
        return facts


def _completed(target: Target, event: DueEvent, found: TokenFacts | dict[str, Any] | None) -> DueEvent:
    whole = msgspec.json.decode(event.body)
    if isinstance(found, TokenFacts):
        fill_token(target.kind, whole["data"], found)
    elif found is not None:
        whole["data"]["metadata"] = found
    return msgspec.structs.replace(event, body=msgspec.json.encode(whole), needs=None)
