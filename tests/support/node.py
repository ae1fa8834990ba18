"""Asks a node with plain JSON-RPC over HTTP: directly, to know what the service should have said, or through it."""

import json
from collections.abc import Mapping
from typing import Any

import httpx

_SECONDS = 20.0


class Node:
    """A node at an address."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self.url = url
        self._client = httpx.Client(timeout=_SECONDS, trust_env=False, headers=headers)

    def ask(self, method: str, *params: object) -> Any:
        """The result of one call, which must have one."""
        answer = self.reply({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def reply(self, body: object) -> Any:
        """The whole reply to this body, errors included."""
        return json.loads(self.send(json.dumps(body).encode()))

    def send(self, body: bytes) -> bytes:
        """The reply to this body as it came."""
        return self._client.post(self.url, content=body, headers={"Content-Type": "application/json"}).content

    def block_number(self) -> int:
        """Its head."""
        return int(self.ask("eth_blockNumber"), 16)

    def mine_to(self, number: int) -> None:
        """Mine until the chain is so long. Only a development chain can be told to."""
        while self.block_number() < number:
            self.ask("evm_mine")
