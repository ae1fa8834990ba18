"""The WebSocket codec, against the one of the `websockets` library and against the rules of RFC 6455."""

import secrets
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame
from websockets.frames import Opcode as TheirOpcode
from websockets.streams import StreamReader

from capstan.core import frames
from capstan.core.frames import FrameReader, Message, Opcode, Violation, unmasked

_LIMIT = 100_000


def masked(opcode: int, payload: bytes, *, final: bool = True, reserved: int = 0) -> bytes:
    """A client's frame, written by hand."""
    key = secrets.token_bytes(4)
    length = len(payload)
    first = (0x80 if final else 0) | reserved | opcode
    if length < 126:
        head = bytes((first, 0x80 | length))
    elif length < 65_536:
        head = bytes((first, 0x80 | 126)) + length.to_bytes(2)
    else:
        head = bytes((first, 0x80 | 127)) + length.to_bytes(8)
    return head + key + unmasked(payload, key)


def read(data: bytes, *, limit: int = _LIMIT) -> list[Message]:
    return FrameReader(max_message_bytes=limit).feed(data)


def violation(data: bytes, *, limit: int = _LIMIT) -> int:
    with pytest.raises(Violation) as caught:
        read(data, limit=limit)
    return caught.value.code


@given(st.binary(max_size=70_000), st.binary(min_size=4, max_size=4))
def test_masking_twice_gives_the_payload_back(payload: bytes, key: bytes) -> None:
    assert unmasked(unmasked(payload, key), key) == payload
    assert unmasked(payload, key) == bytes(byte ^ key[index % 4] for index, byte in enumerate(payload))


@given(st.text(max_size=70_000))
def test_the_library_reads_what_we_write(text: str) -> None:
    reader = StreamReader()
    reader.feed_data(frames.text_frame(text.encode()))
    parser = Frame.parse(reader.read_exact, mask=False)
    with pytest.raises(StopIteration) as done:
        next(parser)
    assert done.value.value.opcode is TheirOpcode.TEXT
    assert done.value.value.fin
    assert bytes(done.value.value.data) == text.encode()


@given(st.lists(st.tuples(st.sampled_from(["text", "binary", "ping", "pong"]), st.text(max_size=60)), max_size=20))
def test_we_read_what_the_library_writes_however_it_is_cut(sent: list[tuple[str, str]]) -> None:
    kinds = {"text": TheirOpcode.TEXT, "binary": TheirOpcode.BINARY, "ping": TheirOpcode.PING, "pong": TheirOpcode.PONG}
    messages = [(kinds[kind], text.encode()[:120].decode(errors="ignore").encode()) for kind, text in sent]
    data = b"".join(Frame(opcode, text).serialize(mask=True) for opcode, text in messages)
    reader = FrameReader(max_message_bytes=_LIMIT)
    found = [message for index in range(len(data)) for message in reader.feed(data[index : index + 1])]
    assert [(int(message.opcode), message.data) for message in found] == [(int(one), two) for one, two in messages]


@given(st.text(max_size=400), st.lists(st.integers(min_value=0, max_value=400), max_size=6))
def test_a_fragmented_message_is_put_together_with_control_frames_in_between(text: str, cuts: list[int]) -> None:
    whole = text.encode()
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    parts = [whole[start:end] for start, end in pairwise(edges)]
    data = b""
    for index, part in enumerate(parts):
        opcode = Opcode.TEXT if index == 0 else Opcode.CONTINUATION
        data += masked(opcode, part, final=index == len(parts) - 1) + masked(Opcode.PING, b"%d" % index)
    found = read(data)
    assert [message.data for message in found if message.opcode is Opcode.TEXT] == [whole]
    assert len(found) == len(parts) + 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(masked(Opcode.TEXT, b"a", reserved=0x40), id="a compressed frame, though nothing was agreed on"),
        pytest.param(masked(3, b"a"), id="an opcode that does not exist"),
        pytest.param(bytes((0x81, 1)) + b"a", id="a frame without a mask"),
        pytest.param(masked(Opcode.PING, b"a", final=False), id="a fragmented ping"),
        pytest.param(masked(Opcode.PING, b"a" * 126), id="a ping that is too long"),
        pytest.param(masked(Opcode.CONTINUATION, b"a"), id="a continuation of nothing"),
        pytest.param(masked(Opcode.TEXT, b"a", final=False) + masked(Opcode.TEXT, b"b"), id="a message inside another"),
    ],
)
def test_what_breaks_the_protocol_is_1002(data: bytes) -> None:
    assert violation(data) == frames.PROTOCOL_ERROR


def test_text_that_is_not_utf8_is_1007_also_when_a_character_is_split() -> None:
    assert violation(masked(Opcode.TEXT, b"\xff")) == frames.INVALID_TEXT
    assert violation(masked(Opcode.TEXT, b"\xc3", final=False) + masked(0, b"(")) == frames.INVALID_TEXT
    # A character that never ends.
    assert violation(masked(Opcode.TEXT, b"\xc3", final=False) + masked(0, b"")) == frames.INVALID_TEXT
    assert read(masked(Opcode.TEXT, b"\xc3", final=False) + masked(0, b"\xa4"))[0].data == "ä".encode()
    assert read(masked(Opcode.BINARY, b"\xff"))[0].data == b"\xff"


def test_a_message_over_the_limit_is_1009_before_its_payload_arrives() -> None:
    assert read(masked(Opcode.TEXT, b"a" * 10), limit=10)[0].data == b"a" * 10
    assert violation(masked(Opcode.TEXT, b"a" * 11)[:6], limit=10) == frames.TOO_LARGE
    huge = bytes((0x81, 0xFF)) + (2**63 - 1).to_bytes(8) + b"mask"
    assert violation(huge) == frames.TOO_LARGE
    fragments = masked(Opcode.TEXT, b"a" * 6, final=False) + masked(Opcode.CONTINUATION, b"a" * 6)
    assert violation(fragments, limit=10) == frames.TOO_LARGE


def test_endless_empty_fragments_take_no_memory() -> None:
    reader = FrameReader(max_message_bytes=_LIMIT)
    reader.feed(masked(Opcode.TEXT, b"", final=False))
    for _ in range(1_000):
        assert reader.feed(masked(Opcode.CONTINUATION, b"", final=False)) == []
    assert len(reader._parts) == 0
    assert reader.feed(masked(Opcode.CONTINUATION, b"x"))[0].data == b"x"


@pytest.mark.parametrize("code", [1000, 1001, 1013, 3000, 4401, 4999])
def test_close_codes_are_read_back(code: int) -> None:
    frame = frames.close_frame(code, "why")
    assert frames.close_code(frame[2:]) == code


def test_a_long_reason_is_cut_between_characters() -> None:
    frame = frames.close_frame(1000, "ä" * 100)
    assert len(frame) <= 2 + 125
    frame[4:].decode()


@pytest.mark.parametrize(
    "data", [b"\x03", (1005).to_bytes(2), (1006).to_bytes(2), (999).to_bytes(2), (5000).to_bytes(2)]
)
def test_a_bad_close_frame_is_1002(data: bytes) -> None:
    with pytest.raises(Violation) as caught:
        frames.close_code(data)
    assert caught.value.code == frames.PROTOCOL_ERROR
