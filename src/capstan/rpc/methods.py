"""The methods of each chain family, as data: what kind each is, which scope it needs, where its block parameter stands.

Read by the RPC service for every call. A method that is not in the table of its family does not exist here, so a node's
administrative methods cannot leak through by having a new name. Costs are not kept here; the catalogue has them.
"""

from enum import Enum
from typing import Final

import msgspec

from capstan.chain.models import Family, MethodGroup, NetworkSpec

READ_SCOPE: Final = "rpc:read"
WRITE_SCOPE: Final = "rpc:write"


class Kind(Enum):
    """What is done with a method."""

    READ = "read"  # passed on; may be repeated freely
    SUBMIT = "submit"  # a signed transaction: passed on, may be given to a second upstream
    ACTION = "action"  # changes something and must not happen twice
    NO_ACCOUNTS = "no accounts"  # answered here with []: the service holds no keys
    SUBSCRIPTION = "subscription"  # exists on the WebSocket only
    BLOCKED = "blocked"  # never passed on, whatever the scope
    DISABLED = "disabled"  # known, but the network's configuration does not enable it
    UNKNOWN = "unknown"  # no method of this chain family


class Method(msgspec.Struct, frozen=True):
    """How one method is treated on one network."""

    kind: Kind
    scope: str = READ_SCOPE


_READ = Method(Kind.READ)
_SUBMIT = Method(Kind.SUBMIT, WRITE_SCOPE)
_ACTION = Method(Kind.ACTION, WRITE_SCOPE)
_READ_ONCE = Method(Kind.ACTION)
_NO_ACCOUNTS = Method(Kind.NO_ACCOUNTS)
_SUBSCRIPTION = Method(Kind.SUBSCRIPTION)
_BLOCKED = Method(Kind.BLOCKED)
_DISABLED = Method(Kind.DISABLED)
_UNKNOWN = Method(Kind.UNKNOWN)

# The execution API of Ethereum and what geth, Erigon, Nethermind, Besu and Reth add to it in the same name spaces.
_EVM_READS = """
    eth_baseFee eth_blobBaseFee eth_blockNumber eth_call eth_callMany eth_capabilities eth_chainId eth_coinbase
    eth_config eth_createAccessList eth_estimateGas eth_feeHistory eth_gasPrice eth_getAccount eth_getAccountInfo
    eth_getBalance eth_getBlockAccessList eth_getBlockByHash eth_getBlockByNumber eth_getBlockReceipts
    eth_getBlockTransactionCountByHash eth_getBlockTransactionCountByNumber eth_getCode
    eth_getFilterLogs eth_getHeaderByHash eth_getHeaderByNumber eth_getLogs eth_getProof
    eth_getRawTransactionByBlockHashAndIndex eth_getRawTransactionByBlockNumberAndIndex eth_getRawTransactionByHash
    eth_getStorageAt eth_getStorageValues eth_getTransactionByBlockHashAndIndex
    eth_getTransactionByBlockNumberAndIndex eth_getTransactionByHash eth_getTransactionBySenderAndNonce
    eth_getTransactionCount eth_getTransactionReceipt eth_getUncleByBlockHashAndIndex
    eth_getUncleByBlockNumberAndIndex eth_getUncleCountByBlockHash eth_getUncleCountByBlockNumber eth_hashrate
    eth_maxPriorityFeePerGas eth_mining eth_newBlockFilter eth_newFilter eth_newPendingTransactionFilter
    eth_protocolVersion eth_simulateV1 eth_syncing
    net_listening net_peerCount net_version web3_clientVersion web3_sha3
"""
# Reads for the scope, but a repetition would answer differently: the first delivery has emptied or removed the filter.
_EVM_READS_ONCE = "eth_getFilterChanges eth_uninstallFilter"
_EVM_SUBMITS = "eth_sendRawTransaction eth_sendRawTransactionConditional eth_sendRawTransactionSync"
_EVM_SUBSCRIPTIONS = "eth_subscribe eth_unsubscribe"
# Named because they share a name space with methods that are allowed. They need a node's keys or change the node.
_EVM_BLOCKED = """
    eth_fillTransaction eth_getWork eth_pendingTransactions eth_requestAccounts eth_resend eth_sendTransaction
    eth_setEtherbase eth_submitHashrate eth_submitWork
"""
_EVM_BLOCKED_PREFIXES = ("admin_", "personal_", "miner_", "engine_", "clique_", "les_", "eth_sign")

