"""The metrics of head tracking: heads, lag of each upstream, reorganisations, faults.

The trackers report here. Labels are bounded by the configuration: networks and upstreams. Without a registry the
numbers are kept but shown nowhere.
"""

from collections.abc import Callable

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_DEPTHS = (1, 2, 3, 5, 8, 16, 32, 64, 128)


class Reorgs(msgspec.Struct, frozen=True):
    """Reorganisations since the process started: how many, and how many blocks the deepest took back."""

    count: int = 0
    deepest: int = 0


class HeadMetrics:
    """Gauges and counters of all networks."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._seen: dict[str, Reorgs] = {}
        registry = registry if registry is not None else CollectorRegistry()
        self._number = Gauge("capstan_head_number", "The announced block or slot.", ("network",), registry=registry)
        self._age = Gauge(
            "capstan_head_age_seconds", "Seconds since the announced head changed.", ("network",), registry=registry
        )
        self._lag = Gauge(
            "capstan_head_upstream_lag_blocks",
            "How many blocks the upstream is behind the announced head; negative when its head is not believed yet.",
            ("network", "upstream"),
            registry=registry,
        )
        self._failures = Counter(
            "capstan_head_poll_failures",
            "Questions about the head that an upstream did not answer.",
            ("network", "upstream"),
            registry=registry,
        )
        self._reorgs = Histogram(
            "capstan_head_reorg_depth",
            "Reorganisations, by how many blocks they took back.",
            ("network",),
            buckets=_DEPTHS,
            registry=registry,
        )
        self._restarts = Counter(
            "capstan_head_restarts",
            "How often the chain of headers had to begin anew because a gap was too wide to fill.",
            ("network",),
            registry=registry,
        )
        self._refused = Counter(
            "capstan_head_reorgs_below_finality",
            "Branches that were refused because they would take back a final block.",
            ("network",),
            registry=registry,
        )

    def watch_age(self, network: str, age: Callable[[], float]) -> None:
        """Ask for the age of the head whenever the metrics are read."""
        self._age.labels(network).set_function(age)

    def head(self, network: str, number: int) -> None:
        """The announced head has changed."""
        self._number.labels(network).set(number)

    def lag(self, network: str, upstream: str, blocks: int) -> None:
        """An upstream was heard."""
        self._lag.labels(network, upstream).set(blocks)

    def poll_failed(self, network: str, upstream: str) -> None:
        """An upstream did not say what its head is."""
        self._failures.labels(network, upstream).inc()

    def reorg(self, network: str, depth: int) -> None:
        """So many blocks were taken back."""
        self._reorgs.labels(network).observe(depth)
        before = self.seen_reorgs(network)
        self._seen[network] = Reorgs(before.count + 1, max(before.deepest, depth))

    def seen_reorgs(self, network: str) -> Reorgs:
        """What this process has seen of a network, for people."""
        return self._seen.get(network, Reorgs())

    def restarted(self, network: str) -> None:
        """The chain of headers began anew."""
        self._restarts.labels(network).inc()

    def refused(self, network: str) -> None:
        """A branch that leaves the chain below finality was not followed."""
        self._refused.labels(network).inc()

    def drop_upstream(self, network: str, upstream: str) -> None:
        """Forget an upstream that is no longer configured."""
        for metric in (self._lag, self._failures):
            _remove(metric, network, upstream)

    def drop_network(self, network: str) -> None:
        """Forget a network that is no longer served."""
        self._seen.pop(network, None)
        for metric in (self._number, self._age, self._reorgs, self._restarts, self._refused):
            _remove(metric, network)


def _remove(metric: Gauge | Counter | Histogram, *labels: str) -> None:
    try:
        metric.remove(*labels)
    except KeyError:
        # It never had a value.
        return
