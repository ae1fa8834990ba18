"""Where an operation is on the chain, and its receipt.

Called by the methods. Operations that came through this bundler are found in the database; others by the event of their
entry point in recent blocks. A receipt is put together from the transaction's own, with the logs of this operation.
"""

from collections.abc import Sequence
from typing import Any

from capstan.bundler.entries import EntryPoint
from capstan.bundler.network import NetworkBundler
from capstan.chain.errors import NodeError
from capstan.core.hexes import parse_data, to_checksum_address, to_data, to_quantity
from capstan.userops.abi import Malformed
from capstan.userops.codec import codec_for, decode_handle_ops
from capstan.userops.events import (
    OPERATION_HANDLED_TOPIC,
    BeforeExecution,
    Event,
    OperationHandled,
    OperationReverted,
    PostOperationReverted,
    decode_event,
)
from capstan.userops.failures import revert_text
from capstan.userops.models import InvalidOperation, UserOperation

_ZERO_ADDRESS = "0x" + "00" * 20


async def find_transaction(bundler: NetworkBundler, operation_hash: bytes) -> tuple[EntryPoint, str] | None:
    """The entry point and the transaction of an included operation."""
    known = await bundler.pool.find(operation_hash)
    if known is not None and known.inclusion is not None:
        return known.entry_point, to_data(known.inclusion.transaction)
    if known is not None and known.state == "pending":
        return None
    head = (await bundler.chain.head()).ref.number
    question = {
        "address": [to_data(each.address) for each in bundler.entry_points],
        "topics": [to_data(OPERATION_HANDLED_TOPIC), to_data(operation_hash)],
        "fromBlock": to_quantity(max(0, head - bundler.options.lookup_blocks)),
        "toBlock": "latest",
    }
    logs = await bundler.chain.network.pool.request("eth_getLogs", [question])
    for log in logs:
        for each in bundler.entry_points:
            if to_data(each.address) == log["address"].lower():
                return each, log["transactionHash"]
    return None


async def receipt_of(bundler: NetworkBundler, operation_hash: bytes) -> dict[str, Any] | None:
    """The receipt as ERC-7769 has it; None while the operation is not on the chain."""
    found = await find_transaction(bundler, operation_hash)
    if found is None:
        return None
    entry_point, transaction = found
    receipt = await bundler.chain.network.pool.request("eth_getTransactionReceipt", [transaction])
    if receipt is None:
        return None
    events = _events(receipt["logs"], entry_point)
    place = next(
        (
            index
            for index, event in enumerate(events)
            if isinstance(event, OperationHandled) and event.hash == operation_hash
        ),
        None,
    )
    if place is None:
        return None
    handled = events[place]
    assert isinstance(handled, OperationHandled), "it was looked for"
    answer = {
        "userOpHash": to_data(operation_hash),
        "entryPoint": to_checksum_address(entry_point.address),
        "sender": to_checksum_address(handled.sender),
        "nonce": to_quantity(handled.nonce),
        "paymaster": _ZERO_ADDRESS if handled.paymaster is None else to_checksum_address(handled.paymaster),
        "actualGasCost": to_quantity(handled.actual_gas_cost),
        "actualGasUsed": to_quantity(handled.actual_gas_used),
        "success": handled.success,
        "logs": _own_logs(receipt["logs"], events, place),
        "receipt": receipt,
    }
    if not handled.success:
        answer["reason"] = _reason(events, operation_hash)
    return answer


async def operation_of(bundler: NetworkBundler, operation_hash: bytes) -> dict[str, Any] | None:
    """The operation with where it is, as ERC-7769 has it; None when nobody knows it."""
    known = await bundler.pool.find(operation_hash)
    if known is not None and known.inclusion is not None:
        where = known.inclusion
        return _shown(
            known.entry_point,
            known.operation,
            where.block_number,
            to_data(where.block_hash),
            to_data(where.transaction),
        )
    if known is not None and known.state == "pending":
        return _shown(known.entry_point, known.operation, None, None, None)
    # It may be on the chain before we have seen it there, and then its receipt is told already.
    found = await _elsewhere(bundler, operation_hash)
    if found is None and known is not None and known.state == "submitted":
        return _shown(known.entry_point, known.operation, None, None, None)
    return found


async def _elsewhere(bundler: NetworkBundler, operation_hash: bytes) -> dict[str, Any] | None:
    """An operation that somebody else bundled, from the calldata of the transaction."""
    found = await find_transaction(bundler, operation_hash)
    if found is None:
        return None
    entry_point, transaction_hash = found
    transaction = await bundler.chain.network.pool.request("eth_getTransactionByHash", [transaction_hash])
    if transaction is None or transaction.get("blockNumber") is None:
        return None
    codec = codec_for(entry_point.version)
    try:
        operations, _ = decode_handle_ops(entry_point.version, parse_data(transaction["input"]))
        for operation in operations:
            if codec.hash(operation, entry_point.address, bundler.chain_id) == operation_hash:
                number = int(transaction["blockNumber"], 16)
                return _shown(entry_point, operation, number, transaction["blockHash"], transaction_hash)
    except (Malformed, InvalidOperation, NodeError):
        # Bundled by a contract of somebody's own: the operation cannot be read from the transaction.
        return None
    return None


def _shown(
    entry_point: EntryPoint, operation: UserOperation, number: int | None, block: str | None, transaction: str | None
) -> dict[str, Any]:
    return {
        "userOperation": codec_for(entry_point.version).render(operation),
        "entryPoint": to_checksum_address(entry_point.address),
        "blockNumber": None if number is None else to_quantity(number),
        "blockHash": block,
        "transactionHash": transaction,
    }


def _events(logs: Sequence[dict[str, Any]], entry_point: EntryPoint) -> list[Event | None]:
    """What each log says, if the entry point wrote it."""
    address = to_data(entry_point.address)
    return [
        decode_event([parse_data(topic) for topic in log["topics"]], parse_data(log["data"]))
        if log["address"].lower() == address
        else None
        for log in logs
    ]


def _own_logs(logs: Sequence[dict[str, Any]], events: Sequence[Event | None], place: int) -> list[dict[str, Any]]:
    """The logs of one operation: those between the end of the one before and its own event."""
    start = 0
    for index in range(place - 1, -1, -1):
        if isinstance(events[index], OperationHandled | BeforeExecution):
            start = index + 1
            break
    return list(logs[start:place])


def _reason(events: Sequence[Event | None], operation_hash: bytes) -> str:
    for event in events:
        if isinstance(event, OperationReverted | PostOperationReverted) and event.hash == operation_hash:
            return revert_text(event.reason) if event.reason else "0x"
    return "0x"
