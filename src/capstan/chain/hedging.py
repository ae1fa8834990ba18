"""Asks a second upstream when the first takes unusually long, and takes whichever answers first.

Used by a `Run` for reads. The first call stays in the caller's own task, and one timer looks after all calls of a pool,
so a call that is answered in time costs neither a task nor a timer. When the second upstream wins, the first call is
cancelled the way `asyncio.timeout` does it: by cancelling the task it runs in, and taking that cancellation back here.
A cancellation from outside passes through.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from capstan.chain.errors import NodeError, NodeUnable

T = TypeVar("T")


class Watched(Protocol):
    """A call that may need a second upstream."""

    def begin_second(self) -> None:
        """The delay is over."""
        ...


class HedgeWatch:
    """The calls of a pool that may need a second upstream. Looks at them every few milliseconds while there are any."""

    _SECONDS = 0.01

    def __init__(self) -> None:
        self._waiting: dict[Watched, float] = {}
        self._running = False

    def add(self, hedge: Watched, delay: float) -> None:
        """Begin the second call of this one after the delay."""
        loop = asyncio.get_running_loop()
        self._waiting[hedge] = loop.time() + delay
        if not self._running:
            self._running = True
            loop.call_later(self._SECONDS, self._look, loop)

    def remove(self, hedge: Watched) -> None:
        """It needs no second call any more."""
        self._waiting.pop(hedge, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for hedge in [hedge for hedge, due in self._waiting.items() if due <= now]:
            self._waiting.pop(hedge, None)
            hedge.begin_second()
        self._running = bool(self._waiting)
        if self._running:
            loop.call_later(self._SECONDS, self._look, loop)


class Hedge(Generic[T]):
    """One call with a second one in reserve. Used once.

    `start_second` is called when `delay` seconds have passed without an answer. It returns the second call, or None if
    there shall be none yet; then it is asked again, at growing intervals.
    """

    __slots__ = (
        "_caller",
        "_cancelled_before",
        "_delay",
        "_first_is_running",
        "_second",
        "_start_second",
        "_watch",
        "second_won",
    )

    def __init__(
        self, watch: HedgeWatch, delay: float, start_second: Callable[[], Coroutine[Any, Any, T] | None]
    ) -> None:
        self._watch = watch
        self._delay = delay
        self._start_second = start_second
        self._second: asyncio.Task[T] | None = None
        self._caller: asyncio.Task[Any] | None = None
        self._cancelled_before = 0
        self._first_is_running = False
        # Whether we cancelled the caller's task because the second call has the answer.
        self.second_won = False

    async def answer(self, first: Coroutine[Any, Any, T], *, due: bool = False) -> T:
        """The answer of whichever call has one first. When neither has, the failure of the one that ended last.

        `due` says that the delay is already over.
        """
        caller = asyncio.current_task()
        assert caller is not None, "called outside of a task"
        self._caller, self._cancelled_before = caller, caller.cancelling()
        self._first_is_running = True
        if due:
            self.begin_second()
        else:
            self._watch.add(self, self._delay)
        try:
            result = await first
            self._take_back(caller)
            return result
        except asyncio.CancelledError:
            self._first_is_running = False
            if not self.second_won or caller.uncancel() > self._cancelled_before or self._second is None:
                raise
            return self._second.result()
        except Exception as error:
            self._first_is_running = False
            self._take_back(caller)
            if self._second is None or _is_answer(error):
                raise
            return await self._second
        finally:
            self._first_is_running = False
            self._watch.remove(self)
            if self._second is not None and not self._second.done():
                self._second.cancel()

    def _take_back(self, caller: asyncio.Task[Any]) -> None:
        """The first call ended by itself although it had just been cancelled: then nobody else shall see that."""
        if self.second_won:
            caller.uncancel()
            self.second_won = False

    def begin_second(self) -> None:
        """The delay is over. Called by the watch."""
        call = self._start_second()
        if call is None:
            self._delay *= 2
            self._watch.add(self, self._delay)
            return
        self._second = asyncio.create_task(call, name="hedge")
        self._second.add_done_callback(self._second_ended)

    def _second_ended(self, second: asyncio.Task[T]) -> None:
        if second.cancelled():
            return
        error = second.exception()
        if self._first_is_running and self._caller is not None and (error is None or _is_answer(error)):
            self.second_won = True
            self._caller.cancel()


def _is_answer(error: BaseException) -> bool:
    """Whether the error is the answer to the call, such as a revert, rather than a failure to answer."""
    return isinstance(error, NodeError) and not isinstance(error, NodeUnable)
