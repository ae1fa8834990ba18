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
    """Requests of one kind, held by whoever counts them often. What it holds is added to the rest when that is read."""

    __slots__ = ("count", "seconds", "times")

    def __init__(self, times: list[int]) -> None:
        self.count = 0
        self.seconds = 0.0
        # Those of the route.
        self.times = times

    def add(self, seconds: float) -> None:
        """Count one answered request."""
        self.count += 1
        self.seconds += seconds
        self.times[bisect_left(_BUCKETS, seconds)] += 1


class Telemetry(Collector):
    """Counts and times of requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}
        # For each route: how many requests fell into each bucket, one more for those beyond the last.
        self._times: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self._series: dict[tuple[str, str, int], Series] = {}
        registry.register(self)

    def series(self, method: str, route: str, status: int) -> "Series":
        """Where requests of one kind are counted, for callers that count the same kind again and again."""
        times = self._times.setdefault(route, [0] * (len(_BUCKETS) + 1))
        self._seconds.setdefault(route, 0.0)
        return self._series.setdefault((method, route, status), Series(times))

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
        counts, seconds = self._counts.copy(), self._seconds.copy()
        for key, series in list(self._series.items()):
            if series.count:
                counts[key] = counts.get(key, 0) + series.count
            seconds[key[1]] += series.seconds
        for (method, route, status), count in counts.items():
            requests.add_metric((method, route, str(status)), count)
        yield requests
        times = HistogramMetricFamily("capstan_http_request_seconds", "Time to answer a request.", labels=("route",))
        for route, in_buckets in list(self._times.items()):
            total = 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip((*_BUCKETS, float("inf")), in_buckets, strict=True):
                total += count
                buckets.append(("+Inf" if bound == float("inf") else repr(bound), total))
            times.add_metric((route,), buckets=buckets, sum_value=seconds.get(route, 0.0))
        yield times
