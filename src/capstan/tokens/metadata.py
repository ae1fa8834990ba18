"""Names, symbols and decimals of tokens: from memory, from the table, or from the contracts.

Called by the token service. What a contract says is used for a day (`tokens.metadata_seconds`) and then read again, or
earlier, when a proxy says that it was upgraded. It does not decide whether a contract is a token.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.chain.calls import decoding
from capstan.chain.calls.models import ContractCall, call
from capstan.chain.registry import Network
from capstan.core.clock import Clock, utc
from capstan.index.models import Notice, NoticeKind
from capstan.storage.errors import StorageError
from capstan.tokens.models import TokenFacts
from capstan.tokens.store import TokenStore

log = structlog.get_logger(__name__)

_MOST_KEPT = 100_000
# What is in memory is looked up in the table again after so long: another process may follow the stream, and have
# heard of an upgrade.
_MEMORY_SECONDS = 60.0
_MOST_UPGRADES = 10_000
CALLS_PER_TOKEN = 3


class _Kept(msgspec.Struct, frozen=True):
    facts: TokenFacts
    until: float


class TokenBook:
    """What tokens say of themselves."""

    def __init__(self, store: TokenStore, clock: Clock, *, seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._seconds = seconds
        self._kept: OrderedDict[tuple[str, bytes], _Kept] = OrderedDict()
        # The contracts that were upgraded last, and at which count of upgrades.
        self._upgraded: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        # How many upgrades were heard of. Whoever asks contracts notes it first; see `learn`.
        self.upgrades = 0

    async def known(self, network: Network, contracts: Iterable[bytes]) -> dict[bytes, TokenFacts]:
        """What is known of these contracts without asking the chain."""
        now = self._clock.monotonic()
        found: dict[bytes, TokenFacts] = {}
        missing = []
        for contract in contracts:
            kept = self._kept.get((network.name, contract))
            if kept is not None and now < kept.until:
                found[contract] = kept.facts
            else:
                missing.append(contract)
        # A development chain starts afresh: what was stored of the last one is not of this one.
        if missing and not network.spec.dev_methods:
            try:
                stored = await self._store.load(network.name, missing, read_since=self._clock.now() - self._seconds)
            except StorageError as error:
                log.warning("tokens.store_failed", reason=str(error))
                stored = {}
            for contract, facts in stored.items():
                self._keep(network, contract, facts)
            found |= stored
        return found

    async def learn(self, network: Network, read: Mapping[bytes, TokenFacts], *, upgrades: int) -> None:
        """Remember what was just read from the chain. A failing table only costs another reading later.

        `upgrades` is what that number was before the reading: of whoever was upgraded since, this may be the past.
        """
        facts = {
            contract: entry
            for contract, entry in read.items()
            if self._upgraded.get((network.name, contract), 0) <= upgrades
        }
        for contract, entry in facts.items():
            self._keep(network, contract, entry)
        if network.spec.dev_methods:
            return
        try:
            await self._store.save(network.name, facts, moment=utc(self._clock))
        except StorageError as error:
            log.warning("tokens.store_failed", reason=str(error))

    async def metadata_changed(self, connection: AsyncConnection, network: str, notices: Sequence[Notice]) -> None:
        """Proxies were upgraded: forget what they said, in the given transaction. Other notices are about NFTs."""
        contracts = [notice.contract for notice in notices if notice.kind is NoticeKind.CODE]
        if not contracts:
            return
        await self._store.delete(connection, network, contracts)
        self.upgrades += 1
        for contract in contracts:
            self._kept.pop((network, contract), None)
            self._upgraded[network, contract] = self.upgrades
            self._upgraded.move_to_end((network, contract))
        while len(self._upgraded) > _MOST_UPGRADES:
            self._upgraded.popitem(last=False)

    def _keep(self, network: Network, contract: bytes, facts: TokenFacts) -> None:
        seconds = self._seconds if network.spec.dev_methods else min(self._seconds, _MEMORY_SECONDS)
        self._kept[network.name, contract] = _Kept(facts, self._clock.monotonic() + seconds)
        self._kept.move_to_end((network.name, contract))
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)


def questions(contract: bytes) -> list[ContractCall]:
    """The calls that tell what a token says of itself; `facts_from` reads their results."""
    return [call(contract, "name()"), call(contract, "symbol()"), call(contract, "decimals()")]


def facts_from(results: Sequence[bytes | None]) -> TokenFacts:
    """What the three results say."""
    name, symbol, decimals = results
    return TokenFacts(decoding.text(name), decoding.text(symbol), decoding.decimals(decimals))
