"""The upstreams of one network as one: asks them in order until one answers, within a single deadline.

Called by every capability through `Network.pool`. It decides which upstream comes next and what may be repeated. It
does not know what methods mean beyond that, does not cache, and does not judge results.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.errors import (
    ChainError,
    DeadlinePassed,
    EveryUpstreamFailed,
    NodeError,
    NodeUnable,
    UpstreamFailure,
    UpstreamTimeoutError,
    is_already_known,
    is_nonce_used,
)
from capstan.chain.health import UpstreamHealth
from capstan.chain.transactions import transaction_hash
from capstan.chain.upstream import Upstream
from capstan.core.clock import Clock
from capstan.core.hexes import parse_data, to_data

log = structlog.get_logger(__name__)

T = TypeVar("T")

# With less than this left, a further attempt cannot succeed.
_LEAST_ATTEMPT_SECONDS = 0.01


class Repeat(Enum):
    """What may be done again after a failure that leaves open whether the call was executed."""

    # Reads: ask again, anywhere.
    FREELY = "freely"
    # Signed transactions: another upstream may be given the same bytes, since a chain takes them once.
    ELSEWHERE = "elsewhere"
    # Everything else that changes something: never.
    NEVER = "never"


class PooledUpstream:
    """An upstream and its health. Kept over a reload when its configuration has not changed."""

    def __init__(self, upstream: Upstream, clock: Clock) -> None:
        self.upstream = upstream
        self.health = UpstreamHealth(clock)

    @property
    def name(self) -> str:
        """The upstream's name in the configuration."""
        return self.upstream.name


class UpstreamPool:
    """The upstreams of one network, in order of preference."""

    def __init__(
        self, network: str, members: Sequence[PooledUpstream], *, deadline_seconds: float, clock: Clock
    ) -> None:
        self.network = network
        self.members = tuple(members)
        self.deadline_seconds = deadline_seconds
        self._clock = clock

    async def call(
        self, method: str, params: bytes, *, timeout: float | None = None, repeat: Repeat = Repeat.FREELY
    ) -> Raw:
        """The result of a call as JSON text; `params` is a JSON array.

        Raises `NodeError` for the node's own error, `EveryUpstreamFailed` or `DeadlinePassed` when there is no answer.
        """
        run = _Run(self, self._clock, repeat, self.deadline_seconds if timeout is None else timeout)
        for member in run.candidates():
            try:
                return await run.attempt(member, method, params)
            except NodeUnable as error:
                if repeat is Repeat.NEVER:
                    raise
                run.failures.append(error)
            except NodeError as error:
                # Said by a second upstream after the first one's answer was lost, this is the success we missed.
                arrived = await run.arrived_before(member, method, params, error)
                if arrived is None:
                    raise
                return arrived
            except UpstreamFailure as error:
                run.failures.append(error)
                if repeat is Repeat.NEVER and error.maybe_delivered:
                    break
        raise run.verdict()

    async def request(self, method: str, params: Sequence[object]) -> Any:
        """The decoded result of a read, for capabilities that need a few values and not bytes."""
        return await self.request_as(Any, method, params)

    async def request_as(self, kind: type[T], method: str, params: Sequence[object]) -> T:
        """The result of a read, decoded and checked to be a `kind`."""
        result = await self.call(method, msgspec.json.encode(params))
        try:
            return msgspec.json.decode(result, type=kind)
        except msgspec.DecodeError:
            log.warning("upstream.unexpected_result", network=self.network, method=method)
            raise EveryUpstreamFailed(f"An upstream of {self.network} answered {method} with something else.") from None


class _Run:
    """The attempts of one call: its deadline and what has failed so far."""

    def __init__(self, pool: UpstreamPool, clock: Clock, repeat: Repeat, timeout: float) -> None:
        self.failures: list[ChainError] = []
        self._pool = pool
        self._clock = clock
        self._repeat = repeat
        self._ends_at = clock.monotonic() + timeout
        self._untried = 0

    @property
    def maybe_delivered(self) -> bool:
        """Whether an upstream may have executed the call although it gave no usable answer."""
        return any(failure.maybe_delivered for failure in self.failures)

    def candidates(self) -> Iterator[PooledUpstream]:
        """The upstreams to try: in order, those at rest last, until the deadline."""
        members = sorted(self._pool.members, key=lambda member: member.health.resting)
        for position, member in enumerate(members):
            if self._remaining() < _LEAST_ATTEMPT_SECONDS:
                return
            self._untried = len(members) - position - 1
            yield member

    async def attempt(self, member: PooledUpstream, method: str, params: bytes) -> Raw:
        """One call to one upstream, with its effect on the upstream's health."""
        # An upstream that stalls must leave time for the next one.
        budget = self._remaining() / 2 if self._untried else self._remaining()
        member.health.attempt()
        try:
            result = await member.upstream.call(
                method, params, timeout=budget, repeatable=self._repeat is Repeat.FREELY
            )
        except NodeError:
            self._note_success(member)
            raise
        except UpstreamFailure as failure:
            log.debug("upstream.failure", network=self._pool.network, method=method, failure=str(failure))
            if member.health.failed():
                log.warning("upstream.resting", network=self._pool.network, upstream=member.name, reason=failure.reason)
            raise
        self._note_success(member)
        return result

    async def arrived_before(self, member: PooledUpstream, method: str, params: bytes, error: NodeError) -> Raw | None:
        """The result of a transaction whose first sending worked, if that is what `error`, to the second, means."""
        if not self.maybe_delivered or method != "eth_sendRawTransaction":
            return None
        if not is_already_known(error) and not is_nonce_used(error):
            return None
        try:
            transaction = _hash_of_transaction(params)
            if is_already_known(error):
                return transaction
            # The nonce is taken: by this very transaction, or by another one. The node can tell.
            question = b"[" + bytes(transaction) + b"]"
            known = await member.upstream.call("eth_getTransactionByHash", question, timeout=self._remaining())
        except (ChainError, ValueError):
            return None
        return None if bytes(known) == b"null" else transaction

    def verdict(self) -> Exception:
        """What the caller is told when no upstream answered."""
        for failure in self.failures:
            if isinstance(failure, NodeError):
                # Every node that could be asked is unable: then that is the answer, in the first one's words.
                return failure
        name = self._pool.network
        reasons = [str(failure) for failure in self.failures]
        log.warning("upstream.all_failed", network=name, failures=reasons)
        caution = ""
        if self._repeat is not Repeat.FREELY and self.maybe_delivered:
            caution = " The call may have taken effect all the same; look before sending it again."
        timed_out = all(isinstance(failure, UpstreamTimeoutError) for failure in self.failures)
        if timed_out or self._remaining() < _LEAST_ATTEMPT_SECONDS:
            return DeadlinePassed(f"No upstream of {name} answered in time.{caution}")
        return EveryUpstreamFailed(f"Every upstream of {name} failed.{caution}")

    def _remaining(self) -> float:
        return self._ends_at - self._clock.monotonic()

    def _note_success(self, member: PooledUpstream) -> None:
        if member.health.succeeded():
            log.info("upstream.recovered", network=self._pool.network, upstream=member.name)


def _hash_of_transaction(params: bytes) -> Raw:
    """The hash, as JSON, of the transaction in the params of eth_sendRawTransaction. Raises `ValueError`."""
    arguments = msgspec.json.decode(params, type=list[Any])
    if not arguments:
        raise ValueError("no transaction given")
    return Raw(msgspec.json.encode(to_data(transaction_hash(parse_data(arguments[0])))))
