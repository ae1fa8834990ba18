"""The metrics of all upstreams, read from what the pools know when Prometheus asks.

Registered by the chain registry. Calls pay nothing for it: they count in plain numbers, and those are put into the
form of Prometheus here. Only upstreams that are configured now are shown, so the labels are bounded.
"""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from capstan.chain.latency import HISTOGRAM_BOUNDS, Latencies
from capstan.chain.pool import UpstreamPool

_LABELS = ("network", "upstream")


class UpstreamCollector(Collector):
    """Metrics of the pools that `pools` returns."""

    def __init__(self, pools: Callable[[], Iterable[UpstreamPool]]) -> None:
        self._pools = pools

    def describe(self) -> Iterable[Metric]:
        """The names, without reading anything."""
        return _Families().all()

    def collect(self) -> Iterable[Metric]:
        """The present values. Called from the thread of the metrics server; reads copies, changes nothing."""
        families = _Families()
        for pool in tuple(self._pools()):
            best_head = pool.best_head
            families.hedges.add_metric((pool.network, "sent"), pool.hedges.sent)
            families.hedges.add_metric((pool.network, "won"), pool.hedges.won)
            for member in pool.members:
                labels = (pool.network, member.name)
                buckets, total = _histogram(member.latencies)
                families.seconds.add_metric(labels, buckets, total)
                for outcome, count in sorted(member.outcomes.copy().items()):
                    families.calls.add_metric((*labels, outcome), count)
                families.breaker.add_metric(labels, int(member.breaker.state))
                families.distrusted.add_metric(labels, int(member.trust.lost()))
                families.lies.add_metric(labels, member.trust.lies)
                families.in_flight.add_metric(labels, member.in_flight)
                families.errors.add_metric(labels, member.error_rate())
                head = member.head
                if head is not None and best_head is not None:
                    families.lag.add_metric(labels, max(0, best_head - head))
        return families.all()


class _Families:
    """Every metric, empty."""

    def __init__(self) -> None:
        self.seconds = HistogramMetricFamily(
            "capstan_upstream_seconds", "Time until an upstream answered.", labels=_LABELS
        )
        self.calls = CounterMetricFamily(
            "capstan_upstream_calls", "Calls to upstreams by outcome.", labels=(*_LABELS, "outcome")
        )
        self.breaker = GaugeMetricFamily(
            "capstan_upstream_breaker",
            "Whether an upstream is in rotation: 0 closed, 1 being tried, 2 open.",
            labels=_LABELS,
        )
        self.distrusted = GaugeMetricFamily(
            "capstan_upstream_distrusted", "1 while an upstream is passed over for a wrong answer.", labels=_LABELS
        )
        self.lies = CounterMetricFamily(
            "capstan_upstream_lies", "Answers of an upstream that were found to be wrong.", labels=_LABELS
        )
        self.in_flight = GaugeMetricFamily("capstan_upstream_in_flight", "Calls under way.", labels=_LABELS)
        self.errors = GaugeMetricFamily(
            "capstan_upstream_error_rate", "Share of recent calls that were not answered.", labels=_LABELS
        )
        self.lag = GaugeMetricFamily(
            "capstan_upstream_blocks_behind", "Blocks behind the best upstream of the network.", labels=_LABELS
        )
        self.hedges = CounterMetricFamily(
            "capstan_upstream_hedges",
            "Second upstreams asked early, and how often they won.",
            labels=("network", "event"),
        )

    def all(self) -> list[Metric]:
        return [
            self.seconds,
            self.calls,
            self.breaker,
            self.distrusted,
            self.lies,
            self.in_flight,
            self.errors,
            self.lag,
            self.hedges,
        ]


def _histogram(latencies: Latencies) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets, as Prometheus wants them, and the sum."""
    buckets: list[tuple[str, float]] = []
    cumulative = 0
    for bound, count in zip((*map(str, HISTOGRAM_BOUNDS), "+Inf"), tuple(latencies.histogram), strict=True):
        cumulative += count
        buckets.append((bound, float(cumulative)))
    return buckets, latencies.total_seconds
