"""Filters of nodes (`eth_newFilter` and its kin), which live on the upstream that made them.

Called by the RPC gateway instead of the pool for the methods in `FILTER_METHODS`. The caller is given an id of ours,
random and as long as geth's, and every later call goes to the upstream that has the filter, with that upstream's own
id. A filter belongs to its owner: for anyone else it does not exist. As on a node, a filter that is not asked for five
minutes is gone, and so is one whose upstream fails; the answer is then what nodes say, "filter not found", upon which
clients make a new one. A lost answer must end the filter, because the changes it carried cannot be had again.
"""

import secrets
from collections import OrderedDict
from typing import Any, Final

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.errors import EveryUpstreamFailed, NodeError, UpstreamFailure, UpstreamRefused
from capstan.chain.member import PooledUpstream
from capstan.chain.models import Attempt
from capstan.chain.pool import UpstreamPool
from capstan.chain.run import Repeat
from capstan.chain.selection import Needs
from capstan.core import jsonrpc
from capstan.core.clock import Clock

log = structlog.get_logger(__name__)

_CREATE: Final = frozenset({"eth_newFilter", "eth_newBlockFilter", "eth_newPendingTransactionFilter"})
_USE: Final = frozenset({"eth_getFilterChanges", "eth_getFilterLogs", "eth_uninstallFilter"})
FILTER_METHODS: Final = _CREATE | _USE
"""The methods that must go through a `FilterRouter`."""

# geth: eth/filters, deadline of 5 minutes.
_IDLE_SECONDS = 300.0
_SERVER_ERROR = -32000
_NOT_FOUND = "filter not found"
_LONGEST_ID = 66
_ID_BITS = 128
_FALSE = Raw(b"false")


class _Filter(msgspec.Struct):
    owner: str
    member: PooledUpstream
    # The upstream's own id, as JSON text.
    remote_id: bytes
    used_at: float


class _Filters:
    """The filters of one network, the one used longest ago first."""

    def __init__(self) -> None:
        self.by_id: OrderedDict[int, _Filter] = OrderedDict()
        self.per_owner: dict[str, int] = {}

    def add(self, number: int, entry: _Filter) -> None:
        self.by_id[number] = entry
        self.per_owner[entry.owner] = self.per_owner.get(entry.owner, 0) + 1

    def remove(self, number: int) -> None:
        entry = self.by_id.pop(number, None)
        if entry is None:
            return
        left = self.per_owner[entry.owner] - 1
        if left:
            self.per_owner[entry.owner] = left
        else:
            del self.per_owner[entry.owner]


