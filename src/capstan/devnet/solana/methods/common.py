"""What the method modules share: the response wrapper with its context, and the type of a handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capstan.devnet.solana.ledger import Ledger

CORE_VERSION = "4.1.2"
"""The Agave release whose runtime crates solders 0.29 carries; LiteSVM executes with exactly these."""

Handler = Callable[[Ledger, Any], Any]
"""Takes the ledger and the request's raw `params`, gives the `result`, raises `RpcError`."""


def with_context(slot: int, value: Any) -> dict[str, Any]:
    return {"context": {"apiVersion": CORE_VERSION, "slot": slot}, "value": value}
