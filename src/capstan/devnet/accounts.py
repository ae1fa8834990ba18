"""The accounts of the development chain, derived from the well-known test mnemonic.

The node funds them at genesis (evm.py passes it the mnemonic and the count), the deployment signs with them, and
`dev.json` lists the first ones. Everyone knows these keys: they must never hold anything of value.
"""

from __future__ import annotations

from eth_account import Account
from eth_account.hdaccount import key_from_seed, seed_from_mnemonic

from capstan.devnet.models import DevAccount

MNEMONIC = "test test test test test test test test test test test junk"
USER_ACCOUNTS = 20
BUNDLER_EXECUTORS = 4
# Behind the users' accounts, so that a user finds every listed account unused, with nonce 0.
PAYMASTER_OWNER_INDEX = USER_ACCOUNTS
PAYMASTER_SIGNER_INDEX = USER_ACCOUNTS + 1
FIRST_EXECUTOR_INDEX = USER_ACCOUNTS + 2
FUNDED_ACCOUNTS = FIRST_EXECUTOR_INDEX + BUNDLER_EXECUTORS


def derive_accounts(count: int = FUNDED_ACCOUNTS) -> tuple[DevAccount, ...]:
    """The first `count` accounts at the usual Ethereum path (BIP-44, coin type 60)."""
    seed = seed_from_mnemonic(MNEMONIC, "")
    keys = [key_from_seed(seed, f"m/44'/60'/0'/0/{index}") for index in range(count)]
    return tuple(DevAccount(address=Account.from_key(key).address, private_key="0x" + key.hex()) for key in keys)
