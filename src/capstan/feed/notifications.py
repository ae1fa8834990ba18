"""The messages of subscriptions, written once for all who get them.

All ids have the same length, so the messages that tell one thing differ in the 34 characters of the id and nowhere
else, not even in the head of the WebSocket frame. The hub makes one `Notification` for a head or a log and writes it
for each subscription by putting three pieces together.
"""

import secrets

import msgspec

from capstan.core.frames import Opcode, header

_BEFORE_ID = b'{"jsonrpc":"2.0","method":"eth_subscription","params":{"subscription":"'
_AFTER_ID = b'","result":'
_END = b"}}"
_ID_LENGTH = 34
_FALSE = b'"removed":false'
_TRUE = b'"removed":true'


class Notification(msgspec.Struct, frozen=True, gc=False):
    """The frame of a message around the id: `before + id + after`."""

    before: bytes
    after: bytes


def notification(result: bytes) -> Notification:
    """The message that carries `result`, which is JSON text."""
    length = len(_BEFORE_ID) + _ID_LENGTH + len(_AFTER_ID) + len(result) + len(_END)
    return Notification(header(Opcode.TEXT, length) + _BEFORE_ID, _AFTER_ID + result + _END)


def removed(log: bytes) -> bytes:
    """A log as it is told when its block was taken back. Values are hex, so the member cannot occur inside one."""
    return log.replace(_FALSE, _TRUE, 1)


def new_id() -> str:
    """A subscription id that cannot be guessed: 128 random bits, without a leading zero as geth writes ids."""
    while True:
        text = secrets.token_hex(16)
        if text[0] != "0":
            return "0x" + text