class FilterRouter:
    """Makes filters and sends the calls about them where they belong. One serves all networks."""

    def __init__(self, clock: Clock, *, max_per_network: int = 10_000, max_per_owner: int = 1_000) -> None:
        self._clock = clock
        self._max_per_network = max_per_network
        self._max_per_owner = max_per_owner
        self._networks: dict[str, _Filters] = {}

    async def call(
        self,
        pool: UpstreamPool,
        owner: str,
        method: str,
        params: bytes,
        *,
        timeout: float | None = None,
        attempts: list[Attempt] | None = None,
    ) -> Raw:
        """The result of a filter method for this owner, as `UpstreamPool.call` would give it, and with its errors."""
        filters = self._networks.setdefault(pool.network, _Filters())
        self._drop_idle(filters)
        if method in _CREATE:
            return await self._create(filters, pool, owner, method, params, timeout, attempts)
        if method not in _USE:
            raise ValueError(f"{method} is not a filter method")
        number = _number_of(params)
        entry = filters.by_id.get(number)
        if entry is not None and entry.member not in pool.members:
            # The configuration was loaded again without that upstream.
            filters.remove(number)
            entry = None
        if entry is None or entry.owner != owner:
            # As geth does: uninstalling what is not there is no error.
            if method == "eth_uninstallFilter":
                return _FALSE
            raise _node_error(_SERVER_ERROR, _NOT_FOUND)
        return await self._use(filters, number, entry, pool, method, timeout, attempts)

    def count(self, network: str) -> int:
        """How many filters a network has, idle ones included that nobody has asked for since."""
        filters = self._networks.get(network)
        return 0 if filters is None else len(filters.by_id)

    async def _create(
        self,
        filters: _Filters,
        pool: UpstreamPool,
        owner: str,
        method: str,
        params: bytes,
        timeout: float | None,
        attempts: list[Attempt] | None,
    ) -> Raw:
        if filters.per_owner.get(owner, 0) >= self._max_per_owner or len(filters.by_id) >= self._max_per_network:
            raise _node_error(_SERVER_ERROR, "too many filters; uninstall those no longer needed")
        # A filter made twice does no harm: the one whose answer was lost expires on its node.
        run = pool.run(
            Needs(method, may_probe=False), params, timeout=timeout, repeat=Repeat.ELSEWHERE, attempts=attempts
        )
        remote_id = bytes(await run.answer())
        if run.answered_by is None or len(remote_id) > _LONGEST_ID + 2:
            raise EveryUpstreamFailed(f"An upstream of {pool.network} answered {method} with something else.")
        # The first digit is not zero, since clients may read the id as a number.
        number = secrets.randbits(_ID_BITS) | 1 << (_ID_BITS - 1)
        filters.add(number, _Filter(owner, run.answered_by, remote_id, self._clock.monotonic()))
        return Raw(msgspec.json.encode(hex(number)))

    async def _use(
        self,
        filters: _Filters,
        number: int,
        entry: _Filter,
        pool: UpstreamPool,
        method: str,
        timeout: float | None,
        attempts: list[Attempt] | None,
    ) -> Raw:
        entry.used_at = self._clock.monotonic()
        filters.by_id.move_to_end(number)
        if method == "eth_uninstallFilter":
            filters.remove(number)
        seconds = pool.deadline_seconds if timeout is None else timeout
        own_params = b"[" + entry.remote_id + b"]"
        try:
            return await entry.member.call(method, own_params, timeout=seconds, repeatable=False, attempts=attempts)
        except UpstreamRefused as refusal:
            # Not executed, so nothing is lost and the caller may ask again.
            raise EveryUpstreamFailed(
                f"The upstream of {pool.network} that has the filter refused the call."
            ) from refusal
        except UpstreamFailure as failure:
            log.info("filter.lost", network=pool.network, upstream=entry.member.name, reason=failure.reason)
            filters.remove(number)
            raise _node_error(_SERVER_ERROR, _NOT_FOUND) from failure
        except NodeError as error:
            if _NOT_FOUND in error.message.lower():
                filters.remove(number)
            raise

    def _drop_idle(self, filters: _Filters) -> None:
        """Forget what nobody asked for. Looks at no more filters than it forgets, and one."""
        oldest_allowed = self._clock.monotonic() - _IDLE_SECONDS
        while filters.by_id:
            number, entry = next(iter(filters.by_id.items()))
            if entry.used_at > oldest_allowed:
                return
            filters.remove(number)


def _number_of(params: bytes) -> int:
    """The id in the params, as a number; ids are compared as such. -1 for what cannot be one of ours."""
    arguments = msgspec.json.decode(params, type=list[Any])
    if not arguments:
        raise _node_error(jsonrpc.INVALID_PARAMS, "missing value for required argument 0")
    text = arguments[0]
    if not isinstance(text, str):
        raise _node_error(jsonrpc.INVALID_PARAMS, "invalid argument 0: a filter id is a string such as 0x1f")
    if not text.startswith("0x") or len(text) > _LONGEST_ID:
        return -1
    try:
        return int(text, 16)
    except ValueError:
        return -1


def _node_error(code: int, message: str) -> NodeError:
    """An error as the node would have sent it."""
    error = jsonrpc.ErrorObject(code, message)
    return NodeError(error, Raw(msgspec.json.encode({"code": code, "message": message})))
