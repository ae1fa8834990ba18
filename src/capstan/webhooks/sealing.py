"""Signing secrets: how they are made, and how they are kept.

Called by the service, which shows a secret once, and by delivery, which signs with it. A secret must be known again to
sign, so it is stored encrypted (AES-256-GCM, bound to its webhook) and not hashed. The key is that of the settings, or
of a file that is made on first use and that only the owner of the process can read. Whoever has the database alone
cannot sign.
"""

import base64
import os
import secrets
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PREFIX = "whsec_"
_KEY_FILE = "webhooks.key"
_KEY_BYTES = 32
_NONCE_BYTES = 12


class SealBroken(Exception):
    """A stored secret was encrypted with another key, or is damaged."""


def new_signing_secret() -> str:
    """`whsec_` and the base64 of 32 random bytes."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


class Seal:
    """Encrypts and decrypts secrets."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    @classmethod
    def open(cls, passphrase: str, directory: Path) -> "Seal":
        """With the key of the settings; without one, with that of the file, which is made when it is not there."""
        if passphrase:
            return cls(sha256(b"capstan webhooks\0" + passphrase.encode()).digest())
        return cls(_key_of(directory / _KEY_FILE))

    def seal(self, secret: str, owner: str) -> bytes:
        """The secret as it is stored for this owner."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret.encode(), owner.encode())

    def unseal(self, sealed: bytes, owner: str) -> str:
        """The secret again. Raises `SealBroken`."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], owner.encode()).decode()
        except (InvalidTag, ValueError):
            raise SealBroken(
                f"the secret of {owner} cannot be decrypted: webhooks.secret_key or {_KEY_FILE} is not the one it was"
                " stored with"
            ) from None


def _key_of(path: Path) -> bytes:
    """The key in the file. Of two processes that make it at the same moment, both take what the first one wrote."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        draft = path.with_suffix(f".{secrets.token_hex(8)}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            # The other one's key stands.
            return _key_of(path)
        finally:
            draft.unlink()
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise SealBroken(f"{path} does not hold a key of {_KEY_BYTES} bytes")
    return key
