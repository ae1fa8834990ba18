"""Recovers public keys for the EVM where coincurve, which it imports for that, has no wheel for this Python.

Called by a worker before it loads the EVM. The stand-in does the one thing the EVM asks of coincurve, with eth-keys: it
is slower and gives the same answers. Where coincurve is installed, nothing is replaced.
"""

import importlib.util
import sys
from types import ModuleType

_NAME = "coincurve"


class RecoveredKey:
    """A public key, as far as the EVM looks at it."""

    def __init__(self, point: bytes) -> None:
        self._point = point

    @classmethod
    def from_signature_and_message(cls, signature: bytes, message: bytes, hasher: None) -> "RecoveredKey":
        """The key that signed this hash. Raises ValueError where there is none."""
        # Loaded only where it is needed: it takes as long as the rest of a worker.
        from eth_keys.datatypes import Signature
        from eth_keys.exceptions import BadSignature
        from eth_utils.exceptions import ValidationError

        try:
            return cls(Signature(signature).recover_public_key_from_msg_hash(message).to_bytes())
        except (BadSignature, ValidationError) as error:
            raise ValueError("no key gives this signature") from error

    def format(self, compressed: bool) -> bytes:
        """The point in the long form; the EVM asks for no other."""
        if compressed:
            raise ValueError("only the uncompressed form is known")
        return b"\x04" + self._point


def stand_in() -> ModuleType:
    """A module with what the EVM uses of coincurve."""
    module = ModuleType(_NAME, __doc__)
    module.__dict__["PublicKey"] = RecoveredKey
    return module


def provide_coincurve() -> None:
    """See to it that `import coincurve` works."""
    if _NAME not in sys.modules and importlib.util.find_spec(_NAME) is None:
        sys.modules[_NAME] = stand_in()
