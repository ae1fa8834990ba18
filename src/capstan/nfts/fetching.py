"""Fetches metadata documents: from the URI itself, or over HTTP through the guarded client.

Called by the library of documents. Gateways are raced: the first is asked, the next as soon as one fails or takes
unusually long, and the first usable document wins. The whole race has one time limit. It keeps nothing.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from capstan.nfts.documents import document_of, inline_document
from capstan.nfts.models import Document
from capstan.nfts.uris import Gateways, Inline
from capstan.outbound.client import GuardedClient, OutboundLimits
from capstan.outbound.errors import OutboundError

# When an address takes longer than this, the next one is asked as well.
_PATIENCE_SECONDS = 1.5
# A document above this size takes long enough to read that others would wait.
_LARGE_BYTES = 64 * 1024
_HEADERS = {"Accept": "application/json, image/*;q=0.9, */*;q=0.5", "User-Agent": "capstan"}


class FetchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What fetching one document may take."""

    seconds: float
    bytes: int
    redirects: int


class FetchFailed(Exception):
    """There is no document to be had. The message says why."""


class DocumentFetcher:
    """Fetches documents by URI."""

    def __init__(self, client: GuardedClient, gateways: Gateways, options: FetchOptions) -> None:
        self._client = client
        self._gateways = gateways
        self._seconds = options.seconds
        # Cut, not refused, beyond the limit: of an image the beginning is enough.
        self._limits = OutboundLimits(
            seconds=options.seconds, bytes=options.bytes, whole=False, redirects=options.redirects
        )

    def inline(self, uri: str, token_id: int | None) -> tuple[bool, Document | None]:
        """Whether the document needs no fetching, and the document then."""
        target = self._gateways.target(uri)
        if target is None:
            return True, None
        return (True, inline_document(target, uri, token_id)) if isinstance(target, Inline) else (False, None)

    async def fetch(self, uri: str, token_id: int | None) -> Document:
        """The document at the URI. `token_id`: see `document_of`. Raises `FetchFailed`."""
        target = self._gateways.target(uri)
        if target is None:
            raise FetchFailed("the URI leads nowhere")
        if isinstance(target, Inline):
            found = inline_document(target, uri, token_id)
            if found is None:
                raise FetchFailed("the URI holds neither JSON nor an image")
            return found
        try:
            async with asyncio.timeout(self._seconds):
                return await self._race(target.urls, uri, token_id)
        except TimeoutError:
            raise FetchFailed(f"no document within {self._seconds:g} seconds") from None

    async def _race(self, urls: Sequence[str], uri: str, token_id: int | None) -> Document:
        waiting = list(urls)
        running: set[asyncio.Task[Document]] = set()
        reason = "there is nobody to ask"
        try:
            while waiting or running:
                if waiting:
                    running.add(asyncio.create_task(self._attempt(waiting.pop(0), uri, token_id)))
                patience = _PATIENCE_SECONDS if waiting else None
                done, running = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    error = task.exception()
                    if error is None:
                        return task.result()
                    if not isinstance(error, FetchFailed):
                        raise error
                    reason = str(error)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        raise FetchFailed(reason)

    async def _attempt(self, url: str, uri: str, token_id: int | None) -> Document:
        try:
            answer = await self._client.fetch("GET", url, limits=self._limits, headers=_HEADERS)
        except OutboundError as error:
            raise FetchFailed(str(error)) from error
        if answer.status != 200:
            raise FetchFailed(f"the answer has the status {answer.status}")
        media_type = next((value for name, value in answer.headers.items() if name.lower() == "content-type"), "")
        if len(answer.body) > _LARGE_BYTES:
            # Elsewhere, so that others get their turn meanwhile.
            found = await asyncio.to_thread(document_of, media_type, answer.body, uri, token_id)
        else:
            found = document_of(media_type, answer.body, uri, token_id)
        if found is None:
            cut = len(answer.body) >= self._limits.bytes
            raise FetchFailed("the document is too large" if cut else "the answer is neither JSON nor an image")
        return found
