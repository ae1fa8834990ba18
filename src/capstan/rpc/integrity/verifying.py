"""Checks answers against their block: blocks, receipts and logs.

Called by the guard, once for each answer, before anything is done with it. A block must have the hash that its header
has, and be the one that the followed chain or other upstreams have. Receipts must make up the receipts root. Logs must
match the filter, lie in the bloom, and be, in every block whose bloom leaves it open, exactly those of the receipts.
Raises `Refuted` for a wrong answer, `Unsettled` for one that only does not fit, and `Unproved` for one that does not
prove what it should on its chain. What the blocks of a chain do not prove is counted as unproved and passed on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Raw

from capstan.chain.errors import ChainError, DeadlinePassed, EveryUpstreamFailed
from capstan.chain.member import PooledUpstream
from capstan.core.hexes import parse_quantity, to_quantity
from capstan.rpc.integrity.claims import (
    Facts,
    Refuted,
    Unproved,
    Unsettled,
    check_bloom,
    log_facts,
    same_receipt,
)
from capstan.rpc.integrity.evidence import Block, Evidence, Json, decode
from capstan.rpc.integrity.filters import LogFilter, read_filter
from capstan.rpc.integrity.inquiry import Case, NothingConvincing
from capstan.rpc.integrity.metrics import IntegrityMetrics

# Blocks whose headers, and blocks whose receipts, are fetched at once for one check.
_HEADERS_AT_ONCE = 8
_RECEIPTS_AT_ONCE = 4
# How long an answer about a block beyond the head waits for the head.
_NEW_BLOCK_SECONDS = 2.0
_LOOK_SECONDS = 0.02

Rule = Callable[[Case, PooledUpstream, bytes, Raw], Awaitable[None]]


class Verifier:
    """Checks answers."""

    def __init__(self, evidence: Evidence, metrics: IntegrityMetrics) -> None:
        self._evidence = evidence
        self._metrics = metrics
        self._rules: dict[str, Rule] = {
            "eth_getBlockByHash": self._block_by_hash,
            "eth_getBlockByNumber": self._block_by_number,
            "eth_getHeaderByHash": self._header_by_hash,
            "eth_getHeaderByNumber": self._header_by_number,
            "eth_getBlockReceipts": self._block_receipts,
            "eth_getTransactionReceipt": self._receipt,
            "eth_getLogs": self._logs,
        }

    def covers(self, method: str) -> bool:
        """Whether answers to the method can be checked."""
        return method in self._rules

    async def check(self, case: Case, member: PooledUpstream, method: str, params: bytes, result: Raw) -> None:
        """Check the answer that an upstream gave. Its block is named by number or hash in `params`."""
        try:
            try:
                await self._rules[method](case, member, params, result)
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None
        except (KeyError, TypeError, ValueError) as error:
            raise Refuted("form", f"the answer cannot be read: {error}") from None
        except NothingConvincing as error:
            # Perhaps because the answer names a block that nobody else has.
            raise Unsettled(error.message) from None

    async def _block_by_hash(self, case: Case, member: PooledUpstream, params: bytes, result: Raw) -> None:
        await self._by_hash(case, params, result, full=_is_full(params))

    async def _header_by_hash(self, case: Case, member: PooledUpstream, params: bytes, result: Raw) -> None:
        await self._by_hash(case, params, result, full=False)

    async def _block_by_number(self, case: Case, member: PooledUpstream, params: bytes, result: Raw) -> None:
        await self._by_number(case, params, result, full=_is_full(params))

    async def _header_by_number(self, case: Case, member: PooledUpstream, params: bytes, result: Raw) -> None:
        await self._by_number(case, params, result, full=False)

    async def _by_hash(self, case: Case, params: bytes, result: Raw, *, full: bool) -> None:
        block = self._evidence.read_block(case, result, full=full)
        if block is None:
            return
        if block.facts.hash != str(_first(params)).lower():
            raise Refuted("header", "another block came than the one asked for by its hash")
        self._block_passed(case, block)

    async def _by_number(self, case: Case, params: bytes, result: Raw, *, full: bool) -> None:
        number = parse_quantity(_first(params), lenient=True)
        block = self._evidence.read_block(case, result, full=full)
        if block is None:
            self._may_be_absent(case, number)
            return
        if block.facts.number != number:
            raise Refuted("header", f"block {block.facts.number} came for block {number}")
        await self._reach(case, number)
        await self._is_of_the_chain(case, block.facts)
        self._block_passed(case, block)

    def _block_passed(self, case: Case, block: Block) -> None:
        """It is the block that was asked for. Raises `Unproved` if it does not prove what it should."""
        if block.doubt is not None:
            raise block.doubt
        if block.facts.proved:
            self._metrics.proved(case.network.name, "header")

    def _may_be_absent(self, case: Case, number: int) -> None:
        """Raises `Unsettled` if the chain has come to the block."""
        if case.view.latest_number is not None and number <= case.view.latest_number:
            raise Unsettled(f"it says that there is no block {number}")

    async def _is_of_the_chain(self, case: Case, facts: Facts) -> None:
        """The block is the one of its number. A recent one may just have been replaced, so that is no lie."""
        known = case.view.hash_at(facts.number)
        if known is not None and known != facts.hash:
            raise Unsettled(f"its block {facts.number} is not the one of the followed chain")
        latest = case.view.latest_number
        if known is None and latest is not None and facts.number <= latest:
            settled = await self._evidence.hash_of(case, facts.number)
            if settled != facts.hash:
                raise Refuted("header", f"its block {facts.number} is not the one that others have")

    async def _reach(self, case: Case, number: int) -> None:
        """Wait for the followed head to reach the block of an answer, which else only that upstream vouches for."""
        for _ in range(int(min(_NEW_BLOCK_SECONDS, case.remaining() / 2) / _LOOK_SECONDS)):
            if (case.view.latest_number or 0) >= number:
                return
            case.view.nudge()
            await asyncio.sleep(_LOOK_SECONDS)
        raise Unsettled(f"block {number} is beyond the head")

    async def _block_receipts(self, case: Case, member: PooledUpstream, params: bytes, result: Raw) -> None:
        receipts = decode(result, list[Json] | None, "receipts")
        name = _first(params)
        if isinstance(name, dict):
            name = name.get("blockHash") or name.get("blockNumber")
        by_hash = isinstance(name, str) and len(name) == 66
        if receipts is None:
            if by_hash:
                await self._is_unknown(case, member, name.lower())
            else:
                self._may_be_absent(case, parse_quantity(name, lenient=True))
            return
        if by_hash:
            facts = await self._evidence.of(case, name.lower(), member)
        else:
            facts = await self._evidence.at(case, parse_quantity(name, lenient=True), member)
        if "receipts" not in case.rules.proofs:
            for receipt in receipts:
                self._bloom(case, receipt, facts)
            return
        try:
            await self._evidence.prove(case, receipts, facts)
        except Refuted:
            await self._is_on_the_branch(case, member, facts)
            raise
        self._passed(case, "receipts", facts)

    async def _is_unknown(self, case: Case, member: PooledUpstream, block_hash: str) -> None:
        """Raises `Unsettled` if another upstream has the block, unless it has left the chain."""
        try:
            facts = await self._evidence.of(case, block_hash, member)
        except (ChainError, EveryUpstreamFailed, DeadlinePassed):
            return
        if case.view.hash_at(facts.number) in (None, facts.hash):
            self._may_be_absent(case, facts.number)

    async def _receipt(self, case: Case, member: PooledUpstream, params: bytes, result: Raw) -> None:
        receipt = decode(result, Json | None, "receipts")
        if receipt is None:
            return
        try:
            if receipt["transactionHash"].lower() != str(_first(params)).lower():
                raise Refuted("receipts", "the receipt of another transaction came")
            place = parse_quantity(receipt["transactionIndex"], lenient=True)
            await self._reach(case, parse_quantity(receipt["blockNumber"], lenient=True))
            facts = await self._evidence.of(case, receipt["blockHash"].lower(), member)
            if facts.number != parse_quantity(receipt["blockNumber"], lenient=True):
                raise Refuted("receipts", "the receipt gives its block another number")
            await self._is_of_the_chain(case, facts)
            if "receipts" not in case.rules.proofs:
                self._bloom(case, receipt, facts)
                return
            receipts = await self._evidence.receipts(case, facts, member)
            if place >= len(receipts) or not same_receipt(receipt, receipts[place]):
                raise Refuted("receipts", f"the receipt is not the one in block {facts.number}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Refuted("receipts", f"not a receipt: {error}") from None
        self._passed(case, "receipts", facts)

    def _bloom(self, case: Case, receipt: Json, facts: Facts) -> None:
        """Where receipts cannot be proved: their logs must at least be in the bloom of the block."""
        if "bloom" in case.rules.proofs:
            check_bloom(receipt.get("logs") or [], facts.bloom, facts.number)
        self._metrics.unproved(case.network.name, "receipts")

    async def _logs(self, case: Case, member: PooledUpstream, params: bytes, result: Raw) -> None:
        try:
            wanted = read_filter(params)
        except (TypeError, ValueError):
            # Odd, and the node made something of it all the same.
            self._metrics.unproved(case.network.name, "logs")
            return
        given = _by_block(decode(result, list[Json], "logs"), wanted)
        if "bloom" not in case.rules.proofs:
            self._metrics.unproved(case.network.name, "logs")
            return
        blocks = await self._blocks(case, member, wanted, max(given, default=-1))
        if any(number not in blocks for number in given):
            raise Refuted("logs", "a log of another block was given than the one asked for")
        suspects = await self._suspects(case, member, wanted, blocks, given)
        if "receipts" not in case.rules.proofs:
            if suspects:
                self._metrics.unproved(case.network.name, "logs")
            return
        places = asyncio.Semaphore(_RECEIPTS_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            comparing = [
                tasks.create_task(self._compare(case, member, wanted, facts, given.get(facts.number, []), places))
                for facts in suspects
            ]
        # Only now: no doubt about one block may hide what is wrong in another.
        for doubt in (task.result() for task in comparing):
            if doubt is not None:
                raise doubt
        self._passed(case, "logs", *suspects)

    async def _blocks(self, case: Case, member: PooledUpstream, wanted: LogFilter, highest: int) -> range:
        """The blocks that the logs are of; `highest` is the last one that has any."""
        if wanted.block_hash is not None:
            facts = await self._evidence.of(case, wanted.block_hash, member)
            return range(facts.number, facts.number + 1)
        # Of blocks beyond the head nobody can say that logs are missing.
        last = max(case.view.latest_number or 0, highest)
        if wanted.last is not None:
            last = min(last, wanted.last)
        if highest > (case.view.latest_number or 0):
            await self._reach(case, highest)
        return range(wanted.first, last + 1)

    async def _suspects(
        self, case: Case, member: PooledUpstream, wanted: LogFilter, blocks: range, given: dict[int, list[Json]]
    ) -> list[Facts]:
        """The blocks that have logs, or may have some: all others are proved by their bloom to have none."""
        places = asyncio.Semaphore(_HEADERS_AT_ONCE)

        async def look(number: int) -> Facts:
            async with places:
                if wanted.block_hash is not None:
                    return await self._evidence.of(case, wanted.block_hash, member)
                return await self._evidence.at(case, number, member)

        async with asyncio.TaskGroup() as tasks:
            looking = [tasks.create_task(look(number)) for number in blocks]
        suspects = []
        for facts in (task.result() for task in looking):
            logs = given.get(facts.number, [])
            if any(str(log["blockHash"]).lower() != facts.hash for log in logs):
                raise Unsettled(f"its logs of block {facts.number} are of another block")
            check_bloom(logs, facts.bloom, facts.number)
            if logs or wanted.may_be_in(facts.bloom):
                suspects.append(facts)
        return suspects

    async def _compare(
        self,
        case: Case,
        member: PooledUpstream,
        wanted: LogFilter,
        facts: Facts,
        given: list[Json],
        places: asyncio.Semaphore,
    ) -> Unproved | None:
        """The logs are those of the block's receipts. Raises `Refuted`; gives the doubt if nobody can prove those."""
        async with places:
            try:
                receipts = await self._evidence.receipts(case, facts, member)
            except Unproved as doubt:
                return Unproved("logs", str(doubt))
        true = [log_facts(log) for receipt in receipts for log in receipt["logs"] if wanted.matches(log)]
        if [log_facts(log) for log in given] != true:
            await self._is_on_the_branch(case, member, facts)
            raise Refuted("logs", f"the logs of block {facts.number} are not those of its receipts")
        return None

    async def _is_on_the_branch(self, case: Case, member: PooledUpstream, facts: Facts) -> None:
        """Before an upstream is blamed for a recent block: it has that block. Raises `Unsettled` if it has another."""
        final = case.view.finalized_number
        if final is not None and facts.number <= final:
            return
        params = msgspec.json.encode([to_quantity(facts.number), False])
        try:
            block = await member.call("eth_getBlockByNumber", params, timeout=case.remaining() / 2)
        except ChainError as error:
            raise Unsettled(f"it does not say which block {facts.number} is: {error}") from None
        own = self._evidence.read_block(case, block)
        if own is None or own.facts.hash != facts.hash:
            raise Unsettled(f"its block {facts.number} is not the one of the followed chain")

    def _passed(self, case: Case, check: str, *blocks: Facts) -> None:
        """Count an answer that fits these blocks. It is proved no better than they are."""
        if all(facts.proved for facts in blocks):
            self._metrics.proved(case.network.name, check)
        else:
            self._metrics.unproved(case.network.name, check)


def _by_block(logs: list[Json], wanted: LogFilter) -> dict[int, list[Json]]:
    """The logs of each block. Raises `Refuted` unless all match the filter, in order."""
    found: dict[int, list[Json]] = {}
    before = (-1, -1)
    for log in logs:
        facts = log_facts(log)
        place = (facts.number, facts.log_index)
        if not wanted.matches(log) or facts.removed:
            raise Refuted("logs", "a log was given that the filter does not match")
        if facts.number < wanted.first or (wanted.last is not None and facts.number > wanted.last):
            raise Refuted("logs", f"a log of block {place[0]} was given, which is outside of the range")
        if place <= before:
            raise Refuted("logs", "the logs are not in order")
        before = place
        found.setdefault(place[0], []).append(log)
    return found


def _first(params: bytes) -> Any:
    arguments = msgspec.json.decode(params, type=list[Any])
    if not arguments:
        raise EveryUpstreamFailed("a block or a transaction must be named")
    return arguments[0]


def _is_full(params: bytes) -> bool:
    """Whether a block was asked for with its transactions."""
    arguments = msgspec.json.decode(params, type=list[Any])
    return len(arguments) > 1 and arguments[1] is True
