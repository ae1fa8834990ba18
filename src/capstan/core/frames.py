"""WebSocket frames as bytes (RFC 6455), the server's side: reading masked frames, writing plain ones.

Called by the server for each connection and by the feed, which frames a notification once for all who get it. This
module does no input or output and knows nothing of handshakes, limits of rate or JSON. Extensions are not offered, so
the reserved bits must be zero: a compressed frame is refused.
"""

import codecs
from enum import IntEnum
from typing import Final

import msgspec

# RFC 6455, section 7.4.1, and the range 4000-4999 left to applications, as Capstan uses it.
NORMAL: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
NO_STATUS: Final = 1005
INVALID_TEXT: Final = 1007
TOO_LARGE: Final = 1009
INTERNAL_ERROR: Final = 1011
SERVICE_RESTART: Final = 1012
SLOW_CONSUMER: Final = 1013
BAD_KEY: Final = 4401
NOT_ALLOWED: Final = 4403
UNKNOWN_NETWORK: Final = 4404
OVER_LIMIT: Final = 4429

_MOST_CONTROL_BYTES = 125
_MOST_SHORT_BYTES = 125
_MOST_MEDIUM_BYTES = 65_535
_FIN = 0x80
_RESERVED = 0x70
_MASKED = 0x80
_CLOSE_CODES = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})


class Opcode(IntEnum):
    """What a frame carries (section 5.2)."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


_OPCODES: Final = {int(opcode): opcode for opcode in Opcode}


class Violation(Exception):
    """The peer broke the protocol or a limit; the connection ends with `code`."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Message(msgspec.Struct, frozen=True, gc=False):
    """A whole message, or a control frame. Text is checked to be UTF-8."""

    opcode: Opcode
    data: bytes


def header(opcode: int, length: int) -> bytes:
    """The head of an unmasked frame that is a message of its own."""
    if length <= _MOST_SHORT_BYTES:
        return bytes((_FIN | opcode, length))
    if length <= _MOST_MEDIUM_BYTES:
        return bytes((_FIN | opcode, 126)) + length.to_bytes(2)
    return bytes((_FIN | opcode, 127)) + length.to_bytes(8)


def text_frame(text: bytes) -> bytes:
    """A text message; `text` is UTF-8."""
    return header(Opcode.TEXT, len(text)) + text


def ping_frame(data: bytes) -> bytes:
    """A ping with at most 125 bytes."""
    return header(Opcode.PING, len(data)) + data


def pong_frame(data: bytes) -> bytes:
    """The answer to a ping, with the ping's data."""
    return header(Opcode.PONG, len(data)) + data


def close_frame(code: int, reason: str = "") -> bytes:
    """A close frame; the reason is cut to what fits. `NO_STATUS` sends none."""
    if code == NO_STATUS:
        return header(Opcode.CLOSE, 0)
    text = reason.encode()[: _MOST_CONTROL_BYTES - 2].decode(errors="ignore").encode()
    return header(Opcode.CLOSE, 2 + len(text)) + code.to_bytes(2) + text


def close_code(data: bytes) -> int:
    """The code in the data of a close frame. Raises `Violation` when the data is malformed."""
    if not data:
        return NO_STATUS
    if len(data) == 1:
        raise Violation(PROTOCOL_ERROR, "a close frame has no data or at least two bytes")
    code = int.from_bytes(data[:2])
    if code not in _CLOSE_CODES and not 3000 <= code <= 4999:
        raise Violation(PROTOCOL_ERROR, f"{code} is no close code that may be sent")
    try:
        data[2:].decode()
    except UnicodeDecodeError:
        raise Violation(INVALID_TEXT, "the close reason is not UTF-8") from None
    return code


