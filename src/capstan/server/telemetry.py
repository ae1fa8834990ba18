"""The metrics of the HTTP server, kept as plain numbers and turned into Prometheus samples when they are asked for.

The gate and the fast path report each request here, so it must cost next to nothing. Labels are bounded: the route is
its template, never the path that was asked for.
"""

from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


class Series:
    """One line of the counts, held by whoever adds to it often."""

    def __init__(
        self,
        counts: dict[tuple[str, str, int], int],
        seconds: dict[str, float],
        times: list[int],
        key: tuple[str, str, int],
    ) -> None:
        self._counts = counts
        self._seconds = seconds
        self._times = times
        self._key = key
        self._route = key[1]

    def add(self, seconds: float) -> None:
        """Count one answered request."""
        self._counts[self._key] = self._counts.get(self._key, 0) + 1
        self._times[bisect_left(_BUCKETS, seconds)] += 1
        self._seconds[self._route] += seconds


class Telemetry(Collector):
    """Counts and times of requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}
        # For each route: how many requests fell into each bucket, one more for those beyond the last.
        self._times: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        registry.register(self)

    def series(self, method: str, route: str, status: int) -> "Series":
        """Where requests of one kind are counted, for callers that count the same kind again and again."""
        times = self._times.setdefault(route, [0] * (len(_BUCKETS) + 1))
        self._seconds.setdefault(route, 0.0)
        return Series(self._counts, self._seconds, times, (method, route, status))

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        key = (method if method in _METHODS else "other", route, status)
        self._counts[key] = self._counts.get(key, 0) + 1
        times = self._times.get(route)
        if times is None:
            times = self._times[route] = [0] * (len(_BUCKETS) + 1)
            self._seconds[route] = 0.0
        times[bisect_left(_BUCKETS, seconds)] += 1
        self._seconds[route] += seconds

    def collect(self) -> Iterator[Metric]:
        """The samples, for a scrape."""
        requests = CounterMetricFamily(
            "capstan_http_requests", "HTTP requests answered.", labels=("method", "route", "status")
        )
        for (method, route, status), count in list(self._counts.items()):
            requests.add_metric((method, route, str(status)), count)
        yield requests
        times = HistogramMetricFamily("capstan_http_request_seconds", "Time to answer a request.", labels=("route",))
        for route, counts in list(self._times.items()):
            total = 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip((*_BUCKETS, float("inf")), counts, strict=True):
                total += count
                buckets.append(("+Inf" if bound == float("inf") else repr(bound), total))
            times.add_metric((route,), buckets=buckets, sum_value=self._seconds[route])
        yield times
