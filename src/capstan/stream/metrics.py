"""The metrics of durable streams: who leads, how far the cursor is, how long a block takes to be written.

The durable streams report here. Labels are bounded by the configuration.
"""

from prometheus_client import CollectorRegistry, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class DurableMetrics:
    """Gauges of all durable streams of this process."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else CollectorRegistry()
        labels = ("network", "role")
        self._cursor = Gauge("capstan_cursor_number", "The last block written.", labels, registry=registry)
        self._leading = Gauge("capstan_cursor_leading", "1 while this process leads.", labels, registry=registry)
        self._halted = Gauge(
            "capstan_cursor_halted",
            "1 while stopped because a final block would have to be taken back.",
            labels,
            registry=registry,
        )
        self._written = Histogram(
            "capstan_cursor_write_seconds",
            "Time of the transaction of one block.",
            labels,
            buckets=_SECONDS,
            registry=registry,
        )

    def cursor(self, network: str, role: str, number: int) -> None:
        """The cursor is at this block."""
        self._cursor.labels(network, role).set(number)

    def leading(self, network: str, role: str, leading: bool) -> None:
        """This process leads, or does not."""
        self._leading.labels(network, role).set(int(leading))

    def halted(self, network: str, role: str, halted: bool) -> None:
        """The stream has stopped, or goes on."""
        self._halted.labels(network, role).set(int(halted))

    def written(self, network: str, role: str, seconds: float) -> None:
        """A block was written."""
        self._written.labels(network, role).observe(seconds)
