"""The `debug_bundler_*` methods of ERC-7769, for test suites. There only on networks with `debug_bundler`.

They look into the pool and change it by hand. Parameters are those that the public bundler test suite sends.
"""

from collections.abc import Sequence
from typing import Any

from capstan.bundler.calls import (
    SENDING,
    Method,
    Methods,
    address_argument,
    argument,
    entry_point_argument,
)
from capstan.bundler.entries import EntryPoint
from capstan.bundler.network import NetworkBundler
from capstan.bundler.refusals import INVALID_FIELDS, Refusal
from capstan.bundler.reputation import Reputation, Standing
from capstan.core.hexes import parse_address, parse_quantity, to_checksum_address, to_quantity
from capstan.core.jsonrpc import INTERNAL_ERROR
from capstan.userops.codec import codec_for
from capstan.userops.models import InvalidOperation

_OK = "ok"
_STANDINGS: dict[Standing, int] = {"ok": 0, "throttled": 1, "banned": 2}


async def _clear_state(bundler: NetworkBundler, _params: Sequence[Any]) -> str:
    async with bundler.pool.changing() as change:
        change.clear_operations()
        await change.clear_reputations()
    return _OK


async def _clear_mempool(bundler: NetworkBundler, _params: Sequence[Any]) -> str:
    async with bundler.pool.changing() as change:
        change.clear_operations()
    return _OK


async def _clear_reputation(bundler: NetworkBundler, _params: Sequence[Any]) -> str:
    async with bundler.pool.changing() as change:
        await change.clear_reputations()
    return _OK


async def _dump_mempool(bundler: NetworkBundler, params: Sequence[Any]) -> list[dict[str, Any]]:
    entry_point = _entry_point(bundler, params, 0)
    await bundler.pool.refresh()
    codec = codec_for(entry_point.version)
    entries = sorted(bundler.pool, key=lambda entry: entry.created_at)
    return [codec.render(entry.operation) for entry in entries if entry.entry_point == entry_point]


async def _send_bundle_now(bundler: NetworkBundler, _params: Sequence[Any]) -> str:
    try:
        await bundler.worker.bundle_now()
    except TimeoutError:
        raise Refusal(INTERNAL_ERROR, "the bundle was not mined in time") from None
    await bundler.pool.refresh()
    return _OK


async def _set_bundling_mode(bundler: NetworkBundler, params: Sequence[Any]) -> str:
    mode = argument(params, 0, "the mode")
    if mode not in ("auto", "manual"):
        raise Refusal(INVALID_FIELDS, 'the mode is "auto" or "manual"')
    bundler.worker.mode = mode
    bundler.pool.changed.set()
    return _OK


async def _set_reputation(bundler: NetworkBundler, params: Sequence[Any]) -> str:
    given = argument(params, 0, "the list of reputations")
    entry_point = _entry_point(bundler, params, 1)
    try:
        entries = [
            Reputation(parse_address(each["address"]), _count(each["opsSeen"]), _count(each["opsIncluded"]))
            for each in given
        ]
    except (KeyError, TypeError, ValueError):
        raise Refusal(INVALID_FIELDS, "a reputation has address, opsSeen and opsIncluded") from None
    async with bundler.pool.changing() as change:
        change.set_reputations(entry_point.address, entries)
        for each in entries:
            change.evict_banned(entry_point.address, each.address)
    return _OK


async def _dump_reputation(bundler: NetworkBundler, params: Sequence[Any]) -> list[dict[str, Any]]:
    entry_point = _entry_point(bundler, params, 0)
    await bundler.pool.refresh()
    book = bundler.pool.mempool(entry_point.address).reputation
    return [
        {
            "address": to_checksum_address(each.address),
            "opsSeen": to_quantity(each.seen),
            "opsIncluded": to_quantity(each.included),
            "status": _STANDINGS[book.standing(each.address)],
        }
        for each in book
    ]


async def _stake_status(bundler: NetworkBundler, params: Sequence[Any]) -> dict[str, Any]:
    address = address_argument(params, 0, "the address")
    entry_point = _entry_point(bundler, params, 1)
    found = (await bundler.chain.deposits(entry_point.address, [address]))[address]
    rules = bundler.pool.mempool(entry_point.address).reputation.rules
    return {
        "stakeInfo": {
            "addr": to_checksum_address(address),
            "stake": str(found.stake),
            "unstakeDelaySec": str(found.unstake_delay),
        },
        "isStaked": found.stake >= rules.min_stake and found.unstake_delay >= rules.min_unstake_delay,
    }


async def _add_operations(bundler: NetworkBundler, params: Sequence[Any]) -> str:
    given = argument(params, 0, "the list of operations")
    entry_point = _entry_point(bundler, params, 1)
    codec = codec_for(entry_point.version)
    if not isinstance(given, list):
        raise Refusal(INVALID_FIELDS, "the operations are a list")
    for each in given:
        try:
            operation = codec.parse(each)
        except InvalidOperation as error:
            raise Refusal(INVALID_FIELDS, str(error)) from None
        await bundler.accept(entry_point, operation)
    return _OK


def _entry_point(bundler: NetworkBundler, params: Sequence[Any], place: int) -> EntryPoint:
    """The entry point that is named, or the only one there is."""
    if len(params) <= place and len(bundler.entry_points) == 1:
        return bundler.entry_points[0]
    return entry_point_argument(bundler, params, place)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else parse_quantity(value, lenient=True)


DEBUG: Methods = {
    name: Method(handler, SENDING, debug=True)
    for name, handler in {
        "debug_bundler_clearState": _clear_state,
        "debug_bundler_clearMempool": _clear_mempool,
        "debug_bundler_clearReputation": _clear_reputation,
        "debug_bundler_dumpMempool": _dump_mempool,
        "debug_bundler_sendBundleNow": _send_bundle_now,
        "debug_bundler_setBundlingMode": _set_bundling_mode,
        "debug_bundler_setReputation": _set_reputation,
        "debug_bundler_dumpReputation": _dump_reputation,
        "debug_bundler_getStakeStatus": _stake_status,
        "debug_bundler_addUserOps": _add_operations,
    }.items()
}
