"""The gas prices of one network, made anew with every block of its stream.

Made by the gas price service when somebody asks about the network, and asleep again when nobody has for a while. A
block of the stream changes block number and base fee at once; the tips in it are asked of a node, once for each block.
Requests read what was made and ask nobody. What cannot be vouched for is not told: when the stream is stopped or
behind, or no node answers, there are no prices but an error that says so.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog
from msgspec import UNSET

from capstan.catalogue.networks import DataFee
from capstan.chain.errors import ChainError, NodeError
from capstan.chain.follower.follower import Follower
from capstan.chain.follower.models import Applied, Delta, Demand
from capstan.chain.heads.tracker import HeadTracker
from capstan.chain.registry import Network
from capstan.core.clock import Clock, iso, utc
from capstan.core.decimals import wei_to_gwei
from capstan.core.errors import ApiError, Unavailable, UpstreamError
from capstan.core.hexes import parse_quantity
from capstan.gas.asking import FeeQuestions
from capstan.gas.estimates import Offer, Offers, offers_with_gas_price, offers_with_tips
from capstan.gas.models import GasEstimate, GasEstimates, GasPrices
from capstan.gas.window import FeeWindow, Head, OtherBranch

log = structlog.get_logger(__name__)

_IDLE_SECONDS = 120.0
_RETRY_SECONDS = 0.5
# A chain without new blocks is looked at so often: its tips may change all the same.
_LOOK_SECONDS = 30.0
# How far prices may be behind before they are not told any more: so many blocks, at least so many seconds.
_BEHIND_BLOCKS = 5
_BEHIND_SECONDS = 15.0
# The block time is taken from so many headers at least; with fewer it is what the network is known for.
_LEAST_HEADERS = 8
_LONGEST_BLOCK_MS = 600_000


class _Header(msgspec.Struct, frozen=True, rename="camel"):
    gas_used: str = "0x0"
    gas_limit: str = "0x0"
    base_fee_per_gas: str | None = None


class Market:
    """The prices of one network. `prices` wakes it; `close` at the end."""

    def __init__(
        self, follower: Follower, tracker: HeadTracker, clock: Clock, data_fee: Callable[[str], DataFee]
    ) -> None:
        self.follower = follower
        self._tracker = tracker
        self._clock = clock
        self._data_fee = data_fee
        self._questions = FeeQuestions(clock)
        self._network: Network
        self._task: asyncio.Task[None] | None = None
        self._asked_at = float("-inf")
        self._reset()

    async def prices(self, network: Network) -> GasPrices:
        """The prices now. Raises `Unavailable` when they are not known, and the failures of the pool at the start."""
        self._network = network
        self._asked_at = self._clock.monotonic()
        if self._task is None:
            self._reset()
            self._task = asyncio.create_task(self._run(), name=f"gas prices of {network.name}")
        while self._prices is None:
            reading = self._reading
            if self._failure is not None:
                # Nobody has to wait for the pause after a failure.
                self._wake.set()
            await reading.wait()
            if self._prices is None:
                raise self._failure or Unavailable(f"The gas prices of {network.name} are not followed any more.")
        self._vouch(self._prices)
        return self._prices

    async def close(self) -> None:
        """Stop. Whoever waits is told that there are no prices."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._reading.set()

    def _reset(self) -> None:
        self._window = FeeWindow()
        self._prices: GasPrices | None = None
        self._made_at = float("-inf")
        self._suggested = 0
        self._failure: ApiError | None = None
        self._wake = asyncio.Event()
        # Set when the reading under way has ended, one way or the other.
        self._reading = asyncio.Event()

    def _vouch(self, prices: GasPrices) -> None:
        """Raise `Unavailable` unless these are the prices of the chain as it is."""
        name, head = self._network.name, self._tracker.number
        halts = self.follower.condition.halts
        if halts:
            reason = "; ".join(dict.fromkeys(halts.values()))
            raise Unavailable(
                f"The gas prices of {name} are not known: its stream is stopped: {reason}", retry_after=30
            )
        if self._tracker.able and head is not None and head <= prices.block_number:
            return
        age = self._clock.monotonic() - self._made_at
        if age > max(_BEHIND_SECONDS, _BEHIND_BLOCKS * self._block_ms() / 1000):
            reason = "its nodes do not answer"
            if self._tracker.able:
                reason = f"the chain is at block {head}, and what is known is from block {prices.block_number}"
            raise Unavailable(f"The gas prices of {name} are not known: {reason}", retry_after=5)

    # --- the stream

    async def _run(self) -> None:
        unsubscribe = self.follower.subscribe(self._take, Demand.HEADERS)
        try:
            while self._clock.monotonic() - self._asked_at < _IDLE_SECONDS:
                self._wake.clear()
                pause = _LOOK_SECONDS if await self._read() else _RETRY_SECONDS
                try:
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            unsubscribe()
            if self._task is asyncio.current_task():
                self._task = None
            self._reading.set()

    def _take(self, delta: Delta) -> None:
        """A block of the stream. What it says itself counts at once."""
        block = delta.block
        if isinstance(delta, Applied):
            header = msgspec.json.decode(block.header, type=_Header)
            figures = (_wei(header.base_fee_per_gas), _wei(header.gas_used), _wei(header.gas_limit))
            self._window.apply(Head(block.number, *figures))
        else:
            self._window.revert(block.number)
        if self._prices is not None and self._window.rows:
            self._publish_window()
        self._wake.set()

    # --- the nodes

    async def _read(self) -> bool:
        """Learn what is not known yet; false when that failed."""
        reading = self._reading
        try:
            await self._learn()
            self._failure = None
        except OtherBranch as error:
            # The stream will come to the same branch, or the node will.
            log.info("gas.other_branch", network=self._network.name, reason=str(error))
            self._failure = UpstreamError(f"The nodes of {self._network.name} do not agree about the last block.")
        except ApiError as error:
            self._failure = error
        except (ChainError, NodeError):
            self._failure = UpstreamError(f"The nodes of {self._network.name} do not answer questions about gas.")
        except ValueError:
            self._failure = UpstreamError(
                f"A node of {self._network.name} answered a question about gas with nonsense."
            )
        finally:
            self._reading = asyncio.Event()
            reading.set()
        return self._failure is None

    async def _learn(self) -> None:
        window, network = self._window, self._network
        count = max(1, window.missing)
        try:
            history = await self._questions.history(network, window.number, count)
        except NodeError:
            if network.spec.eip1559 and window.rows:
                raise
            history = None
        if history is None:
            number, base_fee, price = await self._questions.gas_price(network)
            self._publish(number, base_fee, offers_with_gas_price(price))
            return
        window.learn(history)
        if all(row.taken is None for row in window.rows):
            self._suggested = await self._questions.suggested_tip(network)
        self._publish_window()

    # --- the result

    def _publish_window(self) -> None:
        next_fee = self._window.next_base_fee
        if next_fee is not None and self._window.number is not None:
            offers = offers_with_tips(next_fee, self._window.rows, self._suggested)
            self._publish(self._window.number, self._window.base_fee, offers)

    def _publish(self, number: int, base_fee: int, offers: Offers) -> None:
        milliseconds = self._block_ms()
        slow, standard, fast = (_estimate(offer, milliseconds) for offer in offers)
        self._made_at, charge = self._clock.monotonic(), self._data_fee(self._network.name)
        self._prices = GasPrices(
            chain=self._network.spec.chain,
            block_number=number,
            base_fee_gwei=wei_to_gwei(base_fee),
            estimates=GasEstimates(slow, standard, fast),
            updated_at=iso(utc(self._clock)),
            data_fee=UNSET if charge == "none" else charge,
        )

    def _block_ms(self) -> int:
        """The time between blocks, by the headers that are known."""
        chain, usual = self._tracker.chain, self._tracker.spec.block_time_ms
        latest, oldest = (None, None) if chain is None else (chain.latest, chain.oldest)
        if latest is None or oldest is None or latest.number - oldest.number < _LEAST_HEADERS:
            return usual
        measured = 1000 * (latest.timestamp - oldest.timestamp) // (latest.number - oldest.number)
        return min(max(measured, 1), _LONGEST_BLOCK_MS)


def _estimate(offer: Offer, block_time_ms: int) -> GasEstimate:
    return GasEstimate(
        max_fee_gwei=wei_to_gwei(offer.max_fee),
        max_priority_fee_gwei=wei_to_gwei(offer.max_priority_fee),
        estimated_seconds=max(1, -(-offer.blocks * block_time_ms // 1000)),
    )


def _wei(quantity: str | None) -> int:
    return 0 if quantity is None else parse_quantity(quantity, lenient=True)
