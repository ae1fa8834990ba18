"""A node whose blocks have fees, on a scripted chain: for markets that must see a chosen base fee or tip.

No real node can be made to follow another rule for its base fee, or to hold back one answer.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from capstan.chain.errors import NodeError
from capstan.core.jsonrpc import ErrorObject
from capstan.gas.estimates import next_base_fee
from tests.support.stream_nodes import Made, StreamNode

GWEI = 10**9
LIMIT = 30_000_000
_BEYOND_HEAD = ErrorObject(-32000, "request beyond head block")


class FeeNode(StreamNode):
    """A node whose blocks have fees: those of a chain that follows EIP-1559, unless told otherwise."""

    def __init__(self, chain: list[Made]) -> None:
        super().__init__("node", chain)
        self.gas_used: Callable[[Made], int] = lambda block: LIMIT // 2 + 1_000_000 * (block.number % 3 - 1)
        self.tip = GWEI
        self.first_fee = 10 * GWEI
        # What the chain adds to the base fee of EIP-1559 in each block.
        self.drift = 0
        self.pending_tip: int | None = None
        self.held: asyncio.Event | None = None
        self.changed: dict[str, Any] = {}

    def base_fee(self, number: int, chain: list[Made] | None = None) -> int:
        fee = self.first_fee
        for block in (chain or self.chain)[:number]:
            fee = next_base_fee(fee, self.gas_used(block), LIMIT) + self.drift if fee else 0
        return fee

    async def call(self, method: str, params: bytes, *, timeout: float, repeatable: bool = True) -> Any:
        if method == "eth_feeHistory" and self.held is not None:
            await self.held.wait()
        return await super().call(method, params, timeout=timeout, repeatable=repeatable)

    def _answer(self, method: str, arguments: Any) -> Any:
        if method in self.changed:
            return self.changed[method]
        if method == "eth_feeHistory":
            return self._history(*arguments)
        if method == "eth_maxPriorityFeePerGas":
            return hex(5 * GWEI)
        if method == "eth_gasPrice":
            return hex(20 * GWEI)
        answer = super()._answer(method, arguments)
        if isinstance(answer, dict) and "baseFeePerGas" in answer:
            block = self.known[answer["hash"]]
            path = [block]
            while path[0].parent is not None:
                path.insert(0, path[0].parent)
            answer |= {"gasUsed": hex(self.gas_used(block)), "gasLimit": hex(LIMIT)}
            answer |= {"baseFeePerGas": hex(self.base_fee(block.number, path))}
        return answer

    def _history(self, count: str, newest: str, percentiles: list[int]) -> Any:
        head = self.chain[-1].number
        if newest == "pending" and self.pending_tip is None:
            raise NodeError(ErrorObject(-32602, "pending is not offered"), msgspec.Raw(b"{}"))
        last = {"latest": head, "pending": head + 1}.get(newest) or int(newest, 16)
        if last > head + (newest == "pending"):
            raise NodeError(_BEYOND_HEAD, msgspec.Raw(b"{}"))
        numbers = list(range(max(0, last - int(count, 16) + 1), last + 1))
        tips = [self.pending_tip if number > head else self.tip for number in numbers]
        return {
            "oldestBlock": hex(numbers[0]),
            "baseFeePerGas": [hex(self.base_fee(number)) for number in [*numbers, last + 1]],
            "gasUsedRatio": [0.5 for _ in numbers],
            "reward": [[hex(tip or 0)] * len(percentiles) for tip in tips],
        }
