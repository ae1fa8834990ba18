"""Reads the stakes of an operation's entities from the entry point.

Called by the service, at the same time as the trace is made, so that it costs no round trip of its own. Stakes of a
block are kept while it is the latest.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from capstan.chain.calls.models import BlockRef, call
from capstan.chain.calls.reader import StateReader
from capstan.chain.registry import Network
from capstan.userops.abi import Malformed, Reader

Result = TypeVar("Result")


class Stake(msgspec.Struct, frozen=True):
    """What an address has staked, in wei, and for how many seconds it is locked; and what it has deposited."""

    amount: int
    delay: int
    deposit: int


class StakeReader:
    """The stakes that one entry point knows of."""

    def __init__(self, network: Network, reader: StateReader, entry_point: bytes) -> None:
        self._network = network
        self._reader = reader
        self._entry_point = entry_point
        self._block = ""
        self._known: dict[bytes, Stake] = {}

    async def read(self, block: BlockRef, addresses: Iterable[bytes]) -> Mapping[bytes, Stake]:
        """The stakes at a block. Raises `BlockChanged` and what the upstreams raise."""
        if block.hash != self._block:
            self._block, self._known = block.hash, {}
        known, wanted = self._known, tuple(addresses)
        asked = [address for address in dict.fromkeys(wanted) if address not in known]
        if asked:
            calls = [call(self._entry_point, "getDepositInfo(address)", address) for address in asked]
            answers = await self._reader.read(self._network, block, calls)
            for address, answer in zip(asked, answers, strict=True):
                known[address] = _decode(answer)
        return {address: known[address] for address in wanted}

    async def beside(
        self, block: BlockRef, addresses: Iterable[bytes], work: Coroutine[Any, Any, Result]
    ) -> tuple[Mapping[bytes, Stake], Result]:
        """The stakes, read while something else is done. When either fails, the other is given up."""
        reading = asyncio.ensure_future(self.read(block, addresses))
        working = asyncio.ensure_future(work)
        try:
            return await reading, await working
        finally:
            for task in (reading, working):
                task.cancel()
            await asyncio.gather(reading, working, return_exceptions=True)


def _decode(answer: bytes | None) -> Stake:
    """deposit, staked, stake, unstakeDelaySec, withdrawTime: one word each in all versions."""
    try:
        reader = Reader(answer or b"")
        # A stake that is being withdrawn does not count any more.
        return Stake(reader.number(2) if reader.flag(1) else 0, reader.number(3), reader.number(0))
    except Malformed:
        return Stake(0, 0, 0)
