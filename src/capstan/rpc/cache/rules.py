"""The methods whose answers may be kept, as data: what the answer depends on, its arguments, and what it tells.

Read by `policy`. A method that is not here is never kept. `arguments` has one letter for each argument, the optional
ones behind a `?`:

    a  hex, such as an address: letter case means nothing
    h  hash of 32 bytes, likewise
    s  storage slot: a quantity, or 32 bytes            S  list of slots
    q  index: a quantity
    b  block: number, tag, or the object of EIP-1898    H  the same, or a block hash as text
    o  object of hex values, such as a call or overrides
    j  anything: only white space and the order of object keys mean nothing
    c  configuration with a commitment (Solana)
"""

import re
from typing import Final

import msgspec

from capstan.chain.models import Family
from capstan.rpc.cache.models import Shape, When


class Rule(msgspec.Struct, frozen=True):
    """How one method is treated."""

    when: When
    required: str = ""
    optional: str = ""
    shape: Shape = Shape.OPAQUE
    # Whether leaving the block out means the latest by the standard, so that both forms are one question.
    absent_is_latest: bool = False
    # Whether an answer for the head may change before the next head, when the block is left out.
    absent_is_brief: bool = False
    # Params that are written canonically already; None where the arguments are not that simple.
    plain: re.Pattern[bytes] | None = None
    # The groups of that pattern that hold the block and the hash, 0 where there is none.
    block_group: int = 0
    hash_group: int = 0


# Arguments that have one simplest spelling, in it: lower case, no white space.
_QUANTITY = rb"0x(?:0|[1-9a-f][0-9a-f]{0,63})"
_PLAIN = {
    "a": rb'"0x[0-9a-f]*"',
    "h": rb'"(?P<hash>0x[0-9a-f]{64})"',
    "q": rb'"' + _QUANTITY + rb'"',
    "b": rb'"(?P<block>' + _QUANTITY + rb'|latest|earliest|safe|finalized|pending)"',
}


_PLAIN_OPTIONAL = {**_PLAIN, "j": rb"(?:true|false)"}


def _plain(required: str, optional: str) -> re.Pattern[bytes] | None:
    """The pattern of canonical params, as far as all arguments are simple ones."""
    if not required or not all(kind in _PLAIN for kind in required):
        return None
    pattern, closing = rb"\[" + b",".join(_PLAIN[kind] for kind in required), b""
    for kind in optional:
        if kind not in _PLAIN_OPTIONAL:
            break
        pattern, closing = pattern + rb"(?:," + _PLAIN_OPTIONAL[kind], closing + rb")?"
    return re.compile(pattern + closing + rb"\]")


def _rule(when: When, arguments: str = "", shape: Shape = Shape.OPAQUE, **flags: bool) -> Rule:
    required, _, optional = arguments.partition("?")
    plain = _plain(required, optional)
    groups = {} if plain is None else plain.groupindex
    return Rule(
        when,
        required,
        optional,
        shape,
        **flags,
        plain=plain,
        block_group=groups.get("block", 0),
        hash_group=groups.get("hash", 0),
    )


# https://ethereum.github.io/execution-apis, and the debug and trace methods of geth and of Erigon.
# Left out on purpose: sends, filters, txpool_*, eth_syncing, what tells about the node rather than the chain, and
# debug_traceTransaction, whose answer does not say in which block the transaction was when it was traced.
_EVM: Final[dict[str, Rule]] = {
    "eth_chainId": _rule(When.NOTHING),
    "net_version": _rule(When.NOTHING),
    "web3_sha3": _rule(When.NOTHING, "a"),
    "eth_blockNumber": _rule(When.HEAD, shape=Shape.NUMBER),
    "eth_gasPrice": _rule(When.HEAD),
    "eth_maxPriorityFeePerGas": _rule(When.HEAD),
    "eth_blobBaseFee": _rule(When.HEAD),
    "eth_baseFee": _rule(When.HEAD),
    "eth_config": _rule(When.HEAD),
    # State. Only eth_call means the same without a block everywhere; older nodes run the others on the pending one.
    "eth_call": _rule(When.BLOCK, "o?boo", absent_is_latest=True),
    "eth_estimateGas": _rule(When.BLOCK, "o?boo", absent_is_brief=True),
    "eth_createAccessList": _rule(When.BLOCK, "o?bo", absent_is_brief=True),
    "eth_getBalance": _rule(When.BLOCK, "a?b"),
    "eth_getCode": _rule(When.BLOCK, "a?b"),
    "eth_getTransactionCount": _rule(When.BLOCK, "a?b"),
    "eth_getStorageAt": _rule(When.BLOCK, "as?b"),
    "eth_getProof": _rule(When.BLOCK, "aS?b"),
    "eth_getAccount": _rule(When.BLOCK, "a?b"),
    "eth_getAccountInfo": _rule(When.BLOCK, "a?b"),
    "eth_getStorageValues": _rule(When.BLOCK, "o?b"),
    "eth_simulateV1": _rule(When.BLOCK, "j?b", absent_is_brief=True),
    "eth_feeHistory": _rule(When.BLOCK, "jb?j"),
    # Blocks by number.
    "eth_getBlockByNumber": _rule(When.BLOCK, "b?j", Shape.BLOCK),
    "eth_getHeaderByNumber": _rule(When.BLOCK, "b", Shape.BLOCK),
    "eth_getBlockReceipts": _rule(When.BLOCK, "H", Shape.ITEMS),
    "eth_getBlockAccessList": _rule(When.BLOCK, "H"),
    "eth_getBlockTransactionCountByNumber": _rule(When.BLOCK, "b"),
    "eth_getTransactionByBlockNumberAndIndex": _rule(When.BLOCK, "bq", Shape.ITEM),
    "eth_getRawTransactionByBlockNumberAndIndex": _rule(When.BLOCK, "bq"),
    # An uncle's own number and hash are not those of the block it is in.
    "eth_getUncleByBlockNumberAndIndex": _rule(When.BLOCK, "bq"),
    "eth_getUncleCountByBlockNumber": _rule(When.BLOCK, "b"),
    # Blocks by hash.
    "eth_getBlockByHash": _rule(When.BLOCK_HASH, "h?j", Shape.BLOCK),
    "eth_getHeaderByHash": _rule(When.BLOCK_HASH, "h", Shape.BLOCK),
    "eth_getBlockTransactionCountByHash": _rule(When.BLOCK_HASH, "h"),
    "eth_getTransactionByBlockHashAndIndex": _rule(When.BLOCK_HASH, "hq", Shape.ITEM),
    "eth_getRawTransactionByBlockHashAndIndex": _rule(When.BLOCK_HASH, "hq"),
    "eth_getUncleByBlockHashAndIndex": _rule(When.BLOCK_HASH, "hq"),
    "eth_getUncleCountByBlockHash": _rule(When.BLOCK_HASH, "h"),
    # Transactions.
    "eth_getTransactionByHash": _rule(When.ITEM, "h", Shape.ITEM),
    "eth_getTransactionReceipt": _rule(When.ITEM, "h", Shape.ITEM),
    "eth_getTransactionBySenderAndNonce": _rule(When.ITEM, "aq", Shape.ITEM),
    "eth_getRawTransactionByHash": _rule(When.ITEM, "h"),
    "eth_getLogs": _rule(When.LOGS, "o"),
    # Traces and raw data.
    "debug_traceBlockByNumber": _rule(When.BLOCK, "b?j"),
    "debug_traceBlockByHash": _rule(When.BLOCK_HASH, "h?j"),
    "debug_traceCall": _rule(When.BLOCK, "ob?j"),
    "debug_getRawBlock": _rule(When.BLOCK, "H"),
    "debug_getRawHeader": _rule(When.BLOCK, "H"),
    "debug_getRawReceipts": _rule(When.BLOCK, "H"),
    "trace_block": _rule(When.BLOCK, "b", Shape.ITEMS),
    "trace_call": _rule(When.BLOCK, "oj?b", absent_is_brief=True),
    "trace_replayBlockTransactions": _rule(When.BLOCK, "bj"),
    "trace_transaction": _rule(When.ITEM, "h", Shape.ITEMS),
}

