"""One network's followed head as its readers see it: the RPC gateway and its cache.

Made once for each network by the composition root. Everything is answered from memory; asking keeps the network awake.
"""

import asyncio

from capstan.chain.heads.latest import LatestHeads
from capstan.chain.heads.tracker import HeadTracker
from capstan.chain.registry import Network
from capstan.core.clock import Clock

# A head told longer ago than a block time, and a little for the asking, may have a successor.
_LEAST_SECONDS = 0.5
_MOST_SECONDS = 8.0


class NetworkHeads:
    """The head of one network."""

    def __init__(self, heads: LatestHeads, network: Network, clock: Clock) -> None:
        self._heads = heads
        self._network = network
        self._clock = clock
        self._fresh_seconds = min(_MOST_SECONDS, network.spec.block_time_ms / 1000) + _LEAST_SECONDS
        self._looking: asyncio.Task[None] | None = None
        # Looked up once: this object lives no longer than the network is configured so.
        self._followed: HeadTracker | None = None
        # When the network was last found asleep: what was told before is too old to be announced.
        self._woken_at = 0.0

    @property
    def latest_number(self) -> int | None:
        """The announced block, the slot on Solana. After a time without interest it may be old; see `is_fresh`."""
        tracker = self._followed
        if tracker is not None and not tracker.asleep:
            tracker.wanted = True
            return tracker.source.number
        return self._find_latest()

    def _find_latest(self) -> int | None:
        tracker = self._followed
        if tracker is None:
            tracker = self._followed = self._tracker()
            if tracker is None:
                # From now on the network is followed, if it is served.
                return self._heads.head(self._network)
        if tracker.asleep:
            # Asking wakes it, so this cannot be seen any more afterwards.
            self._woken_at = self._clock.monotonic()
        tracker.touch()
        return tracker.number

    @property
    def latest_hash(self) -> str | None:
        """The hash of the announced block, in lower case."""
        tracker = self._tracker()
        return None if tracker is None or tracker.latest is None else tracker.latest.hash.lower()

    @property
    def finalized_number(self) -> int | None:
        """The last block that cannot be reverted any more."""
        tracker = self._tracker()
        return None if tracker is None else tracker.finalized_number

    @property
    def safe_number(self) -> int | None:
        """The last block that is tagged safe, on Solana confirmed."""
        tracker = self._tracker()
        return None if tracker is None else tracker.safe_number

    @property
    def is_fresh(self) -> bool:
        """Whether an upstream told its head lately, so that ours may be announced without asking again."""
        told_at = max((member.head_at for member in self._network.pool.members), default=0.0)
        return told_at > self._woken_at and self._clock.monotonic() - told_at < self._fresh_seconds

    def hash_at(self, number: int) -> str | None:
        """The hash of the canonical block of that number, in lower case, if it is recent enough to be known."""
        tracker = self._tracker()
        if tracker is None or tracker.chain is None:
            return None
        found = tracker.chain.hash_at(number)
        return None if found is None else found.lower()

    def nudge(self) -> None:
        """There may be a newer head: look for it now, unless that is under way."""
        tracker = self._tracker()
        if tracker is not None and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(tracker.poll())

    def _tracker(self) -> HeadTracker | None:
        try:
            return self._heads.tracker(self._network.name)
        except KeyError:
            return None
