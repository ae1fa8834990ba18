"""The numbers of the feed for Prometheus, read when they are asked for."""

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Counted(Protocol):
    """What is counted."""

    @property
    def sessions(self) -> Collection[object]: ...

    @property
    def pushed(self) -> int: ...

    def subscriptions(self) -> Iterable[tuple[str, str, int]]: ...


class FeedCollector(Collector):
    """Samples of one feed."""

    def __init__(self, feed: Counted) -> None:
        self._feed = feed

    def collect(self) -> Iterator[Metric]:
        """The samples, for a scrape."""
        yield GaugeMetricFamily("capstan_feed_sockets", "WebSockets open.", value=len(self._feed.sessions))
        yield CounterMetricFamily("capstan_feed_pushed", "Messages pushed to subscriptions.", value=self._feed.pushed)
        subscriptions = GaugeMetricFamily(
            "capstan_feed_subscriptions", "Subscriptions that are open.", labels=("network", "kind")
        )
        for network, kind, count in self._feed.subscriptions():
            subscriptions.add_metric((network, kind), count)
        yield subscriptions
