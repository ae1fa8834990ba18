"""The metrics of deliveries: what attempts brought, how long they took, how many are under way.

The deliverer reports here. Labels are bounded: the words for the outcomes.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from capstan.webhooks.delivery.models import Outcome

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0)


class DeliveryMetrics:
    """Numbers of the deliverer of this process. Without a registry nothing is published."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._attempts = Counter(
            "capstan_webhook_attempts",
            "Attempts to deliver an event: delivered, refused by the receiver, or unanswered.",
            ("outcome",),
            registry=registry,
        )
        self._seconds = Histogram(
            "capstan_webhook_attempt_seconds",
            "Time of one attempt, from connecting to the end of the answer.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._working = Gauge(
            "capstan_webhook_working", "Webhooks and retries that this process works on now.", registry=registry
        )
        self._stopped = Counter(
            "capstan_webhook_stopped",
            "Webhooks that were paused after their retries, or disabled by 410 Gone.",
            ("status",),
            registry=registry,
        )

    def attempted(self, outcome: Outcome) -> None:
        """An attempt ended."""
        unanswered = "unanswered" if outcome.status is None else "refused"
        self._attempts.labels("delivered" if outcome.accepted else unanswered).inc()
        self._seconds.observe(outcome.latency_ms / 1000)

    def working(self, count: int) -> None:
        """So much is under way."""
        self._working.set(count)

    def stopped(self, status: str) -> None:
        """A webhook is paused or disabled."""
        self._stopped.labels(status).inc()
