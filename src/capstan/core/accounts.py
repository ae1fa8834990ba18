"""Reads private keys as the settings write them, and loads eth-account for those who sign, when they first do.

Called by whoever holds a key. The import of eth-account takes a second, and most processes sign nothing. A key is never
shown: errors name its place in the settings. A library behind eth-account raises Python's recursion limit to 100,000
when it is imported; deeply nested JSON would then overflow the C stack and kill the process, so the limit is put back.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eth_account import Account

KEYSTORE_PREFIX = "keystore:"
_KEY_BYTES = 32
# The order of secp256k1: keys are below it, and not zero.
_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


class UnusableKey(ValueError):
    """A key that cannot be used. The message begins with its place in the settings, and never has the key."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(f"{setting}: {reason}")
        self.setting = setting
        self.reason = reason


def accounts() -> "type[Account]":
    """The class that makes, opens and uses keys."""
    limit = sys.getrecursionlimit()
    from eth_account import Account

    sys.setrecursionlimit(limit)
    return Account


def read_key(text: str, password: str, setting: str) -> bytes:
    """The 32 bytes of a key: of hex digits, or of the keystore file that `keystore:` and a path name.

    `setting` is the place of the text, such as `gas.signer`. Decrypting a keystore takes a second or so by design.
    Raises `UnusableKey`.
    """
    key = _from_keystore(text, password, setting) if text.startswith(KEYSTORE_PREFIX) else _from_hex(text)
    if len(key) != _KEY_BYTES or not 0 < int.from_bytes(key, "big") < _ORDER:
        raise UnusableKey(setting, f'is not a private key: 0x and 64 hex digits, or "{KEYSTORE_PREFIX}" and a path')
    return key


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        return b""


def _from_keystore(text: str, password: str, setting: str) -> bytes:
    path = Path(text.removeprefix(KEYSTORE_PREFIX))
    try:
        return bytes(accounts().decrypt(path.read_text(encoding="utf-8"), password))
    except OSError as error:
        raise UnusableKey(setting, f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        # Its own messages may repeat what is in the file.
        opener = f"{setting.partition('.')[0]}.keystore_password"
        raise UnusableKey(setting, f"{path} is not a keystore file that {opener} opens") from None
