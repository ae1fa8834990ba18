"""Asks the upstreams of one network for transfers of the past: by ranges of final blocks, or by the hash of one block.

Used by the history jobs alone. A subject is turned into as few `eth_getLogs` filters as it needs: one for a contract or
for everything, three for a holder, whose address stands in different places of different events. What a node says of
blocks or logs nobody asked for is refused. It writes nothing and decides nothing about ranges.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.errors import (
    NodeError,
    is_log_count_error,
    is_log_range_error,
    log_range_limit,
    log_range_proposed,
)
from capstan.chain.heads.headers import Header
from capstan.chain.pool import UpstreamPool
from capstan.core.errors import UpstreamError, UpstreamTimeout
from capstan.core.hexes import parse_quantity, to_quantity
from capstan.index.events import (
    CONSECUTIVE_TRANSFER,
    DEPOSIT,
    TRANSFER,
    TRANSFER_BATCH,
    TRANSFER_SINGLE,
    WITHDRAWAL,
    Malformed,
    NodeLog,
    place_of,
    transfers_in,
)
from capstan.index.metrics import IndexMetrics
from capstan.index.models import Subject, SubjectKind, Transfer

log = structlog.get_logger(__name__)

_LOGS: msgspec.json.Decoder[list[NodeLog]] = msgspec.json.Decoder(list[NodeLog])
_WITHOUT_WRAPPING = [TRANSFER, TRANSFER_SINGLE, TRANSFER_BATCH, CONSECUTIVE_TRANSFER]
_HEADERS_KEPT = 1_024
# Logs decoded before others get their turn on the event loop.
_AT_ONCE = 1_000
_CALL_SECONDS = 30.0


class _NodeHeader(msgspec.Struct, rename="camel"):
    number: str
    hash: str
    parent_hash: str
    timestamp: str


_HEADER: msgspec.json.Decoder[_NodeHeader | None] = msgspec.json.Decoder(_NodeHeader | None)


class HistoryUnavailable(Exception):
    """No upstream answered as it should. Trying later may work."""


class RangeRefused(Exception):
    """The upstream does not answer for so many blocks; `limit` is what it would take, if it says so."""

    def __init__(self, reason: str, *, limit: int | None, lasting: bool) -> None:
        super().__init__(reason)
        self.limit = limit
        self.lasting = lasting


class HistoryReader:
    """Reads the past of one network."""

    def __init__(
        self,
        network: str,
        pool: Callable[[], UpstreamPool],
        metrics: IndexMetrics,
        *,
        wrapped: frozenset[bytes] = frozenset(),
    ) -> None:
        self.network = network
        self._pool = pool
        self._metrics = metrics
        self._wrapped = wrapped
        self._headers: OrderedDict[str, Header] = OrderedDict()

    async def in_range(self, subject: Subject, first: int, last: int) -> list[Transfer]:
        """The transfers of the subject in these blocks. Raises `RangeRefused`, `HistoryUnavailable`."""
        where = {"fromBlock": to_quantity(first), "toBlock": to_quantity(last)}
        answers = await asyncio.gather(*(self._logs(where, which, last) for which in self._filters(subject)))
        found: list[Transfer] = []
        for answer in answers:
            for start in range(0, len(answer), _AT_ONCE):
                for item in answer[start : start + _AT_ONCE]:
                    self._read(item, found, None)
                await asyncio.sleep(0)
        if any(not first <= item.block_number <= last for item in found):
            raise HistoryUnavailable("an upstream told logs of blocks that were not asked for")
        return found

    async def in_block(self, subject: Subject, header: Header) -> list[Transfer]:
        """The transfers of the subject in this very block. Raises `HistoryUnavailable`."""
        where = {"blockHash": header.hash}
        try:
            answers = await asyncio.gather(
                *(self._logs(where, which, header.number) for which in self._filters(subject))
            )
        except RangeRefused as refusal:
            raise HistoryUnavailable(str(refusal)) from None
        found: list[Transfer] = []
        for item in (item for answer in answers for item in answer):
            self._read(item, found, header.timestamp)
        digest = bytes.fromhex(header.hash[2:])
        if any(item.block_hash != digest for item in found):
            raise HistoryUnavailable("an upstream told logs of a block that was not asked for")
        return found

    async def header(self, block_hash: str) -> Header:
        """The header with this hash. Raises `HistoryUnavailable`."""
        kept = self._headers.get(block_hash)
        if kept is not None:
            self._headers.move_to_end(block_hash)
            return kept
        raw = await self._call("eth_getBlockByHash", [block_hash, False], None)
        try:
            answer = _HEADER.decode(raw)
            if answer is None or answer.hash.lower() != block_hash:
                raise HistoryUnavailable(f"no upstream knows block {block_hash}")
            number, timestamp = (parse_quantity(text, lenient=True) for text in (answer.number, answer.timestamp))
        except (msgspec.MsgspecError, ValueError) as error:
            raise HistoryUnavailable(f"not a block: {error}") from None
        header = Header(number, block_hash, answer.parent_hash.lower(), timestamp)
        self._headers[block_hash] = header
        while len(self._headers) > _HEADERS_KEPT:
            self._headers.popitem(last=False)
        return header

    def _read(self, item: NodeLog, found: list[Transfer], timestamp: int | None) -> None:
        try:
            place = place_of(item, timestamp)
        except ValueError as error:
            raise HistoryUnavailable(f"not a log: {error}") from None
        try:
            found.extend(transfers_in(item, place, self._wrapped))
        except Malformed as error:
            self._metrics.malformed.labels(self.network).inc()
            log.debug("index.malformed", network=self.network, tx=item.transaction_hash, reason=str(error))

    def _filters(self, subject: Subject) -> list[dict[str, Any]]:
        wrapping = [DEPOSIT, WITHDRAWAL] if self._wrapped else []
        if subject.kind is SubjectKind.ALL:
            wanted: list[dict[str, Any]] = [{"topics": [_WITHOUT_WRAPPING]}]
            if wrapping:
                wanted.append({"address": [_hex(each) for each in sorted(self._wrapped)], "topics": [wrapping]})
            return wanted
        if subject.kind is SubjectKind.CONTRACT:
            return [{"address": _hex(subject.address), "topics": [_WITHOUT_WRAPPING]}]
        party = "0x" + subject.address.hex().rjust(64, "0")
        return [
            # The sender of a Transfer; whoever deposits or withdraws.
            {"topics": [[TRANSFER, *wrapping], party]},
            # The receiver of a Transfer; the sender in ERC-1155, behind the operator, and in ERC-2309, behind the id.
            {"topics": [_WITHOUT_WRAPPING, None, party]},
            {"topics": [[TRANSFER_SINGLE, TRANSFER_BATCH, CONSECUTIVE_TRANSFER], None, None, party]},
        ]

    async def _logs(self, where: dict[str, str], which: dict[str, Any], last: int) -> list[NodeLog]:
        raw = await self._call("eth_getLogs", [{**where, **which}], last)
        try:
            return _LOGS.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HistoryUnavailable(f"not a list of logs: {error}") from None

    async def _call(self, method: str, params: Sequence[object], needs_block: int | None) -> Raw:
        calls = self._metrics.calls
        try:
            answer = await self._pool().call(
                method, msgspec.json.encode(params), timeout=_CALL_SECONDS, needs_block=needs_block, hedge=False
            )
        except NodeError as error:
            calls.labels(self.network, "refused").inc()
            if method == "eth_getLogs" and is_log_range_error(error):
                raise _refusal(error) from None
            raise HistoryUnavailable(str(error)) from None
        except (UpstreamError, UpstreamTimeout) as error:
            calls.labels(self.network, "failed").inc()
            raise HistoryUnavailable(str(error)) from None
        calls.labels(self.network, "ok").inc()
        return answer


def _refusal(error: NodeError) -> RangeRefused:
    limit = log_range_limit(error)
    proposed = log_range_proposed(error)
    if limit is None and proposed is not None:
        limit = int(proposed[1], 16) - int(proposed[0], 16) + 1
    return RangeRefused(str(error), limit=limit, lasting=not is_log_count_error(error))


def _hex(address: bytes) -> str:
    return "0x" + address.hex()
