"""Every JSON-RPC method this node answers over HTTP, in one table. A method that is not here is -32601.

Left out because LiteSVM cannot know the answer: votes, stake, inflation, gossip peers, performance samples, and the
largest accounts (LiteSVM lists accounts by owner only).
"""

from __future__ import annotations

from types import MappingProxyType

from capstan.devnet.solana.methods import accounts, blocks, node, sending, tokens, transactions
from capstan.devnet.solana.methods.common import Handler

METHODS: MappingProxyType[str, Handler] = MappingProxyType(
    {
        "getAccountInfo": accounts.get_account_info,
        "getBalance": accounts.get_balance,
        "getMultipleAccounts": accounts.get_multiple_accounts,
        "getProgramAccounts": accounts.get_program_accounts,
        "getBlock": blocks.get_block,
        "getBlocks": blocks.get_blocks,
        "getBlocksWithLimit": blocks.get_blocks_with_limit,
        "getBlockTime": blocks.get_block_time,
        "getFeeForMessage": blocks.get_fee_for_message,
        "getFirstAvailableBlock": blocks.get_first_available_block,
        "getLatestBlockhash": blocks.get_latest_blockhash,
        "isBlockhashValid": blocks.is_blockhash_valid,
        "minimumLedgerSlot": blocks.minimum_ledger_slot,
        "getBlockHeight": node.get_block_height,
        "getEpochInfo": node.get_epoch_info,
        "getEpochSchedule": node.get_epoch_schedule,
        "getGenesisHash": node.get_genesis_hash,
        "getHealth": node.get_health,
        "getHighestSnapshotSlot": node.get_highest_snapshot_slot,
        "getIdentity": node.get_identity,
        "getMinimumBalanceForRentExemption": node.get_minimum_balance_for_rent_exemption,
        "getRecentPrioritizationFees": node.get_recent_prioritization_fees,
        "getSlot": node.get_slot,
        "getSlotLeader": node.get_slot_leader,
        "getSlotLeaders": node.get_slot_leaders,
        "getSupply": node.get_supply,
        "getTransactionCount": node.get_transaction_count,
        "getVersion": node.get_version,
        "requestAirdrop": sending.request_airdrop,
        "sendTransaction": sending.send_transaction,
        "simulateTransaction": sending.simulate_transaction,
        "getTokenAccountBalance": tokens.get_token_account_balance,
        "getTokenAccountsByDelegate": tokens.get_token_accounts_by_delegate,
        "getTokenAccountsByOwner": tokens.get_token_accounts_by_owner,
        "getTokenLargestAccounts": tokens.get_token_largest_accounts,
        "getTokenSupply": tokens.get_token_supply,
        "getSignaturesForAddress": transactions.get_signatures_for_address,
        "getSignatureStatuses": transactions.get_signature_statuses,
        "getTransaction": transactions.get_transaction,
    }
)
