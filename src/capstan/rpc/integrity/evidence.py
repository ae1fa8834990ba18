"""The headers and receipts that answers are checked against: fetched, proved, and kept for a while.

Used by `verifying`. Which block a number means is known from the followed head; of older blocks two upstreams must say
the same, if there are two. A header must have the block's hash, and receipts the root in the header, so it does not
matter who gave them. What no upstream can prove, on a chain whose blocks prove it, is used for the call that needs it
and never kept. What is kept is bounded by the number of blocks, receipts also by their size.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw

from capstan.chain.errors import ChainError, NodeError, UpstreamFailure, is_method_missing
from capstan.chain.member import PooledUpstream
from capstan.chain.proofs.trie import EMPTY_ROOT
from capstan.chain.run import Run
from capstan.chain.selection import Needs
from capstan.core.hexes import to_data, to_quantity
from capstan.rpc.integrity.claims import (
    Facts,
    Refuted,
    Unproved,
    Unsettled,
    check_contents,
    check_form,
    check_header,
    check_receipts,
    digest_of,
    facts_of,
    transactions_of,
)
from capstan.rpc.integrity.inquiry import VOICES, Case, Inquiry, able
from capstan.rpc.integrity.metrics import IntegrityMetrics

_BLOCKS_KEPT = 20_000
_RECEIPTS_KEPT_BYTES = 32 * 1024 * 1024
# Receipts of one block asked for at once, where a node gives them only one by one.
_AT_ONCE = 8
# Building a trie takes some 50 microseconds for each receipt; from here on it is done beside the event loop.
_MANY_RECEIPTS = 32

_EMPTY = to_data(EMPTY_ROOT)

Json = dict[str, Any]
K = TypeVar("K")
V = TypeVar("V")


class Evidence:
    """What is known for certain of the blocks of all networks."""

    def __init__(self, inquiry: Inquiry, metrics: IntegrityMetrics) -> None:
        self._inquiry = inquiry
        self._metrics = metrics
        self._facts: _Kept[tuple[str, str], Facts] = _Kept(_BLOCKS_KEPT)
        # Final blocks only.
        self._hashes: _Kept[tuple[str, int], str] = _Kept(_BLOCKS_KEPT)
        # As JSON: decoded they would take many times the memory.
        self._receipts: _Kept[tuple[str, str], Raw] = _Kept(_RECEIPTS_KEPT_BYTES)
        self._without_block_receipts: set[tuple[str, str]] = set()

    async def at(self, case: Case, number: int, avoid: PooledUpstream | None) -> Facts:
        """The facts of the block with this number. Raises `Unsettled` when upstreams do not agree which that is."""
        return await self.of(case, await self.hash_of(case, number), avoid)

    async def of(self, case: Case, block_hash: str, avoid: PooledUpstream | None) -> Facts:
        """The facts of the block with this hash."""
        kept = self._facts.get((case.network.name, block_hash))
        if kept is not None:
            return kept
        return await self._fetch_block(case, Needs("eth_getBlockByHash"), block_hash, avoid)

    async def _fetch_block(
        self, case: Case, needs: Needs, block_hash: str, avoid: PooledUpstream | None = None, *, full: bool = False
    ) -> Facts:
        """The facts of the block with this hash, from the upstreams, and kept if they are proved."""
        found: list[Facts] = []

        async def check(_: PooledUpstream, result: Raw) -> None:
            block = self.read_block(case, result, full=full)
            if block is None:
                raise Unsettled(f"it has no block {block_hash}")
            if block.facts.hash != block_hash:
                raise Refuted("header", "another block came than the one asked for by its hash")
            if block.doubt is not None:
                raise block.doubt
            found.append(block.facts)

        params = msgspec.json.encode([block_hash, full])
        result = await self._inquiry.ask(case, needs, params, check, avoid=avoid)
        if not found:
            return facts_of(decode(result, Json, "header"))
        self._facts.put((case.network.name, block_hash), found[-1], 1)
        return found[-1]

    async def hash_of(self, case: Case, number: int) -> str:
        """The hash of the block with this number."""
        known = case.view.hash_at(number) or self._hashes.get((case.network.name, number))
        if known is not None:
            return known
        return await self._settle(case, number)

    async def _settle(self, case: Case, number: int) -> str:
        """The hash that two upstreams name for an older block, or that of the only one that says anything."""
        params = msgspec.json.encode([to_quantity(number), False])
        needs = Needs("eth_getBlockByNumber", number)
        run = case.network.pool.run(needs, params, timeout=case.remaining())
        voices: dict[str, list[PooledUpstream]] = {}
        doubtful: dict[str, list[PooledUpstream]] = {}
        facts_by_hash: dict[str, Facts] = {}
        while (member := run.next()) is not None or await run.wait_for_budget():
            if member is None or (not member.in_rotation and voices):
                # One that is not believed, or that is down, is asked only when there is no other.
                continue
            try:
                block = self.read_block(case, await run.attempt(member))
                if block is not None and block.facts.number != number:
                    raise Refuted("header", f"block {block.facts.number} came for block {number}")
            except ChainError:
                continue
            except Refuted as lie:
                self._inquiry.caught(case, needs.method, member, lie)
                continue
            if block is None:
                continue
            facts = block.facts
            if block.doubt is not None:
                doubtful.setdefault(facts.hash, []).append(member)
                continue
            facts_by_hash[facts.hash] = facts
            voices.setdefault(facts.hash, []).append(member)
            if len(voices[facts.hash]) == VOICES:
                break
        most = max(voices.values(), key=len, default=[])
        if not most and doubtful:
            return _without_proof(run, number, doubtful)
        if not most:
            raise run.verdict()
        if len(most) < VOICES and len(voices) > 1:
            raise Unsettled(f"upstreams do not agree which block {number} is")
        winner = next(block_hash for block_hash, members in voices.items() if members is most)
        for block_hash, members in voices.items():
            for member in members if block_hash != winner else ():
                wrong = Refuted("header", f"its block {number} is not the one that others have")
                self._inquiry.caught(case, needs.method, member, wrong)
        name, final = case.network.name, case.view.finalized_number
        self._facts.put((name, winner), facts_by_hash[winner], 1)
        if final is not None and number <= final:
            self._hashes.put((name, number), winner, 1)
        return winner

    def read_block(self, case: Case, result: Raw, *, full: bool = False) -> "Block | None":
        """The answer to a question for a block, checked as far as can be; None for no block. Raises `Refuted`.

        With `full`, its transactions were asked for.
        """
        block = decode(result, Json | None, "header")
        if block is None:
            return None
        facts = facts_of(block)
        check_form(block, full=full)
        if "header" not in case.rules.proofs:
            self._metrics.unproved(case.network.name, "header")
            return Block(facts)
        try:
            check_header(block)
            facts = msgspec.structs.replace(facts, proved=True)
            check_contents(block, full=full)
        except Unproved as doubt:
            return Block(facts, doubt)
        except (KeyError, TypeError, ValueError) as error:
            raise Refuted("header", f"not a block: {error}") from None
        return Block(facts)

    def forget(self, network: str) -> None:
        """What was said of the network's chain is not vouched for any more."""
        self._facts.drop(lambda key: key[0] == network)
        self._hashes.drop(lambda key: key[0] == network)
        self._receipts.drop(lambda key: key[0] == network)

    async def receipts(self, case: Case, facts: Facts, avoid: PooledUpstream | None) -> list[Json]:
        """The receipts of a block. Raises `Unproved` when all that come are of kinds that cannot be checked."""
        if facts.receipts_root == _EMPTY:
            return []
        key = (case.network.name, facts.hash)
        kept = self._receipts.get(key)
        if kept is not None:
            return msgspec.json.decode(kept, type=list[Json])
        found: list[list[Json]] = []

        async def fetch(run: Run, member: PooledUpstream) -> Raw:
            return await self._fetch_receipts(run, member, facts)

        async def check(_: PooledUpstream, result: Raw) -> None:
            receipts = decode(result, list[Json], "receipts")
            await self.prove(case, receipts, facts)
            found.append(receipts)

        params = msgspec.json.encode([facts.hash])
        needs = Needs("eth_getBlockReceipts", facts.number)
        raw = await self._inquiry.ask(case, needs, params, check, avoid=avoid, fetch=fetch)
        if not found:
            raise Unproved("receipts", f"no upstream gives receipts of block {facts.number} that can be proved")
        if not facts.proved and "header" in case.rules.proofs:
            return found[-1]
        # A copy: what came from a node may hold on to a larger buffer.
        self._receipts.put(key, Raw(bytes(raw)), len(memoryview(raw)))
        return found[-1]

    async def prove(self, case: Case, receipts: list[Json], facts: Facts) -> None:
        """These are the receipts of the block. Raises `Refuted` or `Unproved`."""
        if len(receipts) > _MANY_RECEIPTS:
            await asyncio.to_thread(check_receipts, receipts, facts)
        else:
            check_receipts(receipts, facts)
        listed = digest_of(str(receipt.get("transactionHash")).lower() for receipt in receipts)
        if listed == facts.transactions:
            return
        # The root does not cover the hashes, and the list in the block is not covered by the header either. The
        # transactions themselves are.
        needs = Needs("eth_getBlockByHash", facts.number)
        complete = await self._fetch_block(case, needs, facts.hash, full=True)
        if listed == complete.transactions:
            return
        if not complete.proved:
            raise Unproved("receipts", f"no upstream can prove which transactions block {facts.number} has")
        raise Refuted("receipts", f"the receipts of block {facts.number} name other transactions")

    async def _fetch_receipts(self, run: Run, member: PooledUpstream, facts: Facts) -> Raw:
        """All receipts of a block from one upstream: at once, or one by one where it does not have the method."""
        name = (run.network, member.name)
        if name not in self._without_block_receipts:
            try:
                return await run.attempt(member)
            except NodeError as error:
                if is_method_missing(error):
                    self._without_block_receipts.add(name)
        places = asyncio.Semaphore(_AT_ONCE)

        async def one(transaction: str) -> bytes:
            async with places:
                params = msgspec.json.encode([transaction])
                return bytes(await member.call("eth_getTransactionReceipt", params, timeout=run.time_for_attempt()))

        try:
            params = msgspec.json.encode([facts.hash, False])
            block = await member.call("eth_getBlockByHash", params, timeout=run.time_for_attempt())
            hashes = transactions_of(decode(block, Json, "receipts"))
            async with asyncio.TaskGroup() as tasks:
                asked = [tasks.create_task(one(transaction)) for transaction in hashes]
        except ValueError as error:
            raise Refuted("receipts", f"not a block: {error}") from None
        except BaseExceptionGroup as failures:
            first = failures.exceptions[0]
            if isinstance(first, NodeError):
                raise UpstreamUnhelpful(member.name, "it does not give the receipts of a block") from None
            raise first from None
        return Raw(b"[" + b",".join(task.result() for task in asked) + b"]")


