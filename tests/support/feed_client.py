"""A client of the WebSocket feed for tests, on the `websockets` library."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection

SECONDS = 30.0


class RpcError(Exception):
    """An error of the server to one call."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.code = error["code"]
        self.message = error["message"]
        self.data = error.get("data")


class FeedClient:
    """One socket. Replies go to whoever asked; what is pushed is kept by subscription, in order."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.pushed: dict[str, list[Any]] = {}
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def call(self, method: str, *params: Any) -> Any:
        """The result of one call, or `RpcError`."""
        number = next(self._ids)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        await self.connection.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        async with asyncio.timeout(SECONDS):
            answer = await reply
        if "error" in answer:
            raise RpcError(answer["error"])
        return answer["result"]

    async def subscribe(self, *params: Any) -> str:
        """The id of a new subscription."""
        return str(await self.call("eth_subscribe", *params))

    def of(self, subscription: str) -> list[Any]:
        """What was pushed to a subscription so far."""
        return self.pushed.setdefault(subscription, [])

    async def wait_for(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        """Wait until the condition holds; it is looked at after each message."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._news.clear()
                waiting = asyncio.ensure_future(self._news.wait())
                await asyncio.wait({waiting, self._reader}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if self._reader.done() and not condition():
                    raise AssertionError(f"the socket was closed: {self.connection.close_code}")

    async def wait_closed(self, seconds: float = SECONDS) -> tuple[int | None, str | None]:
        """Wait for the server to close; the code and the reason."""
        async with asyncio.timeout(seconds):
            await self.connection.wait_closed()
        return self.connection.close_code, self.connection.close_reason

    async def close(self) -> None:
        """Close the socket."""
        await self.connection.close()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        try:
            async for text in self.connection:
                message = json.loads(text)
                if "params" in message:
                    self.of(message["params"]["subscription"]).append(message["params"]["result"])
                elif message["id"] in self._replies:
                    self._replies.pop(message["id"]).set_result(message)
                self._news.set()
        except websockets.ConnectionClosed:
            return
        finally:
            for reply in self._replies.values():
                if not reply.done():
                    reply.set_exception(AssertionError(f"the socket was closed: {self.connection.close_code}"))
                    reply.exception()


def socket_url(base_url: str, network: str = "ethereum/devnet", key: str | None = None) -> str:
    """The address of the feed of a service whose API is at `base_url`."""
    query = "" if key is None else f"?apiKey={key}"
    return f"{base_url.replace('http', 'ws', 1)}/ws/{network}{query}"


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[FeedClient]:
    """A client, closed at the end."""
    options = {"compression": None, "max_size": None, "ping_interval": None, "proxy": None, **options}
    client = FeedClient(await websockets.connect(url, **options))
    try:
        yield client
    finally:
        await client.close()


def linked(heads: list[dict[str, Any]]) -> bool:
    """Whether each head is the child of the one before."""
    return all(two["parentHash"] == one["hash"] for one, two in itertools.pairwise(heads))
