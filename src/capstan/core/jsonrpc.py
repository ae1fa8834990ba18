"""JSON-RPC 2.0 as bytes: reading requests, writing replies, and the same for our own calls to nodes.

Called by the RPC gateway (requests in, replies out) and by the chain package (calls out, replies in). Ids, params and
results stay the bytes they came as: they are checked to be JSON, never decoded and written again. This module knows
nothing of HTTP, methods or networks; which failure becomes an HTTP error is decided by the caller.
"""

import re
from itertools import accumulate
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Raw

# JSON-RPC 2.0, section 5.1.
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
# The range JSON-RPC leaves to the server, as Capstan uses it.
DEADLINE_PASSED: Final = -32002
SCOPE_REFUSED: Final = -32003
METHOD_NOT_ENABLED: Final = -32004
LIMIT_EXCEEDED: Final = -32005

NULL: Final = b"null"
NO_PARAMS: Final = b"[]"
DEFAULT_MAX_ITEMS: Final = 100
DEFAULT_MAX_DEPTH: Final = 64

_ABSENT: Final = Raw()
_ID_STARTS: Final = frozenset(b'"-0123456789n')
_WHITESPACE: Final = b" \t\n\r"
_OPENINGS: Final = frozenset((b"{", b"["))
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
# Opening brackets become 1 and closing ones 255, which is -1 when read as a signed byte.
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_BYTE_POSITION = re.compile(r"\(byte (\d+)\)")

# A single call with a number for its id, as the common clients write it; see `plain_parts`. The groups are the id, the
# method and the params in the first, and the method, the params and the id in the others.
_NUMBER = rb"([1-9][0-9]{0,17}|0)"
id_first = re.compile(
    rb'\{"jsonrpc":"2\.0","id":' + _NUMBER + rb',"method":"([^"\\]+)"(?:,"params":(\[.*\]))?\}'
).fullmatch
_ID_LAST = tuple(
    re.compile(pattern % _NUMBER).fullmatch
    for pattern in (
        rb'\{"jsonrpc": ?"2\.0", ?"method": ?"([^"\\]+)", ?"params": ?(\[.*\]), ?"id": ?%b\}',
        rb'\{"method": ?"([^"\\]+)", ?"params": ?(\[.*\]), ?"id": ?%b, ?"jsonrpc": ?"2\.0"\}',
    )
)


class Malformed(Exception):
    """The body as a whole is no JSON-RPC request. `code` is the JSON-RPC code, the message is for the caller."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Call(msgspec.Struct, frozen=True, gc=False):
    """One call. `id` is the JSON text of the id, or None for a notification; `params` is a JSON array."""

    method: str
    params: bytes
    id: bytes | None


class BadCall(msgspec.Struct, frozen=True, gc=False):
    """Something in the place of a call that cannot be one, with the error that answers it. `id` as in `Call`."""

    id: bytes | None
    code: int
    message: str


Item: TypeAlias = Call | BadCall


class Request(msgspec.Struct, frozen=True, gc=False):
    """What one body holds: a single call, or a batch of at least one."""

    items: tuple[Item, ...]
    is_batch: bool


class ErrorObject(msgspec.Struct, frozen=True, gc=False):
    """The `error` member of a reply, as far as we look at it."""

    code: int
    message: str = ""
    data: Raw = _ABSENT


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A node's answer, undecoded: exactly one of `result` and `error` is JSON text, the other is None."""

    id: bytes
    result: Raw | None
    error: Raw | None


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    method: str
    # Many a hand-written request leaves it out, and nothing depends on it. Another version is another protocol.
    jsonrpc: Literal["2.0"] = "2.0"
    id: Raw = _ABSENT
    params: Raw = _ABSENT


class _LooseEnvelope(msgspec.Struct, frozen=True, gc=False):
    jsonrpc: Raw = _ABSENT
    method: Raw = _ABSENT
    id: Raw = _ABSENT


class _ReplyEnvelope(msgspec.Struct, frozen=True, gc=False):
    id: Raw = _ABSENT
    result: Raw = _ABSENT
    error: Raw = _ABSENT


_envelope_decoder = msgspec.json.Decoder(_Envelope)
_json_decoder = msgspec.json.Decoder(Raw)
_loose_decoder = msgspec.json.Decoder(_LooseEnvelope)
_reply_decoder = msgspec.json.Decoder(_ReplyEnvelope)
_error_decoder = msgspec.json.Decoder(ErrorObject)


