"""The first attempt of a read, made without a task: sent at once, and its answer handed on when it arrives.

Begun by the pool for reads that nothing stands in the way of. Nearly all reads are answered by the first upstream they
are sent to; for these no coroutine has to run. Everything else is handed to a `Run`, which takes this attempt for its
first: when it failed, when the node answered with an error, and when it takes so long that another upstream should be
asked as well. An attempt has the same effects on all that is known of the upstream as `PooledUpstream.call` has.
"""

import asyncio
from typing import Protocol

from msgspec import Raw

from capstan.chain.errors import ChainError
from capstan.chain.hedging import HedgeWatch
from capstan.chain.member import PooledUpstream
from capstan.chain.upstream import Upstream
from capstan.chain.wire import Sending, WireError
from capstan.core.jsonrpc import plain_result

_OK = 200


class Maker(Protocol):
    """Who made a first attempt. Told one of the two, once, and never before the attempt was returned to it."""

    def answered(self, result: Raw) -> None:
        """The upstream gave a result. Must not raise."""
        ...

    def carry_on(self) -> None:
        """Something else than a prompt result: make a `Run` with this attempt. Must not raise."""
        ...


class FirstAttempt(Sending, eq=False):
    """One call to one upstream, under way."""

    member: PooledUpstream
    upstream: Upstream
    method: str
    started: float
    # None once it has been told: whatever comes then is kept for `outcome`.
    maker: Maker | None
    call_id: bytes
    # After how long a second upstream should be asked, None for never; and whether it took so long.
    hedge_delay: float | None = None
    hedge_is_due: bool = False
    # Whether the upstream has answered or failed, or we have given it up.
    done: bool = False
    _again: bool = False
    _result: Raw | None = None
    _error: ChainError | None = None
    _waiter: asyncio.Future[Raw] | None = None
    _watch: HedgeWatch | None = None

    @property
    def over(self) -> bool:
        return self.done

    def watch(self, watch: HedgeWatch, delay: float) -> None:
        """Carry on as a `Run` when there is no answer after the delay, since a second upstream may be faster."""
        self._watch = watch
        self.hedge_delay = delay
        watch.add(self, delay)

    def begin_second(self) -> None:
        """The delay is over. Called by the watch."""
        self._watch = None
        self.hedge_is_due = True
        self._hand_over()

    def succeed(self, status: int, body: bytes) -> None:
        if self.done:
            return
        result = plain_result(body, self.call_id) if status == _OK else None
        if result is None:
            try:
                result = self.upstream.judge(status, self.call_id, body)
            except ChainError as error:
                self._end_badly(error)
                return
        self.done = True
        if self._watch is not None:
            self._stop_watching()
        self.member.end_well(self.method, self.started)
        maker = self.maker
        if maker is None:
            self._result = result
            self._tell_waiter()
        else:
            self.maker = None
            maker.answered(result)

    def fail(self, error: WireError) -> None:
        if self.done:
            return
        if error.kind == "disconnect" and not self._again and asyncio.get_running_loop().time() < self.deadline:
            # Cut off without a word: a restart, perhaps. Once more, before the upstream counts as failed.
            self._again = True
            self.repeatable = False
            self.upstream.begin(self)
            return
        self._end_badly(self.upstream.failure(error))

    async def outcome(self) -> Raw:
        """The result, or the error of the upstream is raised. For the `Run` that carries on; called once."""
        if self._result is None and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                return await self._waiter
            except asyncio.CancelledError:
                self.give_up()
                raise
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def give_up(self) -> None:
        """Nobody wants the answer any more. Says nothing about the upstream."""
        if self.done:
            return
        self.done = True
        self.maker = None
        self._stop_watching()
        self.member.end(self.method, self.started, False, None, given_up=True)

    def _end_badly(self, error: ChainError) -> None:
        self.done = True
        self._error = error
        self._stop_watching()
        self.member.end(self.method, self.started, False, error)
        if self.maker is None:
            self._tell_waiter()
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        maker, self.maker = self.maker, None
        if maker is not None:
            maker.carry_on()

    def _tell_waiter(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._error is not None:
            waiter.set_exception(self._error)
        elif self._result is not None:
            waiter.set_result(self._result)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.remove(self)
            self._watch = None