class Block(msgspec.Struct, frozen=True):
    """A block that was read and not refuted."""

    facts: Facts
    # What could not be proved although the blocks of the chain prove it.
    doubt: Unproved | None = None


def _without_proof(run: Run, number: int, voices: dict[str, list[PooledUpstream]]) -> str:
    """The hash for a number where no upstream proves its block: all name it, and more than one if there are more."""
    (first, members), *others = voices.items()
    if others or len(members) < min(VOICES, able(run)):
        raise Unsettled(f"no upstream can prove which block {number} is")
    return first


class UpstreamUnhelpful(UpstreamFailure):
    """It cannot give what a check needs. No fault of its own."""

    blames_upstream = False


class _Kept(Generic[K, V]):
    """The latest entries, as many as weigh no more than `most` together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The entry, which is then the latest."""
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    def drop(self, unwanted: Callable[[K], bool]) -> None:
        """Forget the entries under these keys."""
        for key in [key for key in self._entries if unwanted(key)]:
            self._weight -= self._entries.pop(key)[1]

    def put(self, key: K, value: V, weight: int) -> None:
        """Keep an entry; older ones make room."""
        before = self._entries.pop(key, None)
        self._weight -= before[1] if before is not None else 0
        if weight > self._most:
            return
        self._entries[key] = (value, weight)
        self._weight += weight
        while self._weight > self._most:
            _, (_, oldest) = self._entries.popitem(last=False)
            self._weight -= oldest


def decode(result: Raw, kind: Any, check: str) -> Any:
    """The answer as a `kind`. Raises `Refuted` when it is something else."""
    try:
        return msgspec.json.decode(result, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refuted(check, "the answer has another form") from None
