"""Checks the EIP-7702 tuple of an operation before anything is run (AUTH-010 is a matter of its form).

Called by the service. A tuple that the chain would ignore must not count in the simulation either. Pure.
"""

from capstan.bundler.refusals import INVALID_FIELDS, REJECTED_BY_ACCOUNT, Refusal
from capstan.core.hexes import keccak256, to_checksum_address
from capstan.userops.models import Authorization, UserOperation

# EIP-7702: what a tuple is signed over begins with this.
_MAGIC = b"\x05"
_HALF_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141 // 2


def check_authorization(operation: UserOperation, chain_id: int) -> None:
    """Raise `Refusal` unless the sender itself signed the tuple for this chain, or for every chain."""
    given = operation.authorization
    if given is None:
        return
    if given.chain_id not in (0, chain_id):
        raise Refusal(
            INVALID_FIELDS, f"eip7702Auth: chainId must be {chain_id}, or 0 for every chain, not {given.chain_id}"
        )
    signer = recover_signer(given)
    if signer != operation.sender:
        shown = "nobody" if signer is None else to_checksum_address(signer)
        raise Refusal(INVALID_FIELDS, f"eip7702Auth: the signer must be the sender, and is {shown}")


def check_nonce(operation: UserOperation, nonce: int) -> None:
    """Raise `Refusal` unless the tuple has the nonce that the sender has now: else the chain skips it."""
    given = operation.authorization
    if given is not None and given.nonce != nonce:
        raise Refusal(REJECTED_BY_ACCOUNT, f"eip7702Auth: nonce must be {nonce}, the sender's nonce, not {given.nonce}")


def recover_signer(given: Authorization) -> bytes | None:
    """Who signed the tuple; None when the signature is none."""
    if given.y_parity not in (0, 1) or not 0 < given.s <= _HALF_ORDER:
        return None
    # Not at the top: it takes half a second, and most processes never see such a tuple.
    from eth_keys.datatypes import Signature
    from eth_keys.exceptions import BadSignature
    from eth_utils.exceptions import ValidationError

    digest = keccak256(
        _MAGIC + _rlp_list(_rlp_number(given.chain_id), b"\x94" + given.address, _rlp_number(given.nonce))
    )
    try:
        signature = Signature(vrs=(given.y_parity, given.r, given.s))
        return signature.recover_public_key_from_msg_hash(digest).to_canonical_address()
    except (BadSignature, ValidationError):
        return None


def _rlp_number(number: int) -> bytes:
    data = number.to_bytes(-(-number.bit_length() // 8), "big")
    return data if len(data) == 1 and data[0] < 0x80 else bytes([0x80 + len(data)]) + data


def _rlp_list(*items: bytes) -> bytes:
    """A list that is shorter than 56 bytes, as that of every tuple with numbers of 64 bits."""
    content = b"".join(items)
    return (bytes([0xC0 + len(content)]) if len(content) < 56 else b"\xf8" + bytes([len(content)])) + content