def plain_parts(body: bytes) -> tuple[bytes, bytes, bytes] | None:
    """The id, the method and the params of a single call that is written as the common clients write it.

    Nothing but the frame is looked at: the params are what stands between their brackets, JSON or not. Whoever knows
    that they are JSON, because they are the params of a call that was read before, may take the call for read.
    """
    found = id_first(body)
    if found is not None:
        call_id, method, params = found.groups(NO_PARAMS)
        return call_id, method, params
    for pattern in _ID_LAST:
        found = pattern(body)
        if found is not None:
            method, params, call_id = found.groups()
            return call_id, method, params
    return None


class RequestParser:
    """Reads request bodies within fixed limits on batch size and nesting. Safe to share."""

    def parse_plain(self, body: bytes) -> Call | None:
        """The call in `body` if that is a single one, with an id, in which nothing is unusual. None: use `parse`."""
        if not body.startswith(b"{") or not body.isascii() or body.count(b"[") + body.count(b"{") > self._max_depth:
            return None
        try:
            envelope = _envelope_decoder.decode(body)
        except msgspec.DecodeError:
            return None
        call_id, params = bytes(envelope.id), bytes(envelope.params)
        if not params.startswith(b"[") or not call_id or call_id[0] not in _ID_STARTS:
            return None
        return Call(envelope.method, params, call_id)

    def __init__(self, *, max_items: int = DEFAULT_MAX_ITEMS, max_depth: int = DEFAULT_MAX_DEPTH) -> None:
        self._max_items = max_items
        self._max_depth = max_depth
        # An array-like struct refuses the first element too many at once. A list would be built whole before its length
        # is looked at, and a body of five megabytes can hold millions of elements.
        fields = [(f"item_{number}", Raw, _ABSENT) for number in range(max_items)]
        batch = msgspec.defstruct("_Batch", fields, array_like=True, forbid_unknown_fields=True, frozen=True)
        self._batch_decoder = msgspec.json.Decoder(batch)

    def parse(self, body: bytes) -> Request:
        """The calls in `body`. Raises `Malformed` when it is not JSON, not a call, an empty or too large batch."""
        start = body[:1]
        if start not in _OPENINGS:
            start = body.lstrip(_WHITESPACE)[:1]
            if not start:
                raise Malformed(PARSE_ERROR, "The body is empty; send a JSON-RPC call or a batch of calls.")
        if not body.isascii() and not is_utf8(body):
            raise Malformed(PARSE_ERROR, "The body is not valid JSON: it is not UTF-8.")
        try:
            request = self._parse_batch(body) if start == b"[" else Request((_parse_item(body),), False)
        except RecursionError:
            raise self._too_deep() from None
        if deeper_than(body, self._max_depth):
            raise self._too_deep()
        return request

    def _parse_batch(self, body: bytes) -> Request:
        try:
            fields = msgspec.structs.astuple(self._batch_decoder.decode(body))
        except msgspec.ValidationError:
            message = f"The batch is too large: it has more than {self._max_items} items."
            raise Malformed(INVALID_REQUEST, message) from None
        except msgspec.DecodeError as error:
            raise _not_json(error) from None
        # Elements that were not there are the empty default; no JSON value is empty.
        items = tuple(_parse_item(bytes(element)) for element in fields if bytes(element))
        if not items:
            raise Malformed(INVALID_REQUEST, "The batch is empty; it needs at least one call.")
        return Request(items, True)

    def _too_deep(self) -> Malformed:
        message = f"The body is nested too deeply: at most {self._max_depth} levels are accepted."
        return Malformed(INVALID_REQUEST, message)


