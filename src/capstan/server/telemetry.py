"""The metrics of the HTTP server.

The gate reports each request here. Labels are bounded: the route is its template, never the path that was asked for.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


class Telemetry:
    """Counters and histograms of requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "capstan_http_requests", "HTTP requests answered.", ("method", "route", "status"), registry=registry
        )
        self._seconds = Histogram(
            "capstan_http_request_seconds", "Time to answer a request.", ("route",), buckets=_BUCKETS, registry=registry
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        known = method if method in _METHODS else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
