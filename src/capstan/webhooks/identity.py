"""The ids of events, derived from what they are about.

Called by matching. A replay, a restart or a second worker derives the same id for the same event, so it can never be
told twice under two names. Pure.
"""

from hashlib import sha256

from capstan.core.ids import base62

_BYTES = 16
_CHARACTERS = 22


def event_id(webhook_id: str, network: str, block_hash: str, position: str, phase: int) -> str:
    """`evt_…` of one event of one webhook.

    `position` says where in the block it is. `phase` is 0 when the block is applied and 1 when it is taken back; a
    block that comes back after that has the next even number, for that is another event.
    """
    content = "\n".join((webhook_id, network, block_hash, position, str(phase)))
    digest = sha256(content.encode()).digest()[:_BYTES]
    return f"evt_{base62(int.from_bytes(digest, 'big'), _CHARACTERS)}"
