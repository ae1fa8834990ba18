"""Addresses of the programs this node knows by name, and nothing else."""

from __future__ import annotations

from typing import Final

from solders.pubkey import Pubkey

SYSTEM: Final = Pubkey.from_string("11111111111111111111111111111111")
SYSVAR_OWNER: Final = Pubkey.from_string("Sysvar1111111111111111111111111111111111111")
NATIVE_LOADER: Final = Pubkey.from_string("NativeLoader1111111111111111111111111111111")
BPF_LOADER_1: Final = Pubkey.from_string("BPFLoader1111111111111111111111111111111111")
BPF_LOADER_2: Final = Pubkey.from_string("BPFLoader2111111111111111111111111111111111")
UPGRADEABLE_LOADER: Final = Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111")
LOADER_V4: Final = Pubkey.from_string("LoaderV411111111111111111111111111111111111")
CONFIG: Final = Pubkey.from_string("Config1111111111111111111111111111111111111")
STAKE: Final = Pubkey.from_string("Stake11111111111111111111111111111111111111")
VOTE: Final = Pubkey.from_string("Vote111111111111111111111111111111111111111")
FEATURE: Final = Pubkey.from_string("Feature111111111111111111111111111111111111")
COMPUTE_BUDGET: Final = Pubkey.from_string("ComputeBudget111111111111111111111111111111")
ADDRESS_LOOKUP_TABLE: Final = Pubkey.from_string("AddressLookupTab1e1111111111111111111111111")
TOKEN: Final = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
TOKEN_2022: Final = Pubkey.from_string("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")
ASSOCIATED_TOKEN: Final = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")

TOKEN_PROGRAMS: Final = frozenset({TOKEN, TOKEN_2022})
MEMO_PROGRAMS: Final = frozenset(
    {
        Pubkey.from_string("Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo"),
        Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr"),
    }
)

GENESIS_OWNERS: Final = (
    SYSTEM,
    SYSVAR_OWNER,
    NATIVE_LOADER,
    BPF_LOADER_1,
    BPF_LOADER_2,
    UPGRADEABLE_LOADER,
    LOADER_V4,
    CONFIG,
    STAKE,
    VOTE,
    FEATURE,
    ADDRESS_LOOKUP_TABLE,
    TOKEN,
    TOKEN_2022,
)
"""Owners of everything LiteSVM holds when it starts; the lamports at genesis are summed over them."""
