"""Which network a request means, and whether its key may use it.

Every capability asks here before it touches a chain. Paths that name only a chain resolve by the key: a live key means
the chain's main network, a test key its default test network. A test key never reaches a main network.
"""

from collections.abc import Callable

from capstan.access.models import Caller
from capstan.catalogue.networks import Network, Networks
from capstan.core.errors import Forbidden, NotFound
from capstan.core.redact import quoted


class NetworkReach:
    """Resolves the networks of requests. `networks` is asked each time, because a reload may replace it."""

    def __init__(self, networks: Callable[[], Networks]) -> None:
        self._networks = networks

    def exact(self, caller: Caller, chain: str, network: str) -> Network:
        """The network of a path that names both halves."""
        networks = self._networks()
        # The key is checked first: what a test key may never use is refused whether or not it is served here.
        found = _allowed(caller, networks.describe(quoted(chain), quoted(network)))
        return networks.get(found.chain, found.network)

    def of_chain(self, caller: Caller, chain: str, network: str | None) -> Network:
        """The network of a path that names only the chain; `network` is the optional query parameter."""
        if network is not None:
            return self.exact(caller, chain, network)
        networks = self._networks()
        if caller.mode == "live":
            return networks.mainnet(quoted(chain))
        return _allowed(caller, networks.default_testnet(quoted(chain)))

    def names(self, caller: Caller, chain: str | None, network: str | None) -> tuple[str, ...]:
        """The networks the caller may know of, served or not: of one chain, of one name, of both, or all."""
        networks = self._networks()
        if chain is not None and network is not None:
            return (_allowed(caller, networks.describe(quoted(chain), quoted(network))).name,)
        known = tuple(networks) if chain is None else networks.for_chain(quoted(chain))
        if network is not None:
            known = tuple(entry for entry in known if entry.network == network)
            if not known:
                raise NotFound(f'no chain has a network "{quoted(network)}"')
        return tuple(entry.name for entry in known if caller.mode == "live" or entry.kind == "testnet")


def _allowed(caller: Caller, network: Network) -> Network:
    if caller.mode == "test" and network.kind == "mainnet":
        raise Forbidden(f"a svc_test_ key cannot use {network.name}; use a svc_live_ key")
    return network