class FrameReader:
    """Turns the bytes of one client into messages. After a `Violation` it must not be used again."""

    def __init__(self, *, max_message_bytes: int) -> None:
        self._max = max_message_bytes
        self._buffer = bytearray()
        # The message under way, while it is fragmented.
        self._opcode: Opcode | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._decoder: codecs.IncrementalDecoder | None = None

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete with `data`. Raises `Violation`."""
        buffer = self._buffer
        buffer += data
        messages: list[Message] = []
        position = 0
        while True:
            end = self._frame(buffer, position, messages)
            if end == position:
                break
            position = end
        if position:
            del buffer[:position]
        return messages

    def _frame(self, buffer: bytearray, start: int, messages: list[Message]) -> int:
        """Read the frame at `start` and return its end, or `start` when it is not complete."""
        available = len(buffer) - start
        if available < 2:
            return start
        first, second = buffer[start], buffer[start + 1]
        opcode = self._check(first, second)
        length = second & 0x7F
        head = 6
        if length == 126:
            head = 8
            if available < head:
                return start
            length = int.from_bytes(buffer[start + 2 : start + 4])
        elif length == 127:
            head = 14
            if available < head:
                return start
            length = int.from_bytes(buffer[start + 2 : start + 10])
        # Judged before the payload arrives: nobody makes us collect more than we would take.
        if opcode < Opcode.CLOSE and self._size + length > self._max:
            raise Violation(TOO_LARGE, f"a message is at most {self._max} bytes")
        end = start + head + length
        if len(buffer) < end:
            return start
        payload = unmasked(buffer[start + head : end], bytes(buffer[start + head - 4 : start + head]))
        message = self._take(opcode, bool(first & _FIN), payload)
        if message is not None:
            messages.append(message)
        return end

    def _check(self, first: int, second: int) -> Opcode:
        opcode = _OPCODES.get(first & 0x0F)
        if opcode is None:
            raise Violation(PROTOCOL_ERROR, "there is no such opcode")
        if first & _RESERVED:
            raise Violation(PROTOCOL_ERROR, "no extension was agreed on, so the reserved bits must be zero")
        if not second & _MASKED:
            raise Violation(PROTOCOL_ERROR, "a client masks its frames")
        if opcode >= Opcode.CLOSE:
            if not first & _FIN:
                raise Violation(PROTOCOL_ERROR, "a control frame is not fragmented")
            if second & 0x7F > _MOST_CONTROL_BYTES:
                raise Violation(PROTOCOL_ERROR, f"a control frame has at most {_MOST_CONTROL_BYTES} bytes")
        elif (opcode is Opcode.CONTINUATION) != (self._opcode is not None):
            raise Violation(PROTOCOL_ERROR, "a fragment is in the wrong place")
        return opcode

    def _take(self, opcode: Opcode, final: bool, payload: bytes) -> Message | None:
        """The message that ends with this frame, if one does."""
        if opcode >= Opcode.CLOSE:
            return Message(opcode, payload)
        if final and self._opcode is None:
            if opcode is Opcode.TEXT and not payload.isascii():
                self._check_text(payload, final=True)
            return Message(opcode, payload)
        if self._opcode is None:
            self._opcode = opcode
        if payload:
            # Empty fragments are allowed, and must not be a way to fill our memory.
            self._parts.append(payload)
            self._size += len(payload)
        if self._opcode is Opcode.TEXT:
            self._check_text(payload, final=final)
        if not final:
            return None
        whole = Message(self._opcode, b"".join(self._parts))
        self._opcode, self._parts, self._size = None, [], 0
        return whole

    def _check_text(self, payload: bytes, *, final: bool) -> None:
        """Check UTF-8 as it arrives: a character may be split between two fragments (section 8.1)."""
        decoder = self._decoder or codecs.getincrementaldecoder("utf-8")()
        try:
            decoder.decode(payload, final)
        except UnicodeDecodeError:
            raise Violation(INVALID_TEXT, "a text message is not UTF-8") from None
        self._decoder = None if final else decoder


def unmasked(payload: bytes | bytearray, mask: bytes) -> bytes:
    """The payload of a masked frame. One operation on large integers, because Python is slow byte by byte."""
    length = len(payload)
    key = mask * (length // 4) + mask[: length % 4]
    return (int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(length)