def _parse_item(text: bytes) -> Item:
    try:
        envelope = _envelope_decoder.decode(text)
    except msgspec.ValidationError:
        return _diagnose(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_json(error) from None
    call_id = bytes(envelope.id) or None
    if call_id is not None and call_id[0] not in _ID_STARTS:
        return BadCall(NULL, INVALID_REQUEST, "`id` must be a string, a number or null.")
    params = bytes(envelope.params) or NO_PARAMS
    if params.startswith(b"["):
        return Call(envelope.method, params, call_id)
    if params == NULL:
        # Not in the standard, but some clients send it and geth takes it.
        return Call(envelope.method, NO_PARAMS, call_id)
    return BadCall(call_id, INVALID_PARAMS, "`params` must be an array.")


def _diagnose(text: bytes) -> BadCall:
    """Why `text` is no call. Answered even without an id, because it is no notification either."""
    try:
        # The decoder that refused it stopped at the first wrong member: the rest may not even be JSON.
        _json_decoder.decode(text)
        envelope = _loose_decoder.decode(text)
    except msgspec.ValidationError:
        return BadCall(NULL, INVALID_REQUEST, "A JSON-RPC call must be an object with `method`, `params` and `id`.")
    except msgspec.DecodeError as error:
        raise _not_json(error) from None
    call_id = bytes(envelope.id)
    if not call_id or call_id[0] not in _ID_STARTS:
        call_id = NULL
    if bytes(envelope.jsonrpc) not in (b"", b'"2.0"'):
        return BadCall(call_id, INVALID_REQUEST, '`jsonrpc` must be "2.0".')
    return BadCall(call_id, INVALID_REQUEST, "`method` is missing or is not a string.")


def _not_json(error: Exception) -> Malformed:
    position = _BYTE_POSITION.search(str(error))
    where = f" at byte {position.group(1)}" if position else ""
    return Malformed(PARSE_ERROR, f"The body is not valid JSON{where}.")


def is_utf8(body: bytes) -> bool:
    """Whether `body` is UTF-8. msgspec does not look inside strings that it only skips over."""
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def deeper_than(body: bytes, max_depth: int) -> bool:
    """Whether the arrays and objects of `body`, which must be valid JSON, nest more than `max_depth` levels."""
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return False
    steps = _STRING.sub(b"", body).translate(_STEPS, _NOT_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > max_depth


def encode_call(call_id: int, method: str, params: bytes) -> bytes:
    """The body of one call to a node; `params` is a JSON array."""
    name = msgspec.json.encode(method)
    return b"".join((b'{"jsonrpc":"2.0","id":%d,"method":' % call_id, name, b',"params":', params, b"}"))


def plain_result(body: bytes, call_id: bytes) -> Raw | None:
    """The result in a reply to the call `call_id` in which nothing is unusual. None: `decode_reply` must be asked."""
    if not body.isascii():
        return None
    try:
        envelope = _reply_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if envelope.error is not _ABSENT or envelope.result is _ABSENT or bytes(envelope.id) != call_id:
        return None
    return envelope.result


def decode_reply(body: bytes) -> Reply:
    """A node's reply. Raises `ValueError`, with a message of our own, when it is not a JSON-RPC reply.

    A result that nests beyond the interpreter's recursion limit (about 900 levels) is refused as well.
    """
    if not is_utf8(body):
        raise ValueError("not UTF-8")
    try:
        envelope = _reply_decoder.decode(body)
    except msgspec.ValidationError:
        raise ValueError("not a JSON object") from None
    except msgspec.DecodeError:
        raise ValueError("not valid JSON") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    reply_id = bytes(envelope.id)
    # Some old nodes send `"error": null` beside a result.
    if bytes(envelope.error) not in (b"", NULL):
        return Reply(reply_id, None, envelope.error)
    # Compared by length: a result can be many megabytes, and `bytes` would copy it.
    if len(memoryview(envelope.result)) == 0:
        raise ValueError("neither result nor error")
    return Reply(reply_id, envelope.result, None)


def decode_error(error: Raw) -> ErrorObject:
    """The parts of an error object. Raises `ValueError` when it is not one."""
    try:
        return _error_decoder.decode(error)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ValueError("the error is not an object with an integer code") from None


def result_reply(call_id: bytes, result: bytes) -> bytes:
    """The reply that carries `result`, which is JSON text and is not touched."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (call_id, result)


def error_reply(call_id: bytes, code: int, message: str, data: object = None) -> bytes:
    """The reply for a failure of our own finding. `data`, if any, is encoded to JSON."""
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return node_error_reply(call_id, msgspec.json.encode(error))


def node_error_reply(call_id: bytes, error: bytes) -> bytes:
    """The reply that passes a node's error object on, byte for byte."""
    return b"".join((b'{"jsonrpc":"2.0","id":', call_id, b',"error":', error, b"}"))


def batch_reply(replies: list[bytes]) -> bytes:
    """The reply to a batch: the replies to its items, in the order given."""
    return b"[" + b",".join(replies) + b"]"
