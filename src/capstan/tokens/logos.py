"""Logos from token lists in the Uniswap format, which the operator supplies as files.

Read once at the start by the composition root. A list that cannot be read is named in the log and left out; a token
that is in none has no logo.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from capstan.core.hexes import parse_address

log = structlog.get_logger(__name__)

_LONGEST_URL = 2048
_SCHEMES = ("https://", "http://", "ipfs://", "data:image/")


class _Token(msgspec.Struct, frozen=True, rename="camel"):
    chain_id: int
    address: str
    logo_u_r_i: Any = msgspec.field(name="logoURI", default=None)


class _List(msgspec.Struct, frozen=True):
    tokens: list[_Token]


class Logos:
    """Logos by chain id and contract."""

    def __init__(self, entries: dict[tuple[int, bytes], str] | None = None) -> None:
        self._entries = entries or {}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, chain_id: int, contract: bytes) -> str | None:
        """The address of the logo."""
        return self._entries.get((chain_id, contract))


def load_logos(paths: Iterable[str]) -> Logos:
    """The logos of all lists; where two name the same token, the first wins."""
    entries: dict[tuple[int, bytes], str] = {}
    for path in paths:
        try:
            found = msgspec.json.decode(Path(path).read_bytes(), type=_List)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("tokens.list_unreadable", path=path, reason=str(error))
            continue
        for token in found.tokens:
            logo = token.logo_u_r_i
            if isinstance(logo, str) and logo.startswith(_SCHEMES) and len(logo) <= _LONGEST_URL:
                try:
                    entries.setdefault((token.chain_id, parse_address(token.address)), logo)
                except ValueError:
                    # A list may hold tokens of chains with other addresses.
                    continue
    return Logos(entries)