# https://solana.com/docs/rpc. Left out on purpose: sends, simulations, signature statuses (they change with every
# vote), and what tells about the node rather than the chain.
_SOLANA: Final[dict[str, Rule]] = {
    "getGenesisHash": _rule(When.NOTHING),
    "getEpochSchedule": _rule(When.NOTHING),
    "getBlock": _rule(When.FINAL_ITEM, "j?c", Shape.DATED),
    "getTransaction": _rule(When.FINAL_ITEM, "j?c", Shape.DATED),
    "getBlockTime": _rule(When.SLOT, "j"),
    "getBlocks": _rule(When.SLOT, "jj?c"),
    "getBlocksWithLimit": _rule(When.HEAD, "jj?c"),
    "getSlot": _rule(When.HEAD, "?c"),
    "getSlotLeader": _rule(When.HEAD, "?c"),
    "getSlotLeaders": _rule(When.HEAD, "jj"),
    "getBlockHeight": _rule(When.HEAD, "?c"),
    "getBlockProduction": _rule(When.HEAD, "?c"),
    "getEpochInfo": _rule(When.HEAD, "?c"),
    "getTransactionCount": _rule(When.HEAD, "?c"),
    "getLatestBlockhash": _rule(When.HEAD, "?c"),
    "getFeeForMessage": _rule(When.HEAD, "j?c"),
    "isBlockhashValid": _rule(When.HEAD, "j?c"),
    "getAccountInfo": _rule(When.HEAD, "j?c"),
    "getBalance": _rule(When.HEAD, "j?c"),
    "getMultipleAccounts": _rule(When.HEAD, "j?c"),
    "getProgramAccounts": _rule(When.HEAD, "j?c"),
    "getTokenAccountBalance": _rule(When.HEAD, "j?c"),
    "getTokenSupply": _rule(When.HEAD, "j?c"),
    "getTokenLargestAccounts": _rule(When.HEAD, "j?c"),
    "getTokenAccountsByOwner": _rule(When.HEAD, "jj?c"),
    "getTokenAccountsByDelegate": _rule(When.HEAD, "jj?c"),
    "getSignaturesForAddress": _rule(When.HEAD, "j?c"),
    "getInflationGovernor": _rule(When.HEAD, "?c"),
    "getInflationRate": _rule(When.HEAD),
    "getInflationReward": _rule(When.HEAD, "j?c"),
    "getLargestAccounts": _rule(When.HEAD, "?c"),
    "getLeaderSchedule": _rule(When.HEAD, "?jc"),
    "getMinimumBalanceForRentExemption": _rule(When.HEAD, "j?c"),
    "getRecentPerformanceSamples": _rule(When.HEAD, "?j"),
    "getRecentPrioritizationFees": _rule(When.HEAD, "?j"),
    "getStakeMinimumDelegation": _rule(When.HEAD, "?c"),
    "getSupply": _rule(When.HEAD, "?c"),
    "getVoteAccounts": _rule(When.HEAD, "?c"),
}

RULES: Final[dict[Family, dict[str, Rule]]] = {"evm": _EVM, "solana": _SOLANA}
