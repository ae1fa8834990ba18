"""How the stream of one network goes: whether it is stopped, and for whom; reorganisations; how far it is behind.

Kept by the follower, which every consumer of the network has in common; durable streams note their halts here as well.
It feeds the metrics and what the service says of its readiness. It changes nothing in the stream.
"""

from collections.abc import Callable

import structlog

from capstan.chain.follower.metrics import StreamMetrics
from capstan.chain.follower.models import Delta, Reverted
from capstan.chain.follower.walk import Position
from capstan.chain.heads.tracker import HeadTracker
from capstan.core.clock import Clock

log = structlog.get_logger(__name__)

LIVE = "live"
"""The name of the live stream among those that can be stopped."""


class StreamCondition:
    """The condition of one network's stream. `position` is where the live stream stands; None: it does not run."""

    def __init__(
        self, tracker: HeadTracker, clock: Clock, metrics: StreamMetrics, position: Callable[[], Position | None]
    ) -> None:
        self._network = tracker.spec.name
        self._tracker = tracker
        self._clock = clock
        self._metrics = metrics
        self._position = position
        self._halts: dict[str, str] = {}
        self._reverted = 0
        self._behind_since: float | None = None
        metrics.watch(
            self._network, blocks=self._lag_blocks, seconds=self._lag_seconds, halted=lambda: bool(self.halts)
        )

    @property
    def live(self) -> str | None:
        """Why the live stream is stopped; None while it goes on."""
        return self._halts.get(LIVE)

    @property
    def halts(self) -> dict[str, str]:
        """Everything of this network that is stopped, and why, also while nobody has subscribed."""
        fault = self._tracker.fault
        return {**({} if fault is None else {"heads": fault}), **self._halts}

    def note_halt(self, name: str, reason: str | None) -> None:
        """The live stream, or the durable one of that role, is stopped, or goes on."""
        known = self._halts.get(name)
        if reason is None:
            self._halts.pop(name, None)
        else:
            self._halts[name] = reason
        if (known is None) == (reason is None):
            return
        if reason is not None:
            log.error("stream.halted", network=self._network, stream=name, reason=reason)
        else:
            log.warning("stream.goes_on", network=self._network, stream=name)

    def count(self, delta: Delta) -> None:
        """The live stream has taken this step."""
        if isinstance(delta, Reverted):
            self._reverted += 1
            self._metrics.reverted(self._network)
            return
        if self._reverted:
            self._metrics.reorg(self._network, self._reverted)
            self._reverted = 0
        self._metrics.applied(self._network)

    def behind(self) -> None:
        """The chain has changed; the live stream does not stand at its head any more."""
        if self._behind_since is None:
            self._behind_since = self._clock.monotonic()

    def caught_up(self) -> None:
        """The live stream stands at the head, or does not run."""
        self._behind_since = None

    def _lag_blocks(self) -> float:
        number, position = self._tracker.number, self._position()
        return 0.0 if number is None or position is None else float(max(0, number - position.number))

    def _lag_seconds(self) -> float:
        since = self._behind_since
        return 0.0 if since is None else max(0.0, self._clock.monotonic() - since)
