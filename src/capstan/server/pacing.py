"""uvicorn's HTTP protocol for clients that ask and do not read: what waits for them is bounded, and so is the time.

The base of our protocol. When a connection has more to send than its client takes, nothing more is read from the
client, and no further request of it is begun; so at most one answer waits beyond what the transport takes for enough.
Whoever sweeps the connections lets a client go that reads nothing for too long. Nothing is done here for each answer:
the transport says when it has enough.
"""

import asyncio
import math
from typing import Any, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

# In the place of a deadline, between two requests: the next sweep sets one. To read the clock for each request would
# cost more than a second of patience is worth.
AT_REST: Final = -1.0


class _Flow(FlowControl):
    """uvicorn's flow control, in which a client that does not read its answers is not listened to either."""

    def pause_reading(self) -> None:
        self.read_paused = True
        self._listen()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._listen()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._listen()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._listen()

    def _listen(self) -> None:
        if self._transport.is_closing():
            return
        if self.read_paused or self.write_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


class PacedProtocol(HttpToolsProtocol):
    """One client connection that goes on only as fast as its client reads."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # When the client must have gone on with its request, by the clock of the loop.
        self.deadline = math.inf
        # While the client does not read: since when, what waited for it when it was last looked at, by when it must
        # have read some of that, and the request whose turn comes then.
        self._choked_at = 0.0
        self._unread = -1
        self._read_by = math.inf
        self._held: tuple[RequestResponseCycle, Any] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn declares it
        super().connection_made(transport)
        self.flow = _Flow(transport)

    def pause_writing(self) -> None:
        """The transport calls this when the client does not read as fast as it asks."""
        self._choked_at = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """The transport calls this when the client has read. Its own time stood still while we did not listen."""
        super().resume_writing()
        if self.deadline != AT_REST:
            self.deadline += self.loop.time() - self._choked_at
        self._unread = -1
        held, self._held = self._held, None
        if held is not None and not self.transport.is_closing():
            super()._start_asgi_task(*held)

    def timeout_keep_alive_handler(self) -> None:
        """Uvicorn's timer calls this after an answer of its own. A client that still reads that answer is not idle."""
        if self.flow.write_paused:
            later = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = later
        else:
            super().timeout_keep_alive_handler()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Uvicorn calls this when it is a request's turn, which does not come before the answers so far are read."""
        if self.flow.write_paused:
            self._held = (cycle, app)
        else:
            super()._start_asgi_task(cycle, app)

    def check_progress(self, now: float, seconds: float) -> None:
        """Cut off a client that has read nothing for so long. To close would be to wait for it for ever."""
        unread = self.transport.get_write_buffer_size()
        if unread != self._unread:
            self._unread = unread
            self._read_by = now + seconds
        elif now >= self._read_by:
            self.transport.abort()
