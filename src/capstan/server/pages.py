"""The pages for people that the server itself has: the API reference at `/docs`, and the description it is made from.

They load nothing from elsewhere and run under a strict Content-Security-Policy. The dashboard is a package of its own.
"""

from typing import Annotated, Any

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Example
from litestar.params import Parameter

from capstan.core.errors import NotFound
from capstan.server.openapi import complete_document
from capstan.server.reference import render_reference, static_file

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_PAGE_HEADERS = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}
_OPEN: dict[str, Any] = {"open": True, "counted": True}
_DOCUMENT: dict[str, Any] = {**_OPEN, "response_schema": {"type": "object"}}
_PAGE: dict[str, Any] = {**_OPEN, "media_types": ("text/html",)}
_ASSET: dict[str, Any] = {**_OPEN, "media_types": ("text/css", "text/javascript"), "errors": ("not_found",)}
_TAGS = ["pages"]


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

    @get("/v1/openapi.json", opt=_DOCUMENT, tags=_TAGS, summary="This description")
    async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The OpenAPI 3.1 document of the whole service."""
        return Response(pages.document(request.app), media_type="application/json")

    @get("/docs", opt=_PAGE, tags=_TAGS, summary="The reference page")
    async def reference(request: Request[Any, Any, Any]) -> Response[str]:
        """This description as a page for people; it loads nothing from elsewhere."""
        return Response(pages.reference(request.app), media_type="text/html", headers=_PAGE_HEADERS)

    @get("/docs/{name:str}", opt=_ASSET, tags=_TAGS, summary="A file of the reference page")
    async def asset(
        name: Annotated[str, Parameter(description="The file.", examples=[Example(value="reference.css")])],
    ) -> Response[bytes]:
        """Its style sheet and its script."""
        found = static_file(name)
        if found is None:
            raise NotFound("there is no such file; see /docs")
        return Response(found[0], media_type=found[1].partition(";")[0], headers=_PAGE_HEADERS)

    return [openapi, reference, asset]
