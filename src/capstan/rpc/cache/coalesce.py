"""Equal reads that are under way at the same time become one upstream call.

Called by `gateway`. The call runs in a task of its own, so that it goes on when the one who asked first hangs up while
others wait; when nobody waits any more it is cancelled. When it ends without an answer because its time was over, only
the one who made it is told so: of the others the first makes the call anew with its own time, and the rest go on
waiting, for that one. Every other failure is an answer for all. What a call means is not known here.

Whoever makes a call without a task `lead`s a flight of its own accord: those who ask the same meanwhile wait for it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from capstan.chain.errors import DeadlinePassed, UpstreamTimeoutError

T = TypeVar("T")
Make: TypeAlias = Callable[[], Coroutine[Any, Any, T]]

DEFAULT_MAX_FLIGHTS = 10_000
DEFAULT_MAX_WAITERS = 10_000

# The time of one caller was over. That says nothing about the next, who may have more left.
_OUT_OF_TIME = (TimeoutError, DeadlinePassed, UpstreamTimeoutError)


# Deadlines are kept to this many seconds. A timer for each call would cost more than the call's other parts together.
_TICK_SECONDS = 0.05


class Flight(msgspec.Struct, Generic[T], eq=False):
    """One call under way, and those who wait for it, in the order they came."""

    key: Hashable
    # Whose call it is. May have gone away since. None while the one who leads makes the call without a task.
    owner: asyncio.Future[T] | None = None
    task: asyncio.Task[None] | None = None
    waiters: dict[asyncio.Future[T], Make[T]] = {}


class Coalescer(Generic[T]):
    """Calls under way, by key. Bounded: beyond the bounds every caller makes its own call."""

    def __init__(self, *, max_flights: int = DEFAULT_MAX_FLIGHTS, max_waiters: int = DEFAULT_MAX_WAITERS) -> None:
        self._max_flights = max_flights
        self._max_waiters = max_waiters
        self._flights: dict[Hashable, Flight[T]] = {}
        self._deadlines = _Deadlines()

    def __len__(self) -> int:
        return len(self._flights)

    def lead(self, key: Hashable) -> Flight[T] | None:
        """Take the lead of a call that the caller makes itself. None when an equal one is under way, or too many are.

        One of `land`, `run` with this flight, or `abandon` must follow. Until then others who ask the same wait.
        """
        if key in self._flights or len(self._flights) >= self._max_flights:
            return None
        flight: Flight[T] = Flight(key)
        self._flights[key] = flight
        return flight

    def land(self, flight: Flight[T], result: T) -> None:
        """The call of the one who leads has this result: tell all who wait for it."""
        flights, key = self._flights, flight.key
        if flights.get(key) is flight:
            del flights[key]
        for future in flight.waiters:
            if not future.done():
                future.set_result(result)

    def abandon(self, flight: Flight[T]) -> None:
        """The one who leads has given up: the first of those who wait makes the call."""
        following = self._next(flight)
        if following is None or self._flights.get(flight.key) is not flight:
            self._remove(flight.key, flight)
        else:
            flight.task = asyncio.get_running_loop().create_task(self._fly(flight.key, flight, following))

    async def run(
        self, key: Hashable, make: Make[T], *, timeout: float, led: Flight[T] | None = None
    ) -> tuple[T, bool]:
        """The result of `make`, or of an equal call under way; the second value tells whether it was another's.

        Raises `TimeoutError` after about `timeout` seconds. `make` may be called late, when another's call ran out of
        time: it must look at the time that is left then. `led` is the flight that the caller leads already.
        """
        flight = self._flights.get(key)
        # A flight that is led is gone if the coalescer was closed meanwhile.
        if self._is_full(flight) if led is None else led is not flight:
            return await asyncio.wait_for(make(), timeout), False
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if flight is None:
            flight = self._flights[key] = Flight(key, future)
        elif led is not None:
            flight.owner = future
        if flight.owner is future:
            flight.task = loop.create_task(self._fly(key, flight, make))
        flight.waiters[future] = make
        tick = self._deadlines.add(loop, future, timeout)
        try:
            result = await future
            return result, flight.owner is not future
        finally:
            self._deadlines.discard(tick, future)
            self._leave(key, flight, future)

    async def close(self) -> None:
        """Cancel every call under way, and with it those who wait."""
        flights = tuple(self._flights.values())
        self._flights.clear()
        tasks = [flight.task for flight in flights if flight.task is not None]
        for flight in flights:
            for future in flight.waiters:
                future.cancel()
            flight.waiters.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._deadlines.close()

    async def _fly(self, key: Hashable, flight: Flight[T], make: Make[T]) -> None:
        """Make the call and tell everybody; as long as one runs out of time and others wait, make it for the next."""
        following: Make[T] | None = make
        while following is not None:
            try:
                result = await following()
            except asyncio.CancelledError:
                if not flight.waiters:
                    # Cancelled by us, because nobody waits.
                    raise
                if flight.owner is not None:
                    flight.owner.cancel()
                following = self._next(flight)
            except _OUT_OF_TIME as error:
                if flight.owner is not None:
                    _fail(flight.owner, error)
                following = self._next(flight)
            except Exception as error:
                self._remove(key, flight)
                for future in flight.waiters:
                    _fail(future, error)
                return
            else:
                self._remove(key, flight)
                for future in flight.waiters:
                    if not future.done():
                        future.set_result(result)
                return
        self._remove(key, flight)

    def _is_full(self, flight: Flight[T] | None) -> bool:
        if flight is None:
            return len(self._flights) >= self._max_flights
        return len(flight.waiters) >= self._max_waiters

    def _next(self, flight: Flight[T]) -> Make[T] | None:
        """The call of the first who still waits. Each one's is made at most once."""
        for future, make in flight.waiters.items():
            if not future.done():
                flight.owner = future
                return make
        return None

    def _leave(self, key: Hashable, flight: Flight[T], future: asyncio.Future[T]) -> None:
        flight.waiters.pop(future, None)
        if not flight.waiters and flight.task is not None and not flight.task.done():
            if self._flights.get(key) is flight:
                flight.task.cancel()
            self._remove(key, flight)

    def _remove(self, key: Hashable, flight: Flight[T]) -> None:
        # After everybody left, another flight may have the key.
        if self._flights.get(key) is flight:
            del self._flights[key]


class _Deadlines:
    """Futures by the tick at which they fail. One timer for all of them, which runs only while there are any."""

    def __init__(self) -> None:
        self._due: dict[int, set[asyncio.Future[Any]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], timeout: float) -> int:
        """Let the future fail after `timeout` seconds. The result goes to `discard`."""
        tick = int((loop.time() + timeout) / _TICK_SECONDS) + 1
        due = self._due.get(tick)
        if due is None:
            due = self._due[tick] = set()
        due.add(future)
        if self._timer is None:
            self._timer = loop.call_later(_TICK_SECONDS, self._sweep, loop)
        return tick

    def discard(self, tick: int, future: asyncio.Future[Any]) -> None:
        """Let the future be. Must be called for every one that was added."""
        due = self._due.get(tick)
        if due is not None:
            due.discard(future)
            if not due:
                del self._due[tick]

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = int(loop.time() / _TICK_SECONDS)
        # There are as many ticks as the longest timeout has, however many futures wait.
        for tick in [tick for tick in self._due if tick <= now]:
            for future in self._due[tick]:
                _fail(future, TimeoutError("no answer in time"))
        self._timer = loop.call_later(_TICK_SECONDS, self._sweep, loop) if self._due else None


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        # Looked at, so that nothing is logged if its waiter is cancelled before it wakes up.
        future.exception()
