"""The metrics of checked answers.

Counted by the guard and its parts. Labels are bounded: networks and methods that the configuration names, and the words
for the checks. Without a registry the numbers are kept but shown nowhere.
"""

from prometheus_client import CollectorRegistry, Counter


class IntegrityMetrics:
    """Counters of all networks."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else CollectorRegistry()

        def counter(name: str, text: str, label: str) -> Counter:
            return Counter(name, text, ("network", label), registry=registry)

        self._disagreements = counter(
            "capstan_integrity_disagreements", "Calls in which upstreams gave different answers.", "method"
        )
        self._undecided = counter(
            "capstan_integrity_undecided", "Calls in which not enough upstreams agreed.", "method"
        )
        self._proved = counter("capstan_integrity_proved", "Answers that passed a check against their block.", "check")
        self._refuted = counter(
            "capstan_integrity_refuted", "Answers that failed a check against their block.", "check"
        )
        self._unproved = counter(
            "capstan_integrity_unproved", "Answers passed on of which a part could not be checked.", "check"
        )

    def disagreed(self, network: str, method: str) -> None:
        """Upstreams gave different answers."""
        self._disagreements.labels(network, method).inc()

    def undecided(self, network: str, method: str) -> None:
        """There was no agreement, so the caller got an error."""
        self._undecided.labels(network, method).inc()

    def proved(self, network: str, check: str) -> None:
        """A check was passed."""
        self._proved.labels(network, check).inc()

    def refuted(self, network: str, check: str) -> None:
        """A check was failed."""
        self._refuted.labels(network, check).inc()

    def unproved(self, network: str, check: str) -> None:
        """A check could not be made."""
        self._unproved.labels(network, check).inc()
