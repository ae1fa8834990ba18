"""The keys that sign bundles. A key is read once, at the start, and never shown, logged or stored.

Made by the composition root from the settings; used by the worker. A signer can print itself: its address is no secret.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from capstan.bundler.fees import Fees
from capstan.core.accounts import UnusableKey, accounts, read_key
from capstan.core.hexes import to_checksum_address, to_data
from capstan.userops.models import Authorization

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount


class Signed(msgspec.Struct, frozen=True):
    """A signed transaction."""

    hash: bytes
    raw: bytes


class Signer:
    """One key with its address."""

    def __init__(self, account: "LocalAccount") -> None:
        self._account = account
        self.address = bytes.fromhex(account.address[2:])

    def __repr__(self) -> str:
        return f"Signer({to_checksum_address(self.address)})"

    async def sign(
        self,
        *,
        chain_id: int,
        nonce: int,
        to: bytes,
        data: bytes,
        gas: int,
        fees: Fees,
        eip1559: bool,
        authorizations: Sequence[Authorization] = (),
    ) -> Signed:
        """A signed transaction. It takes some milliseconds of arithmetic, so it runs in a thread."""
        transaction: dict[str, Any] = {
            "chainId": chain_id,
            "nonce": nonce,
            "to": to_checksum_address(to),
            "value": 0,
            "data": to_data(data),
            "gas": gas,
        }
        if eip1559 or authorizations:
            transaction |= {
                "type": 4 if authorizations else 2,
                "maxFeePerGas": fees.max_fee,
                "maxPriorityFeePerGas": fees.max_priority_fee,
            }
        else:
            transaction["gasPrice"] = fees.max_fee
        if authorizations:
            transaction["authorizationList"] = [
                {
                    "chainId": each.chain_id,
                    "address": each.address,
                    "nonce": each.nonce,
                    "yParity": each.y_parity,
                    "r": each.r,
                    "s": each.s,
                }
                for each in authorizations
            ]
        signed = await asyncio.to_thread(self._account.sign_transaction, transaction)
        return Signed(bytes(signed.hash), bytes(signed.raw_transaction))


def load_signers(given: Iterable[str], password: str) -> tuple[Signer, ...]:
    """The signers that the settings name: private keys, or `keystore:` and the path of a keystore file.

    Raises `UnusableKey`.
    """
    signers: dict[bytes, Signer] = {}
    for place, text in enumerate(given):
        setting = f"bundler.signers[{place}]"
        signer = Signer(accounts().from_key(read_key(text, password, setting)))
        if signer.address in signers:
            raise UnusableKey(setting, "is the same account as an earlier one")
        signers[signer.address] = signer
    return tuple(signers.values())
