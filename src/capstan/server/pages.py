"""The pages for people that the server itself has: the API reference at `/docs`, and the description it is made from.

The dashboard is not built yet; `/dashboard` says so and points to the reference. Pages load nothing from elsewhere
and run under a strict Content-Security-Policy.
"""

from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.handlers import HTTPRouteHandler

from capstan.core.errors import NotFound
from capstan.server.openapi import complete_document
from capstan.server.reference import render_reference, static_file

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_PAGE_HEADERS = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}
_HIDDEN: dict[str, Any] = {"open": True, "counted": True}

_DASHBOARD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Capstan dashboard</title><link rel="stylesheet" href="/docs/reference.css"></head>
<body><main><h1>Capstan</h1>
<p>The dashboard is not built yet. Accounts and keys are managed with the command line:
<code>capstan keys --help</code>.</p>
<p><a href="/docs">API reference</a></p></main></body></html>
"""


class Pages:
    """Renders the description and the reference once, on first use."""

    def __init__(self, *, base_url: str) -> None:
        self._base_url = base_url
        self._document: bytes | None = None
        self._reference: str | None = None

    def document(self, app: Litestar) -> bytes:
        """The OpenAPI document as JSON."""
        if self._document is None:
            self._document = msgspec.json.encode(complete_document(app, base_url=self._base_url))
        return self._document

    def reference(self, app: Litestar) -> str:
        """The reference page."""
        if self._reference is None:
            self._reference = render_reference(msgspec.json.decode(self.document(app)))
        return self._reference


def page_routes(pages: Pages) -> list[HTTPRouteHandler]:
    """The handlers of the pages."""

    @get("/v1/openapi.json", opt=_HIDDEN, include_in_schema=False)
    async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
        return Response(pages.document(request.app), media_type="application/json")

    @get("/docs", opt=_HIDDEN, include_in_schema=False)
    async def reference(request: Request[Any, Any, Any]) -> Response[str]:
        return Response(pages.reference(request.app), media_type="text/html", headers=_PAGE_HEADERS)

    @get("/docs/{name:str}", opt=_HIDDEN, include_in_schema=False)
    async def asset(name: str) -> Response[bytes]:
        found = static_file(name)
        if found is None:
            raise NotFound("there is no such file; see /docs")
        return Response(found[0], media_type=found[1].partition(";")[0], headers=_PAGE_HEADERS)

    @get("/dashboard", opt=_HIDDEN, include_in_schema=False)
    async def dashboard() -> Response[str]:
        return Response(_DASHBOARD, media_type="text/html", headers=_PAGE_HEADERS)

    return [openapi, reference, asset, dashboard]
