"""The metrics of the transfer index: transfers written, logs skipped, and how the fetching of history goes.

The consumer and the backfill report here. Labels are bounded by the configuration. Without a registry the numbers are
kept but shown nowhere.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge

_NETWORK = ("network",)


class IndexMetrics:
    """Counters and gauges of all networks."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else CollectorRegistry()
        self.block = Gauge("capstan_index_block", "The last block in the transfer index.", _NETWORK, registry=registry)
        self.transfers = Counter(
            "capstan_index_transfers",
            "Transfers written to the index, by where they came from.",
            ("network", "source"),
            registry=registry,
        )
        self.removed = Counter(
            "capstan_index_transfers_removed",
            "Transfers taken back because their block left the chain.",
            _NETWORK,
            registry=registry,
        )
        self.malformed = Counter(
            "capstan_index_malformed_logs",
            "Logs with the name of a token event that could not be read, and were skipped.",
            _NETWORK,
            registry=registry,
        )
        self.subjects = Gauge(
            "capstan_index_backfill_subjects",
            "Holders and contracts whose history this process is fetching.",
            _NETWORK,
            registry=registry,
        )
        self.blocks = Counter(
            "capstan_index_backfill_blocks", "Blocks of history that were fetched.", _NETWORK, registry=registry
        )
        self.calls = Counter(
            "capstan_index_backfill_calls",
            "Calls to upstreams for history, by outcome.",
            ("network", "outcome"),
            registry=registry,
        )
        self.left = Gauge(
            "capstan_index_backfill_blocks_left",
            "Blocks of history that the subjects being fetched still need.",
            _NETWORK,
            registry=registry,
        )
