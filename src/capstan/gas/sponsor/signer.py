"""The key that signs for our paymasters. It is read once, at the start, and never shown, logged or stored.

Made by the composition root from the settings. It also gives the secrets of decision hooks, which are derived from the
key, so that none of them has to be stored.
"""

import base64
import hashlib
import hmac

from capstan.core.hexes import keccak256, to_checksum_address

_EIP191 = b"\x19Ethereum Signed Message:\n32"


class PaymasterSigner:
    """The key with its address."""

    def __init__(self, key: bytes) -> None:
        # Not at the top: it takes half a second, and most processes have no such key.
        from eth_keys.datatypes import PrivateKey

        self._key = PrivateKey(key)
        self.address: bytes = self._key.public_key.to_canonical_address()

    @property
    def secret(self) -> bytes:
        """The key itself, for the command line, which signs transactions with it."""
        return self._key.to_bytes()

    def __repr__(self) -> str:
        return f"PaymasterSigner({to_checksum_address(self.address)})"

    def sign(self, digest: bytes) -> bytes:
        """The signature of `personal_sign` over 32 bytes (EIP-191): r, s, and v of 27 or 28."""
        made = self._key.sign_msg_hash(keccak256(_EIP191 + digest)).to_bytes()
        return made[:64] + bytes([27 + made[64]])

    def hook_secret(self, policy_id: str) -> str:
        """The secret of a policy's decision hook: `whsec_` and base64 of 32 bytes."""
        derived = hmac.digest(self._key.to_bytes(), b"capstan decision hook " + policy_id.encode(), hashlib.sha256)
        return "whsec_" + base64.b64encode(derived).decode()
