"""The metrics of sharing: who leads, and where blocks come from.

Labels are bounded by the configuration. Without a registry the numbers are kept but shown nowhere.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge


class ShareMetrics:
    """Gauges and counters of all networks."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else CollectorRegistry()
        self._standing = Gauge(
            "capstan_stream_shared",
            "How heads are had where processes share them: 2 by leading, 1 from the leader, 0 by asking for oneself.",
            ("network",),
            registry=registry,
        )
        self._blocks = Counter(
            "capstan_stream_shared_blocks",
            "Recent blocks, by whether a colleague or an upstream gave them.",
            ("network", "source"),
            registry=registry,
        )

    def stands(self, network: str, *, leading: bool, led: bool) -> None:
        """The process leads, or is told, or neither."""
        self._standing.labels(network).set(2 if leading else int(led))

    def block(self, network: str, source: str) -> None:
        """A block has come."""
        self._blocks.labels(network, source).inc()

    def drop_network(self, network: str) -> None:
        """Forget a network that is no longer shared."""
        for metric, labels in (
            (self._standing, (network,)),
            (self._blocks, (network, "colleague")),
            (self._blocks, (network, "upstream")),
        ):
            try:
                metric.remove(*labels)
            except KeyError:
                continue