# Only the reading methods of these name spaces: debug_setHead, debug_startCPUProfile and their like are administration.
_EVM_GROUPS: dict[MethodGroup, str] = {
    "debug": """
        debug_accountRange debug_dumpBlock debug_executionWitness debug_getAccessibleState
        debug_getBadBlocks debug_getModifiedAccountsByHash debug_getModifiedAccountsByNumber debug_getRawBlock
        debug_getRawHeader debug_getRawReceipts debug_getRawTransaction debug_intermediateRoots debug_preimage
        debug_storageRangeAt debug_traceBlock debug_traceBlockByHash debug_traceBlockByNumber debug_traceCall
        debug_traceCallMany debug_traceTransaction
    """,
    "trace": """
        trace_block trace_call trace_callMany trace_filter trace_get trace_rawTransaction
        trace_replayBlockTransactions trace_replayTransaction trace_transaction
    """,
    "txpool": "txpool_content txpool_contentFrom txpool_inspect txpool_status",
}
_DEV_PREFIXES = ("hardhat_", "evm_", "anvil_")
_DEV_BLOCKED = frozenset({"hardhat_reset", "anvil_reset"})

# https://solana.com/docs/rpc, with the deprecated methods that nodes still answer.
_SOLANA_READS = """
    getAccountInfo getBalance getBlock getBlockCommitment getBlockHeight getBlockProduction getBlocks
    getBlocksWithLimit getBlockTime getClusterNodes getEpochInfo getEpochSchedule getFeeForMessage
    getFirstAvailableBlock getGenesisHash getHealth getHighestSnapshotSlot getIdentity getInflationGovernor
    getInflationRate getInflationReward getLargestAccounts getLatestBlockhash getLeaderSchedule getMaxRetransmitSlot
    getMaxShredInsertSlot getMinimumBalanceForRentExemption getMultipleAccounts getProgramAccounts
    getRecentPerformanceSamples getRecentPrioritizationFees getSignaturesForAddress getSignatureStatuses getSlot
    getSlotLeader getSlotLeaders getStakeActivation getStakeMinimumDelegation getSupply getTokenAccountBalance
    getTokenAccountsByDelegate getTokenAccountsByOwner getTokenLargestAccounts getTokenSupply getTransaction
    getTransactionCount getVersion getVoteAccounts isBlockhashValid minimumLedgerSlot simulateTransaction
"""
_SOLANA_SUBMITS = "sendTransaction"
_SOLANA_ACTIONS = "requestAirdrop"
_SOLANA_SUBSCRIPTIONS = """
    accountSubscribe accountUnsubscribe blockSubscribe blockUnsubscribe logsSubscribe logsUnsubscribe programSubscribe
    programUnsubscribe rootSubscribe rootUnsubscribe signatureSubscribe signatureUnsubscribe slotSubscribe
    slotUnsubscribe slotsUpdatesSubscribe slotsUpdatesUnsubscribe voteSubscribe voteUnsubscribe
"""

# Reads of state, and the position of the block in their params. Older than the recent blocks that every node keeps,
# they need an archive and cost more.
STATE_READS: Final[dict[str, int]] = {
    "eth_call": 1,
    "eth_estimateGas": 1,
    "eth_getBalance": 1,
    "eth_getCode": 1,
    "eth_getTransactionCount": 1,
    "debug_traceCall": 1,
    "eth_getProof": 2,
    "eth_getStorageAt": 2,
}


def _table(*rows: tuple[str, Method]) -> dict[str, Method]:
    return {name: method for names, method in rows for name in names.split()}


_TABLES: dict[Family, dict[str, Method]] = {
    "evm": _table(
        (_EVM_READS, _READ),
        (_EVM_READS_ONCE, _READ_ONCE),
        (_EVM_SUBMITS, _SUBMIT),
        (_EVM_SUBSCRIPTIONS, _SUBSCRIPTION),
        (_EVM_BLOCKED, _BLOCKED),
        ("eth_accounts", _NO_ACCOUNTS),
    ),
    "solana": _table(
        (_SOLANA_READS, _READ),
        (_SOLANA_SUBMITS, _SUBMIT),
        (_SOLANA_ACTIONS, _ACTION),
        (_SOLANA_SUBSCRIPTIONS, _SUBSCRIPTION),
    ),
}
_GROUP_OF: dict[str, MethodGroup] = {name: group for group, names in _EVM_GROUPS.items() for name in names.split()}


def look_up(network: NetworkSpec, name: str) -> Method:
    """How the method `name` is treated on `network`."""
    method = _TABLES[network.family].get(name)
    if method is not None:
        return method
    # What is never proxied stays so even if the configuration names it.
    if network.family == "evm" and name.startswith(_EVM_BLOCKED_PREFIXES):
        return _BLOCKED
    if name in network.extra_methods:
        return _READ
    return _look_up_optional(network, name) if network.family == "evm" else _UNKNOWN


def _look_up_optional(network: NetworkSpec, name: str) -> Method:
    group = _GROUP_OF.get(name)
    if group is not None:
        return _READ if group in network.method_groups else _DISABLED
    if network.dev_methods and name.startswith(_DEV_PREFIXES):
        # A reset would take away the contracts that the development chain promises to have.
        return _BLOCKED if name in _DEV_BLOCKED else _ACTION
    return _UNKNOWN


def is_known_name(name: str) -> bool:
    """Whether a name is one of ours, and not something that a caller made up."""
    return name in _GROUP_OF or any(name in table for table in _TABLES.values()) or name.startswith(_DEV_PREFIXES)
