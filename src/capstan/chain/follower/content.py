"""Reads the logs and receipts of a block by the ways the network has, and only if they are whole.

Used by the block reader. Logs come by `eth_getLogs`, receipts by `eth_getBlockReceipts` or one by one, always by the
hash of the block. An answer that cannot be read, or that leaves logs out by the block's bloom filter, is refused where
it comes in, so the next upstream is asked. Nothing is kept but how often the chain's bloom filters were odd.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.errors import ChainError
from capstan.chain.follower.agreement import Content, Doubts, Incomplete, whole
from capstan.chain.follower.asking import Asker, ContentUnavailable, MethodMissing
from capstan.chain.follower.decoding import RawBlock, Unusable, logs_from, logs_of, receipt_from, receipts_from
from capstan.chain.heads.headers import Header
from capstan.chain.member import PooledUpstream
from capstan.core.errors import UpstreamError, UpstreamTimeout

log = structlog.get_logger(__name__)

# After so many blocks in a row whose bloom filter was odd, content is no longer waited for: it will not look better.
_ODD_BLOCKS = 3


class ContentReader:
    """The content of the blocks of one network."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        # Blocks in a row whose bloom filter does not fit their logs, as independent answers agree.
        self._odd_blocks = 0

    async def read(self, raw: RawBlock, full: bool) -> Content:
        """The logs of a block; with its receipts if `full` and there are any. Raises `ContentUnavailable`."""
        if not raw.transactions and not raw.bloom:
            return Content((), ())
        doubts = Doubts()
        with_receipts = full and bool(raw.hashes)
        try:
            content = await (self._receipts_and_logs(raw, doubts) if with_receipts else self._logs(raw, doubts))
        except ContentUnavailable as error:
            content = self._agreed(raw, doubts, with_receipts, error)
            self._odd_blocks += 1
        else:
            # One that says nothing tells nothing about the others.
            self._odd_blocks = 0 if raw.bloom else self._odd_blocks
        # Where logs belong to no transaction, they have the hash of the block in its place.
        if full and not raw.hashes and any(entry.transaction_hash != raw.link.hash for entry in content.logs):
            raise ContentUnavailable(f"block {raw.link.number}: it has logs of transactions that are not listed")
        return content

    def _agreed(self, raw: RawBlock, doubts: Doubts, with_receipts: bool, error: ContentUnavailable) -> Content:
        """What is believed although it does not look whole. Raises the error when nothing is."""
        members = self._asker.members
        # One that is down counts too: it is waited for rather than logs being lost.
        asked = [member for member in members if member.allows("eth_getLogs") or member.allows("eth_getBlockReceipts")]
        content = doubts.agreed(len(asked), receipts=with_receipts)
        if content is None:
            raise error
        log.warning("stream.bloom_not_usable", network=self._asker.network, number=raw.link.number, reason=str(error))
        return content

    async def _logs(self, raw: RawBlock, doubts: Doubts) -> Content:
        try:
            return await self._by_logs(raw, doubts)
        except (MethodMissing, ContentUnavailable) as error:
            if not raw.hashes:
                raise ContentUnavailable(str(error)) from None
            log.info("stream.logs_by_receipts", network=self._asker.network, number=raw.link.number, reason=str(error))
        return await self._by_receipts(raw, doubts)

    async def _receipts_and_logs(self, raw: RawBlock, doubts: Doubts) -> Content:
        try:
            return await self._by_receipts(raw, doubts)
        except ContentUnavailable as error:
            if not doubts:
                raise
            problem = str(error)
        try:
            await self._by_logs(raw, doubts)
        except (MethodMissing, ContentUnavailable):
            raise ContentUnavailable(problem) from None
        # There are logs that look whole, so the receipts are not, whoever agrees about them.
        doubts.clear()
        raise ContentUnavailable(f"{problem}, and receipts and logs differ")

    async def _by_logs(self, raw: RawBlock, doubts: Doubts) -> Content:
        link = raw.link
        params = msgspec.json.encode(({"blockHash": link.hash},))

        def accept(answer: Raw) -> Content:
            return whole(raw, logs_from(answer, link.hash))

        return await self._asker.ask("eth_getLogs", params, link.number, accept, rounds=self._rounds, doubts=doubts)

    async def _by_receipts(self, raw: RawBlock, doubts: Doubts) -> Content:
        link = raw.link
        params = msgspec.json.encode((link.hash,))

        def accept(answer: Raw) -> Content:
            receipts = receipts_from(answer, link.hash, len(raw.hashes))
            return whole(raw, logs_of(receipts, link.hash), receipts)

        try:
            return await self._asker.ask(
                "eth_getBlockReceipts", params, link.number, accept, rounds=self._rounds, doubts=doubts
            )
        except MethodMissing:
            return await self._by_single_receipts(raw, doubts)

    async def _by_single_receipts(self, raw: RawBlock, doubts: Doubts) -> Content:
        link, method = raw.link, "eth_getTransactionReceipt"

        async def of_any(transaction_hash: str) -> Raw:
            params = msgspec.json.encode((transaction_hash,))
            return await self._asker.ask(
                method, params, link.number, lambda answer: receipt_from(answer, link.hash, transaction_hash)
            )

        try:
            return await self._collect(raw, of_any)
        except MethodMissing:
            raise ContentUnavailable(f"no upstream of {self._asker.network} tells receipts") from None
        except Incomplete as problem:
            reason = str(problem)
        # Some upstream leaves logs out, and which one is not known: so all receipts from each of them alone.
        for member in self._asker.members:
            if not member.in_rotation or not member.allows(method):
                continue
            try:
                return await self._collect(raw, self._receipts_of(member, link))
            except Incomplete as problem:
                doubts.add(member.name, method, problem.content)
            except (Unusable, ChainError, UpstreamError, UpstreamTimeout) as error:
                reason = str(error)
        raise ContentUnavailable(f"block {link.number} of {self._asker.network}: {method}: {reason}")

    def _receipts_of(self, member: PooledUpstream, link: Header) -> Callable[[str], Coroutine[Any, Any, Raw]]:
        async def one(transaction_hash: str) -> Raw:
            params = msgspec.json.encode((transaction_hash,))
            answer = await member.call("eth_getTransactionReceipt", params, timeout=self._asker.options.call_timeout)
            return receipt_from(answer, link.hash, transaction_hash)

        return one

    async def _collect(self, raw: RawBlock, fetch: Callable[[str], Coroutine[Any, Any, Raw]]) -> Content:
        """The content out of receipts that are fetched one by one. Raises `Incomplete`."""
        slots = asyncio.Semaphore(self._asker.options.receipts_width)

        async def one(transaction_hash: str) -> Raw:
            async with slots:
                return await fetch(transaction_hash)

        receipts = tuple(await _gather(one, raw.hashes))
        return whole(raw, logs_of(receipts, raw.link.hash), receipts)

    @property
    def _rounds(self) -> int:
        return self._asker.options.rounds if self._odd_blocks < _ODD_BLOCKS else 1


async def _gather(work: Callable[[str], Coroutine[Any, Any, Raw]], items: Sequence[str]) -> list[Raw]:
    """All results in order; the first failure ends the rest."""
    tasks = [asyncio.create_task(work(item)) for item in items]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
