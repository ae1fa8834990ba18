"""The reads whose answer is a fact of the chain, so that several nodes can be held to one answer.

Used by the settings, to refuse a quorum for anything else, and by the RPC gateway, to know which argument names the
block. A method is listed when honest nodes give the same answer about the same block. Gas prices, the state of the node
and pending transactions are not such facts. On Solana state cannot be asked for at a given slot, so only what is
settled for good is listed there.
"""

from __future__ import annotations

from typing import Final

# The position of the argument that names the block by number or tag; None where the answer does not depend on one.
_EVM: Final[dict[str, int | None]] = {
    "eth_call": 1,
    "eth_createAccessList": 1,
    "eth_estimateGas": 1,
    "eth_getBalance": 1,
    "eth_getCode": 1,
    "eth_getTransactionCount": 1,
    "eth_getProof": 2,
    "eth_getStorageAt": 2,
    "eth_feeHistory": 1,
    "eth_getBlockByNumber": 0,
    "eth_getBlockReceipts": 0,
    "eth_getBlockTransactionCountByNumber": 0,
    "eth_getTransactionByBlockNumberAndIndex": 0,
    "eth_getUncleByBlockNumberAndIndex": 0,
    "eth_getUncleCountByBlockNumber": 0,
    "debug_traceBlockByNumber": 0,
    "debug_traceCall": 1,
    "trace_block": 0,
    "trace_replayBlockTransactions": 0,
    "eth_chainId": None,
    "eth_getBlockByHash": None,
    "eth_getBlockTransactionCountByHash": None,
    # The range in its argument is treated apart.
    "eth_getLogs": None,
    "eth_getTransactionByBlockHashAndIndex": None,
    "eth_getTransactionByHash": None,
    "eth_getTransactionReceipt": None,
    "eth_getUncleByBlockHashAndIndex": None,
    "eth_getUncleCountByBlockHash": None,
    "debug_traceBlockByHash": None,
    "debug_traceTransaction": None,
    "net_version": None,
    "trace_transaction": None,
}
_SOLANA: Final[dict[str, int | None]] = {
    "getBlock": None,
    "getBlockTime": None,
    "getBlocks": None,
    "getEpochSchedule": None,
    "getGenesisHash": None,
    "getTransaction": None,
}
_BY_FAMILY: Final = {"evm": _EVM, "solana": _SOLANA}


def can_agree(family: str, method: str) -> bool:
    """Whether nodes of this family can be held to one answer to the method."""
    return method in _BY_FAMILY[family]


def agreeable(family: str) -> tuple[str, ...]:
    """All such methods."""
    return tuple(_BY_FAMILY[family])


def block_position(family: str, method: str) -> int | None:
    """Which argument names the block, from 0; None when none does."""
    return _BY_FAMILY[family].get(method)
