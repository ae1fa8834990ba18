"""The HTTP answers of the gateway, made of JSON-RPC replies. Used by the RPC service alone; nothing is decided here."""

from collections.abc import Sequence

import msgspec

from capstan.chain.models import Attempt
from capstan.core import jsonrpc
from capstan.rpc.models import RpcReply

_JSON_HEADERS = (("Content-Type", "application/json"),)
_MOST_ATTEMPTS_TOLD = 50

# Nothing is returned for notifications. 204 says so, and carries no Content-Type, which clients take for "parse this".
NOTHING = RpcReply(204, b"", ())


class Advice(Exception):
    """A range of logs that is too wide; `data` says what to ask instead."""

    def __init__(self, data: object) -> None:
        super().__init__("range too wide")
        self.data = data


def ok(body: bytes) -> RpcReply:
    """The answer with a JSON-RPC reply in it."""
    return RpcReply(200, body, _JSON_HEADERS)


def explained(reply: RpcReply, source: str, attempts: Sequence[Attempt] | None) -> RpcReply:
    """The reply with where its answer came from, and, if asked for, what was tried."""
    headers = list(reply.headers)
    if source:
        headers.append(("X-Cache", source))
    if attempts is not None:
        told = msgspec.json.encode(attempts[:_MOST_ATTEMPTS_TOLD]).decode()
        headers.append(("X-Explain", told))
    return RpcReply(reply.status, reply.body, tuple(headers))


def not_found(call_id: bytes, message: str) -> bytes:
    """The reply to a call of a method that is not there."""
    return jsonrpc.error_reply(call_id, jsonrpc.METHOD_NOT_FOUND, message)


def with_request_id(message: str, request_id: str) -> str:
    """A message that lets the operator find the request."""
    return f"{message} Request id: {request_id}." if request_id else message
