"""Asks the upstreams of a network to simulate operations on one of its entry points.

Used by estimation and by validation without a tracer. It knows the entry point's code, which never changes, and sends
the bytes that `userops.simulation` makes, bound to one block. It judges nothing.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from capstan.chain.calls.models import BlockRef
from capstan.chain.errors import EveryUpstreamFailed, NodeError
from capstan.chain.registry import Network
from capstan.core.hexes import parse_data, to_checksum_address, to_data, to_quantity
from capstan.userops.simulation import CALLER, EntryPointCode, code_overrides
from capstan.userops.versions import Version

# One account's part of a state override, as `eth_call` takes it: balance, nonce, code, state or stateDiff.
Override = Mapping[str, Any]
StateOverride = Mapping[bytes, Override]


class Simulator:
    """Simulations on one entry point."""

    def __init__(self, network: Callable[[], Network], version: Version, entry_point: bytes, chain_id: int) -> None:
        """`network` is asked each time: a reload may replace it."""
        self._network = network
        self.version = version
        self._address = entry_point
        self._chain_id = chain_id
        self._entry_point: EntryPointCode | None = None
        self._codes: dict[bytes, Raw] = {}
        self._lock = asyncio.Lock()

    @property
    def network(self) -> Network:
        """The network with its upstreams of now."""
        return self._network()

    async def entry_point(self) -> EntryPointCode:
        """The entry point with its code, asked for once. Raises the failures of the pool."""
        async with self._lock:
            if self._entry_point is None:
                code = await self._ask_code()
                self._entry_point = EntryPointCode(self.version, self._address, code, self._chain_id)
                found = code_overrides(self._entry_point)
                # Encoded once: they are long, and part of every question.
                self._codes = {address: Raw(msgspec.json.encode(code)) for address, code in found.items()}
            return self._entry_point

    async def run(self, data: bytes, block: BlockRef | None = None, extra: StateOverride | None = None) -> bytes:
        """What the simulation returns at a block, or at the latest. `extra` is laid over the state besides.

        Raises the failures of the pool, and `EveryUpstreamFailed` when the nodes do not take overrides.
        """
        entry_point = await self.entry_point()
        transaction = {"from": to_data(CALLER), "to": to_data(entry_point.address), "data": to_data(data)}
        overrides: dict[str, dict[str, Any]] = {to_data(address): dict(each) for address, each in (extra or {}).items()}
        for address, code in self._codes.items():
            overrides.setdefault(to_data(address), {})["code"] = code
        tag = "latest" if block is None else to_quantity(block.number)
        params = msgspec.json.encode([transaction, tag, overrides])
        needs = None if block is None else block.number
        try:
            result = await self.network.pool.call("eth_call", params, needs_block=needs)
            return parse_data(msgspec.json.decode(result, type=str))
        except NodeError as error:
            raise EveryUpstreamFailed(
                f"The nodes of {self.network.name} do not simulate operations: {error.message[:200]}"
            ) from error
        except ValueError:
            raise EveryUpstreamFailed(f"An upstream of {self.network.name} answered eth_call with nonsense.") from None

    async def _ask_code(self) -> bytes:
        try:
            answer = await self.network.pool.request_as(str, "eth_getCode", [to_data(self._address), "latest"])
            code = parse_data(answer)
        except (NodeError, ValueError) as error:
            raise EveryUpstreamFailed(f"No upstream of {self.network.name} tells the entry point's code.") from error
        if not code:
            place = to_checksum_address(self._address)
            raise EveryUpstreamFailed(f"There is no entry point at {place} on {self.network.name}.")
        return code
