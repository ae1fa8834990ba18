"""A very small JSON-RPC client for the development chain.

Used by the deployment and by tests. It talks to one local node over HTTP, waits with a limit, and raises `NodeRpcError`
for an error the node reports. It must not grow into the service's client: that is `capstan.chain`.
"""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

from capstan.devnet.errors import DevnetError, NodeRpcError

CALL_TIMEOUT_SECONDS = 30.0


class NodeRpc:
    """JSON-RPC calls to one node, for use with `async with`."""

    def __init__(self, url: str, *, timeout: float = CALL_TIMEOUT_SECONDS) -> None:
        self._url = url
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None
        self._ids = itertools.count(1)

    async def __aenter__(self) -> NodeRpc:
        self._session = aiohttp.ClientSession(timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, method: str, *params: object) -> Any:
        """The result of one call."""
        if self._session is None:
            raise RuntimeError("NodeRpc is used outside `async with`")
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        try:
            async with self._session.post(
                self._url, data=msgspec.json.encode(request), headers={"Content-Type": "application/json"}
            ) as response:
                body = msgspec.json.decode(await response.read())
        except TimeoutError as error:
            raise DevnetError(f"{method}: the node at {self._url} did not answer in {self._timeout.total} s") from error
        except (aiohttp.ClientError, msgspec.DecodeError) as error:
            raise DevnetError(f"{method}: no answer from the node at {self._url}: {error}") from error
        if "error" in body:
            problem = body["error"]
            raise NodeRpcError(method, problem["code"], problem["message"], problem.get("data"))
        return body["result"]
