"""The methods of the bundler that ERC-7769 names, and our own about the state and the price of operations.

Each takes the network's bundler and its parameters; the service calls them. The debug methods are
elsewhere.
"""

from collections.abc import Sequence
from typing import Any

from capstan.bundler.calls import SENDING, Method, Methods, argument, entry_point_argument, hash_argument
from capstan.bundler.entries import Entry, EntryPoint
from capstan.bundler.estimation.overrides import parse_overrides
from capstan.bundler.network import NetworkBundler
from capstan.bundler.receipts import operation_of, receipt_of
from capstan.bundler.refusals import INVALID_FIELDS, Refusal
from capstan.core.hexes import to_checksum_address, to_data, to_quantity
from capstan.core.jsonrpc import METHOD_NOT_ENABLED
from capstan.userops.codec import codec_for
from capstan.userops.models import InvalidOperation, UserOperation


async def _chain_id(bundler: NetworkBundler, _params: Sequence[Any]) -> str:
    return to_quantity(bundler.chain_id)


async def _supported_entry_points(bundler: NetworkBundler, _params: Sequence[Any]) -> list[str]:
    return [to_checksum_address(each.address) for each in bundler.entry_points]


async def _send(bundler: NetworkBundler, params: Sequence[Any]) -> str:
    if bundler.unavailable:
        raise Refusal(METHOD_NOT_ENABLED, bundler.unavailable)
    entry_point = entry_point_argument(bundler, params)
    return to_data(await bundler.accept(entry_point, _operation(entry_point, params)))


async def _estimate(bundler: NetworkBundler, params: Sequence[Any]) -> dict[str, str]:
    entry_point = entry_point_argument(bundler, params)
    operation = _operation(entry_point, params, estimating=True)
    overrides = parse_overrides(params[2] if len(params) > 2 else None, entry_point=entry_point.address)
    return (await bundler.estimators[entry_point.address].estimate(operation, overrides)).render()


def _operation(entry_point: EntryPoint, params: Sequence[Any], *, estimating: bool = False) -> UserOperation:
    try:
        return codec_for(entry_point.version).parse(argument(params, 0, "the operation"), estimating=estimating)
    except InvalidOperation as error:
        raise Refusal(INVALID_FIELDS, str(error)) from None


async def _by_hash(bundler: NetworkBundler, params: Sequence[Any]) -> dict[str, Any] | None:
    return await operation_of(bundler, hash_argument(params))


async def _receipt(bundler: NetworkBundler, params: Sequence[Any]) -> dict[str, Any] | None:
    return await receipt_of(bundler, hash_argument(params))


async def _status(bundler: NetworkBundler, params: Sequence[Any]) -> dict[str, Any]:
    """What became of an operation, and why."""
    operation_hash = hash_argument(params)
    known = await bundler.pool.find(operation_hash)
    refused = bundler.refusal_of(operation_hash)
    if known is None:
        return {"status": "not_found" if refused is None else "rejected", "reason": refused, "transactionHash": None}
    return {
        "status": known.state,
        "reason": known.reason or None,
        "transactionHash": await _transaction(bundler, known),
    }


async def _transaction(bundler: NetworkBundler, entry: Entry) -> str | None:
    if entry.inclusion is not None:
        return to_data(entry.inclusion.transaction)
    if entry.signer is None or entry.signer_nonce is None:
        return None
    sent = await bundler.worker.transaction_for(entry.signer, entry.signer_nonce, entry.hash)
    return None if sent is None else to_data(sent)


async def _gas_price(bundler: NetworkBundler, _params: Sequence[Any]) -> dict[str, dict[str, str]]:
    """What an operation should offer, by speed."""
    least = bundler.options.least_tip
    return {
        speed: {
            "maxFeePerGas": to_quantity(fees.max_fee + max(0, least - fees.max_priority_fee)),
            "maxPriorityFeePerGas": to_quantity(max(least, fees.max_priority_fee)),
        }
        for speed, fees in (await bundler.speeds()).items()
    }


STANDARD: Methods = {
    "eth_chainId": Method(_chain_id),
    "eth_supportedEntryPoints": Method(_supported_entry_points),
    "eth_sendUserOperation": Method(_send, SENDING),
    "eth_estimateUserOperationGas": Method(_estimate),
    "eth_getUserOperationByHash": Method(_by_hash),
    "eth_getUserOperationReceipt": Method(_receipt),
    "capstan_getUserOperationStatus": Method(_status),
    "capstan_getUserOperationGasPrice": Method(_gas_price),
}
