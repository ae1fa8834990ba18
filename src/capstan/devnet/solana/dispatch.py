"""JSON-RPC 2.0: from the bytes of a request to the bytes of the reply. The HTTP server and the sockets both use it,
each with its own table of methods.

This is the only place that catches a handler's errors. A defect is written to standard error and answered with -32603.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from capstan.devnet.solana.errors import RpcError, internal_error, invalid_request, method_not_found, parse_error

Call = Callable[[Any], Any]
"""A method bound to whatever it works on: takes raw `params`, gives the result."""


class Dispatcher:
    def __init__(self, methods: Mapping[str, Call], max_batch: int) -> None:
        self._methods = methods
        self._max_batch = max_batch

    def handle(self, body: bytes | str) -> bytes | None:
        """The reply, or None when the request was a notification (or only notifications)."""
        try:
            request = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _encode(_failure(None, parse_error()))
        if not isinstance(request, list):
            reply = self._single(request)
            return None if reply is None else _encode(reply)
        if not request:
            return _encode(_failure(None, invalid_request()))
        if len(request) > self._max_batch:
            return _encode(_failure(None, invalid_request(f"Invalid request: batch of more than {self._max_batch}")))
        replies = [reply for item in request if (reply := self._single(item)) is not None]
        return _encode(replies) if replies else None

    def _single(self, request: Any) -> dict[str, Any] | None:
        if not isinstance(request, dict):
            return _failure(None, invalid_request())
        identifier = request.get("id")
        method = request.get("method")
        if (
            request.get("jsonrpc") != "2.0"
            or not isinstance(method, str)
            or isinstance(identifier, bool)
            or not isinstance(identifier, str | int | None)
        ):
            return _failure(None, invalid_request())
        try:
            result = self._call(method, request.get("params"))
        except RpcError as error:
            reply = _failure(identifier, error)
        else:
            reply = {"jsonrpc": "2.0", "result": result, "id": identifier}
        return reply if "id" in request else None

    def _call(self, method: str, params: Any) -> Any:
        call = self._methods.get(method)
        if call is None:
            raise method_not_found()
        try:
            return call(params)
        except RpcError:
            raise
        except Exception as error:
            # A defect of this node. One request must not end it, and must not pass in silence.
            traceback.print_exc(file=sys.stderr)
            raise internal_error() from error


def _failure(identifier: Any, error: RpcError) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "error": error.to_json(), "id": identifier}


def _encode(reply: Any) -> bytes:
    return msgspec.json.encode(reply)
