"""The access log: one line for each request, written in batches.

The gate and the fast path add lines; they are kept as bytes and written together a few times a second, because a write
for each request would cost more than answering it. In the console style lines go through the ordinary logger. What a
crash can lose is the last quarter of a second of lines.
"""

import asyncio
import sys
from datetime import UTC, datetime
from typing import Literal, Protocol

import msgspec
import structlog

from capstan.core.clock import Clock
from capstan.core.redact import redacted

log = structlog.get_logger("capstan.access")

_FLUSH_SECONDS = 0.25
_MOST_LINES = 10_000


class AccessLine(msgspec.Struct, frozen=True, gc=False):
    """What is said of one request. The path is without its query, which may hold a key."""

    request_id: str
    method: str
    path: str
    status: int
    milliseconds: float
    bytes: int
    units: int
    client: str
    account: str | None
    key: str | None


class _JsonLine(AccessLine, frozen=True, gc=False):
    timestamp: str
    event: str = "request"
    level: str = "info"
    logger: str = "capstan.access"


class Sink(Protocol):
    """Where lines go."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> None: ...


class AccessLog:
    """Collects lines and writes them."""

    def __init__(
        self, clock: Clock, *, enabled: bool, style: Literal["json", "console"], sink: Sink | None = None
    ) -> None:
        self._clock = clock
        self.enabled = enabled
        self._style = style
        self._sink = sink or sys.stderr.buffer
        self._lines: list[bytes] = []
        self._encoder = msgspec.json.Encoder()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, line: AccessLine) -> None:
        """Note one request."""
        if not self.enabled:
            return
        path = redacted(line.path)
        if self._style == "console":
            log.info("request", **{**msgspec.structs.asdict(line), "path": path})
            return
        moment = datetime.fromtimestamp(self._clock.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        fields = msgspec.structs.asdict(line)
        self._lines.append(self._encoder.encode(_JsonLine(**{**fields, "path": path}, timestamp=moment)))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)
        elif len(self._lines) >= _MOST_LINES:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lines:
            lines, self._lines = self._lines, []
            self._sink.write(b"\n".join(lines) + b"\n")
            self._sink.flush()
