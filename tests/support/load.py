"""Load on the gateway: callers that ask a real node without pause, each question once, and write down what went wrong.

A question is a call of the EVM's identity contract, which returns what it is given. Whatever comes back is thus known
to be right or wrong, no answer can come from memory, and the node is a real one.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import aiohttp

# Precompiled contract 0x04 of every EVM chain: the identity.
_IDENTITY = "0x0000000000000000000000000000000000000004"
_SECONDS = 30.0
_NUMBERS = count(1)


def question(block: str = "latest") -> tuple[dict[str, Any], str]:
    """A call that was never made before, and its only right answer."""
    data = f"0x{next(_NUMBERS):064x}"
    return {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [{"to": _IDENTITY, "data": data}, block]}, data


class Load:
    """Callers under way."""

    def __init__(self, url: str, headers: dict[str, str], callers: int) -> None:
        self.answered = 0
        self.faults: list[str] = []
        self._url = url
        self._session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=_SECONDS))
        self._stopped = asyncio.Event()
        self._callers = [asyncio.create_task(self._ask()) for _ in range(callers)]

    async def _ask(self) -> None:
        while not self._stopped.is_set():
            call, expected = question()
            try:
                async with self._session.post(self._url, json=call) as answer:
                    body = await answer.read()
                    if answer.status != 200 or json.loads(body).get("result") != expected:
                        self.faults.append(f"{answer.status}: {body[:300]!r}")
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                self.faults.append(f"{type(error).__name__}: {error}")
            self.answered += 1

    async def more(self, wanted: int) -> None:
        """Wait until so many more were answered."""
        goal = self.answered + wanted
        async with asyncio.timeout(_SECONDS):
            while self.answered < goal:
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Let every caller finish its question."""
        self._stopped.set()
        async with asyncio.timeout(_SECONDS):
            await asyncio.gather(*self._callers)
        await self._session.close()


@contextlib.asynccontextmanager
async def under_load(url: str, headers: dict[str, str], callers: int = 8) -> AsyncIterator[Load]:
    """Load for as long as the block lasts. Afterwards no question may have been answered wrongly or not at all."""
    load = Load(url, headers, callers)
    try:
        yield load
    finally:
        await load.stop()
    assert load.faults == []
