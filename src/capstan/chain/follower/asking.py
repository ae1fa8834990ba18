"""Asks the upstreams of one network until one of them gives an answer that can be used.

Used by the block reader and by what reads the content of blocks. The best upstream is asked first, then each other one,
for some rounds. Which methods no upstream has is learned from their errors and remembered for a while. What an answer
means, and whether it is accepted, is the caller's business.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.errors import ChainError, NodeError, is_method_missing
from capstan.chain.follower.agreement import Doubts, Incomplete
from capstan.chain.follower.decoding import Unusable
from capstan.chain.follower.metrics import StreamMetrics
from capstan.chain.member import PooledUpstream
from capstan.chain.models import Attempt
from capstan.chain.pool import UpstreamPool
from capstan.core.clock import Clock
from capstan.core.errors import UpstreamError, UpstreamTimeout

log = structlog.get_logger(__name__)

T = TypeVar("T")

# A method that no upstream has is asked for again only after so long: one may have been upgraded.
_MISSING_SECONDS = 600.0
# Methods for which there is another way.
_OPTIONAL = frozenset({"eth_getBlockReceipts", "eth_getTransactionReceipt", "eth_getLogs"})


class ContentUnavailable(Exception):
    """No upstream has given the block as it must be. Trying later may work."""


class MethodMissing(Exception):
    """No upstream of the network has the method."""


class ReaderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of fetching. The defaults suit every network."""

    # One question, all upstreams that are tried included.
    call_timeout: float = 10.0
    # Times every upstream is asked before a block counts as unavailable, and the pause that grows between them.
    rounds: int = 4
    pause: float = 0.1
    # Blocks fetched at the same time, and receipts of one block where they must be fetched one by one.
    width: int = 8
    receipts_width: int = 16
    # Blocks that are kept for walks that need them a little later.
    kept: int = 32


class _Question(msgspec.Struct, frozen=True):
    """A call that is not made yet, and what will have been tried for it."""

    answer: Coroutine[Any, Any, Raw]
    attempts: list[Attempt]

    @property
    def upstream(self) -> str:
        """Whose answer it was; empty when that cannot be told, as when two have answered at the same time."""
        names = {attempt.upstream for attempt in self.attempts if attempt.outcome == "ok"}
        return names.pop() if len(names) == 1 else ""


class Asker:
    """The upstreams of one network, as somebody to ask."""

    def __init__(
        self,
        network: str,
        pool: Callable[[], UpstreamPool],
        clock: Clock,
        metrics: StreamMetrics,
        options: ReaderOptions,
    ) -> None:
        self.network = network
        self.options = options
        self._pool = pool
        self._clock = clock
        self._metrics = metrics
        self._missing: dict[str, float] = {}

    @property
    def members(self) -> Sequence[PooledUpstream]:
        """The upstreams."""
        return self._pool().members

    async def ask(
        self,
        method: str,
        params: bytes,
        number: int,
        accept: Callable[[Raw], T],
        *,
        rounds: int | None = None,
        doubts: Doubts | None = None,
    ) -> T:
        """The first answer that is accepted: of the best upstream, then of each other one, for some rounds.

        Answers that merely do not look whole are added to `doubts`. Raises `ContentUnavailable`, and `MethodMissing`.
        """
        if self._clock.monotonic() < self._missing.get(method, 0.0):
            raise MethodMissing(method)
        reason = "no upstream answered"
        for attempt in range(rounds or self.options.rounds):
            if attempt:
                await asyncio.sleep(self.options.pause * 2 ** (attempt - 1))
            for position, question in enumerate(self._questions(method, params, number)):
                try:
                    return accept(await question.answer)
                except Unusable as problem:
                    self._metrics.incomplete(self.network)
                    reason = str(problem)
                    if doubts is not None and isinstance(problem, Incomplete):
                        doubts.add(question.upstream, method, problem.content)
                except NodeError as error:
                    reason = str(error)
                    if position == 0 and is_method_missing(error) and self._lacks(method):
                        raise MethodMissing(method) from None
                except (ChainError, UpstreamError, UpstreamTimeout) as error:
                    reason = str(error)
        raise ContentUnavailable(f"block {number} of {self.network}: {method}: {reason}")

    def _questions(self, method: str, params: bytes, number: int) -> Iterator[_Question]:
        pool, timeout = self._pool(), self.options.call_timeout
        tried: list[Attempt] = []
        yield _Question(pool.call(method, params, timeout=timeout, needs_block=number, attempts=tried), tried)
        answered = {attempt.upstream for attempt in tried if attempt.outcome == "ok"}
        for member in pool.members:
            if member.name not in answered and member.in_rotation and member.allows(method):
                tried = []
                yield _Question(member.call(method, params, timeout=timeout, attempts=tried), tried)

    def _lacks(self, method: str) -> bool:
        """No upstream has the method: the pool has asked all of them before it says so."""
        if method not in _OPTIONAL:
            return False
        self._missing[method] = self._clock.monotonic() + _MISSING_SECONDS
        log.info("stream.method_missing", network=self.network, method=method)
        return True
