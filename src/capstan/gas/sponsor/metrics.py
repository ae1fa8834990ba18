"""What sponsorship tells the operator's metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from capstan.core.hexes import to_checksum_address


class SponsorMetrics:
    """Counts sponsorships, and shows what the paymasters have left."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self._sponsored = Counter("capstan_gas_sponsored", "Operations sponsored.", ["network"], registry=registry)
        self._refused = Counter(
            "capstan_gas_refused",
            "Operations that a rule of their policy refused.",
            ["network", "rule"],
            registry=registry,
        )
        self._deposit = Gauge(
            "capstan_paymaster_deposit_gwei",
            "What a paymaster has at its entry point.",
            ["network", "version"],
            registry=registry,
        )
        self._low = Gauge(
            "capstan_paymaster_low",
            "1 while a paymaster has less than gas.least_deposit_gwei.",
            ["network", "version"],
            registry=registry,
        )
        self._signer_low = Gauge(
            "capstan_bundler_signer_low",
            "1 while an account that sends bundles has less than bundler.low_balance_gwei.",
            ["network", "signer"],
            registry=registry,
        )

    def sponsored(self, network: str) -> None:
        """One operation was sponsored."""
        self._sponsored.labels(network).inc()

    def refused(self, network: str, rule: str) -> None:
        """One operation was refused."""
        self._refused.labels(network, rule).inc()

    def deposit(self, network: str, version: str, wei: int, *, low: bool) -> None:
        """What a paymaster has now."""
        self._deposit.labels(network, version).set(wei // 10**9)
        self._low.labels(network, version).set(int(low))

    def signer(self, network: str, address: bytes, *, low: bool) -> None:
        """Whether an account that sends bundles has little left."""
        self._signer_low.labels(network, to_checksum_address(address)).set(int(low))
