"""The node's settings and bounds, in one place. The command line builds them, the ledger and the server read them.

Numbers that Solana itself fixes carry the name Agave (the reference validator) gives them.
"""

from __future__ import annotations

import msgspec

MAX_PROCESSING_AGE = 150
"""A blockhash is accepted while at most this many newer ones exist (Agave `MAX_PROCESSING_AGE`)."""

MAX_RECENT_BLOCKHASHES = 300
"""How many blockhashes, and how many slots of signature statuses, a bank remembers (Agave `MAX_RECENT_BLOCKHASHES`)."""

MAX_SLOT_HASHES = 512
"""Entries of the SlotHashes sysvar (`slot_hashes::MAX_ENTRIES`)."""

LAMPORTS_PER_SIGNATURE = 5_000

FAUCET_LAMPORTS = 500_000_000 * 10**9
"""What the faucet holds at genesis: 500 million SOL, as in solana-test-validator."""


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one node runs. Every length here is a bound: the node's memory does not grow without limit."""

    host: str = "127.0.0.1"
    port: int = 0
    slot_milliseconds: int = 400
    finality_slots: int = 2
    """A block is final when this many blocks are complete on top of it. Solana's own network needs 31."""

    max_blocks: int = 10_000
    max_transactions: int = 20_000
    max_transactions_per_slot: int = 1_000

    max_body_bytes: int = 1 << 20
    max_batch: int = 1_000
    max_sockets: int = 256
    max_socket_message_bytes: int = 1 << 16
    max_subscriptions_per_socket: int = 1_000
    max_queue_per_socket: int = 4_096
    """Messages waiting for one socket. A client that falls further behind is disconnected."""
