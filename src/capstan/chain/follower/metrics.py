"""The metrics of the canonical stream: how far behind it is, reorganisations, deltas, the cost of content, halts.

The followers report here. Labels are bounded by the configuration. Without a registry the numbers are kept but shown
nowhere.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from capstan.chain.follower.models import Demand

_DEPTHS = (1, 2, 3, 5, 8, 16, 32, 64, 128, 256)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class StreamMetrics:
    """Gauges and counters of all networks."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else CollectorRegistry()
        self._lag_blocks = Gauge(
            "capstan_stream_lag_blocks",
            "Blocks between the announced head and the last block of the stream.",
            ("network",),
            registry=registry,
        )
        self._lag_seconds = Gauge(
            "capstan_stream_lag_seconds",
            "Seconds since the stream was last at the announced head.",
            ("network",),
            registry=registry,
        )
        self._halted = Gauge(
            "capstan_stream_halted",
            "1 while something of the network is stopped because a final block would have to be taken back.",
            ("network",),
            registry=registry,
        )
        self._deltas = Counter(
            "capstan_stream_deltas", "Blocks applied and reverted.", ("network", "kind"), registry=registry
        )
        self._reorgs = Histogram(
            "capstan_stream_reorg_depth",
            "Reorganisations in the stream, by how many blocks were reverted in a row.",
            ("network",),
            buckets=_DEPTHS,
            registry=registry,
        )
        self._content = Histogram(
            "capstan_stream_content_seconds",
            "Time to fetch one block, by what was demanded of it.",
            ("network", "demand"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._incomplete = Counter(
            "capstan_stream_incomplete_answers",
            "Answers about a block that were refused because they were incomplete or belonged to another block.",
            ("network",),
            registry=registry,
        )

    def watch(
        self, network: str, *, blocks: Callable[[], float], seconds: Callable[[], float], halted: Callable[[], bool]
    ) -> None:
        """Ask for the lag, and whether the network is stopped, whenever the metrics are read."""
        self._lag_blocks.labels(network).set_function(blocks)
        self._lag_seconds.labels(network).set_function(seconds)
        self._halted.labels(network).set_function(lambda: float(halted()))

    def applied(self, network: str) -> None:
        """A block was applied."""
        self._deltas.labels(network, "applied").inc()

    def reverted(self, network: str) -> None:
        """A block was taken back."""
        self._deltas.labels(network, "reverted").inc()

    def reorg(self, network: str, depth: int) -> None:
        """So many blocks were taken back in a row."""
        self._reorgs.labels(network).observe(depth)

    def fetched(self, network: str, demand: Demand, seconds: float) -> None:
        """A block has come."""
        self._content.labels(network, demand.name.lower()).observe(seconds)

    def incomplete(self, network: str) -> None:
        """An answer was refused."""
        self._incomplete.labels(network).inc()

    def drop_network(self, network: str) -> None:
        """Forget a network that is no longer served."""
        for metric in (self._lag_blocks, self._lag_seconds, self._halted, self._reorgs, self._incomplete):
            _remove(metric, network)
        for kind in ("applied", "reverted"):
            _remove(self._deltas, network, kind)
        for demand in Demand:
            _remove(self._content, network, demand.name.lower())


def _remove(metric: Gauge | Counter | Histogram, *labels: str) -> None:
    try:
        metric.remove(*labels)
    except KeyError:
        # It never had a value.
        return
