"""Answers that are already bytes, as responses of the web framework: with their tag, and how far the index reaches.

Used by the routes of token and NFT data, whose answers are kept encoded. The framework would otherwise build and copy
headers and look for an encoder for each of them, which costs more than finding the answer. It decides nothing.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response
from litestar.datastructures import ResponseHeader
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from capstan.core.etags import etag_of, matches
from capstan.index.models import Coverage

T = TypeVar("T")

# What the description of a route says of the headers that `encoded` sends.
ANSWER_HEADERS = [
    ResponseHeader(
        name="X-Index-Block",
        description="The block up to which the index knows transfers.",
        documentation_only=True,
    ),
    ResponseHeader(
        name="X-Index-Complete",
        description="`true` when the index knows everything up to that block, `false` while it is still reading.",
        documentation_only=True,
    ),
    ResponseHeader(name="ETag", description="A tag of this very answer.", documentation_only=True),
]
NOT_MODIFIED = {"304": "The answer still has the tag that If-None-Match names."}


class Answer(msgspec.Struct, frozen=True):
    """An answer as bytes, with what its headers say."""

    body: bytes
    etag: str
    coverage: Coverage


def answer_of(shown: msgspec.Struct, coverage: Coverage) -> Answer:
    """The answer that shows this."""
    body = msgspec.json.encode(shown)
    return Answer(body, etag_of(body), coverage)


class EncodedResponse(Response[T]):
    """Sends bytes as they are. The type parameter says what they hold, for the API description."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        # The constructor of the base prepares what is not used here.
        self.status_code = status
        self._plain_headers = headers
        self._plain_body = body

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **_options: Any) -> ASGIResponse:
        """What the framework sends."""
        return _Plain(self.status_code or 200, self._plain_headers, self._plain_body)


class _Plain(ASGIResponse):
    """The two messages of a response."""

    __slots__ = ("_head", "_tail")

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self._head: Any = {"type": "http.response.start", "status": status, "headers": headers}
        self._tail: Any = {"type": "http.response.body", "body": body, "more_body": False}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(self._head)
        await send(self._tail)


def encoded(
    answer: Answer, if_none_match: str | None, _kind: type[T], more: Sequence[tuple[bytes, bytes]] = ()
) -> EncodedResponse[T]:
    """The answer, or 304 without a body when the caller has it. `_kind` is what the bytes hold, `more` are headers."""
    headers = [
        (b"x-index-block", str(answer.coverage.block or 0).encode()),
        (b"x-index-complete", b"true" if answer.coverage.complete else b"false"),
        (b"etag", answer.etag.encode()),
        *more,
    ]
    if matches(if_none_match, answer.etag):
        return EncodedResponse(304, headers, b"")
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(answer.body)).encode())]
    return EncodedResponse(200, headers, answer.body)
