"""What is known of the hosts of receivers: how many attempts are under way, and whether the host is dead.

Used by the deliverer. A host that gave no HTTP answer several times in a row gets no first attempts for a while; the
scheduled retries go on and find out when it is back. So a dead host costs little, and no schedule is late because of
it. A host that answers, with whatever status, is alive.
"""

import asyncio
from collections import OrderedDict
from functools import lru_cache

from yarl import URL

from capstan.core.clock import Clock

_FAILURES = 5
_FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 60.0
_MOST_HOSTS = 10_000


@lru_cache(_MOST_HOSTS)
def _origin(url: str) -> str:
    return str(URL(url).origin())


class Host:
    """One host and port."""

    def __init__(self, width: int) -> None:
        self.slots = asyncio.Semaphore(width)
        self.failures = 0
        self.closed_until = 0.0
        self.users = 0


class Hosts:
    """All hosts that were sent to lately."""

    def __init__(self, clock: Clock, *, width: int) -> None:
        self._clock = clock
        self._width = width
        self._hosts: OrderedDict[str, Host] = OrderedDict()

    def of(self, url: str) -> Host:
        """The host of an address."""
        name = _origin(url)
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host(self._width)
        self._hosts.move_to_end(name)
        while len(self._hosts) > _MOST_HOSTS:
            oldest = next(iter(self._hosts))
            if self._hosts[oldest].users:
                break
            del self._hosts[oldest]
        return host

    def pause(self, host: Host) -> float:
        """For how many seconds no first attempt is made there; 0 when it may be tried."""
        return max(0.0, host.closed_until - self._clock.monotonic())

    def answered(self, host: Host) -> None:
        """It gave an answer."""
        host.failures = 0
        host.closed_until = 0.0

    def failed(self, host: Host) -> None:
        """It gave none."""
        host.failures += 1
        if host.failures >= _FAILURES:
            pause = min(_FIRST_PAUSE * 2.0 ** min(host.failures - _FAILURES, 10), _LONGEST_PAUSE)
            host.closed_until = self._clock.monotonic() + pause
