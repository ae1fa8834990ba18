"""The numbers of the bundler for Prometheus: what waits, what was sent, what the signers have."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from capstan.core.hexes import to_checksum_address


class BundlerMetrics:
    """Counts for all networks. Without a registry nothing is published."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._operations = Gauge(
            "capstan_bundler_operations",
            "Operations in the pool, by network and state.",
            ("network", "state"),
            registry=registry,
        )
        self._bundles = Counter(
            "capstan_bundler_bundles", "Bundles that were sent, by network.", ("network",), registry=registry
        )
        self._balance = Gauge(
            "capstan_bundler_signer_balance_ether",
            "What a signer has, as it was when last looked at.",
            ("network", "signer"),
            registry=registry,
        )

    def pool(self, network: str, pending: int, submitted: int) -> None:
        """How many operations wait, and how many are in a bundle."""
        self._operations.labels(network, "pending").set(pending)
        self._operations.labels(network, "submitted").set(submitted)

    def sent(self, network: str) -> None:
        """A bundle was sent."""
        self._bundles.labels(network).inc()

    def balance(self, network: str, signer: bytes, wei: int) -> None:
        """A signer has this much. A gauge is a float; it is for people, and nothing is computed with it."""
        self._balance.labels(network, to_checksum_address(signer)).set(wei / 10**18)
